"""`limpet export`: sessions as one file, from which `limpet import` gives them back."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from limpet.admin.export import Exported
from limpet.cli import again, exits, figures, references, target
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface

STDOUT = "-"


def run(session: str | None, user: str | None, output: str, common: Common) -> int:
    """Write a conversation, all sessions of a user, or all of the tenant."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    if session is not None and user is not None:
        raise exits.Failure(_both())
    _check(session, user, output, common)
    started = time.monotonic()
    with target.opened(common) as lp:
        chosen = references.session(lp, session).id if session is not None else None
        if user is not None and not lp.sessions.list_sessions(1, user_id=user):
            return _nobodys(surface, user, common)
        with surface.progress("writing events") as bar:
            place = sys.stdout.buffer if output == STDOUT else output
            made = lp.admin.export(place, session_id=chosen, user_id=user, progress=bar)
    if output != STDOUT:
        _tell(surface, output, made, time.monotonic() - started)
    surface.note(
        f"{figures.count(made.sessions, 'session')}, {figures.count(made.messages, 'message')}."
        " Frames and their suspensions are not in it."
    )
    return exits.DONE


def _nobodys(surface: Surface, user: str, common: Common) -> int:
    """Say that a user has no session, which may be a slip in the name; no file is made."""
    if surface.face is Face.JSON:
        _tell(surface, None, Exported(0, 0, 0, 0, ""), 0)
    surface.note(
        f"Nothing was written: no session here is of {user!r}."
        f" Whose there are: {again.command('sessions list', on=common.on)}"
    )
    return exits.DONE


def _tell(surface: Surface, output: str | None, made: Exported, seconds: float) -> None:
    if surface.face is Face.JSON:
        surface.document(
            {
                "file": output,
                "sessions": made.sessions,
                "events": made.events,
                "messages": made.messages,
                "bytes": made.bytes,
                "sha256": made.sha256 or None,
                "seconds": round(seconds, 3),
            }
        )
    elif surface.face is Face.PIPE:
        surface.row(output, made.sessions, made.events, made.messages, made.bytes)
    else:
        surface.console.print(f"{surface.glyphs.good} {output}", style="bold green", end="")
        surface.console.print(
            f"   {figures.size(made.bytes)}, {figures.count(made.events, 'event')} in {seconds:.1f} s"
        )


def _check(session: str | None, user: str | None, output: str, common: Common) -> None:
    if output == STDOUT:
        if common.json:
            raise exits.Failure(
                _usage("--json and -o - would both write to stdout.", "Leave one out.")
            )
        if sys.stdout.isatty():
            told = "The file would go to a terminal, which obeys what is in stored text."
            raise exits.Failure(_usage(told, "-o trip.jsonl, or a pipe: -o - | gzip"))
    elif not output:
        raise exits.Failure(_usage("-o names no file.", "-o trip.jsonl, or a pipe: -o - | gzip"))
    elif Path(output).exists():
        raise exits.Failure(_exists(session, user, output, common))


def _usage(what: str, then: str) -> exits.Problem:
    return exits.Problem(exits.USAGE, "usage", what, "Nothing was written.", then)


def _both() -> exits.Problem:
    return _usage("a session and --user are both given.", "Export a session, or all of a user.")


def _exists(session: str | None, user: str | None, output: str, common: Common) -> exits.Problem:
    of = again.option("--user", user) if user is not None else ()
    free = again.option("-o", target.beside(Path(output)))
    return exits.Problem(
        exits.UNSAFE,
        "target_exists",
        f"{output} exists already.",
        "An export never overwrites. Nothing was written.",
        again.command("export", *of, *free, named=session or "", on=common.on),
    )
