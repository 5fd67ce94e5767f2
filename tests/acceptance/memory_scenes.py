"""A store with conversations of two users, one of them ended, for tests of what is said and known."""

from __future__ import annotations

from pathlib import Path

import holdfast

HOSTILE = "Noted. \x1b[2J\u202e\x07 [bold]x[/bold]"
SAID = (
    ("user", "My name is Ada. I live in Oslo and I am vegetarian."),
    ("assistant", HOSTILE),
    ("user", "I prefer a window seat. My booking reference is QX7-119."),
    ("assistant", "Booked."),
)


def oslo(folder: Path, *, learnt: bool = True) -> Path:
    """Make the store; `learnt`: a worker has run."""
    with holdfast.connect(folder / "state.db", memory=True) as hf:
        trip = hf.sessions.create_session("trip", user_id="ada")
        for role, text in SAID:
            trip.add_message({"role": role, "content": text})
        hf.sessions.end_session("trip")
        other = hf.sessions.create_session("visit", user_id="bo")
        other.add_message({"role": "user", "content": "I live in Rome."})
        if learnt:
            hf.worker().run_once()
    return folder
