"""A store with conversations of two users, one of them ended, for tests of what is said and known."""

from __future__ import annotations

from pathlib import Path

import limpet

HOSTILE = "Noted. \x1b[2J\u202e\x07 [bold]x[/bold]"
SAID = (
    ("user", "My name is Ada. I live in Oslo and I am vegetarian."),
    ("assistant", HOSTILE),
    ("user", "I prefer a window seat. My booking reference is QX7-119."),
    ("assistant", "Booked."),
)


def oslo(folder: Path, *, learnt: bool = True) -> Path:
    """Make the store; `learnt`: a worker has run."""
    with limpet.connect(folder / "state.db", memory=True) as lp:
        trip = lp.sessions.create_session("trip", user_id="ada")
        for role, text in SAID:
            trip.add_message({"role": role, "content": text})
        lp.sessions.end_session("trip")
        other = lp.sessions.create_session("visit", user_id="bo")
        other.add_message({"role": "user", "content": "I live in Rome."})
        if learnt:
            lp.worker().run_once()
    return folder
