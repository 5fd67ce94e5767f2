"""`limpet memory forget` and `limpet erase`: out of every file, with a receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet import errors, limits
from limpet.cli import asking, exits, figures, references, target
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.windows import summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.core.values.erasure_receipt import Receipt
    from limpet.sessions.manager import Session
    from limpet.wiring import Limpet


_SEEN_CHARS = 200


def forget(user: str, *, yes: bool, common: Common) -> int:
    """Erase everything of a user, after a question that says how much that is."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common, writes=True) as lp:
        sessions, messages = _held(lp, user)
        facts = len(lp.memory.facts(user))
        lines = [
            f"  {figures.count(sessions, 'session')} with {figures.count(messages, 'message')}",
            f"  {figures.count(facts, 'fact')} that memory has",
            "  and what the search index, summaries, recorded windows and frames have of them",
        ]
        question = f"forget {user} in {target.named(common.url)}, for good?"
        asking.confirm(surface, question, lines, yes=yes)
        receipt = lp.memory.forget(user)
    _show(surface, receipt, f"forgot {user}", f"There was nothing of {user!r}.")
    return exits.DONE


def _held(lp: Limpet, user: str) -> tuple[int, int]:
    sessions = messages = 0
    cursor: str | None = None
    while True:
        page = lp.sessions.list_sessions(limits.PAGE_SIZE_MAX, user_id=user, cursor=cursor)
        sessions += len(page)
        messages += sum(int(row["message_count"]) for row in page)
        cursor = page.next_cursor
        if cursor is None:
            return sessions, messages


def erase(session: str | None, message: str | None, *, yes: bool, common: Common) -> int:
    """Erase a session, one message of it, or all that was deleted."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common, writes=True) as lp:
        what, lines, run = _wanted(lp, session, message, yes=yes)
        question = f"erase {what} in {target.named(common.url)}, for good?"
        asking.confirm(surface, question, lines, yes=yes)
        receipt = run()
    _show(surface, receipt, f"erased {what}", "There was nothing to erase.")
    return exits.DONE


def _wanted(
    lp: Limpet, session: str | None, message: str | None, *, yes: bool
) -> tuple[str, list[str], Callable[[], Receipt]]:
    """Return what is to go in words, what a person should see of it first, and what does it."""
    if session is None:
        if message is not None:
            raise exits.Failure(
                exits.Problem(
                    exits.USAGE,
                    "usage",
                    "a message is one of a session.",
                    "Nothing was done.",
                    "Name the session first: limpet erase SESSION --message 12",
                )
            )
        return "what was deleted", [], lp.admin.erase
    found = (references.whole if yes else references.session)(lp, session)
    if message is None:
        held = figures.count(found.message_count, "message")
        return f"{found.id} ({held})", [], lambda: lp.admin.erase(session_id=found.id)
    number = message.removeprefix("#")
    named, lines = message, list[str]()
    if number.isdecimal():
        at = int(number)
        if not 1 <= at <= found.message_count:
            raise exits.Failure(_no_message(found, at))
        meant = found.messages[at - 1]
        named, lines = meant.id, [f"  {meant.role}: {summary.message_text(meant)[:_SEEN_CHARS]}"]

    def run() -> Receipt:
        return lp.admin.erase(session_id=found.id, message_id=named)

    return f"message {message} of {found.id}", lines, run


def _no_message(session: Session, number: int) -> exits.Problem:
    return exits.Problem(
        exits.NOT_FOUND,
        errors.MessageNotFound.code,
        f"{session.id} has no message #{number:,}.",
        f"It has {figures.count(session.message_count, 'message')}, numbered from 1.",
        "",
        {"session": session.id},
        ("sessions show",),
        named=session.id,
    )


def _show(surface: Surface, receipt: Receipt, done: str, nothing: str) -> None:
    data = receipt.to_dict()
    if surface.face is Face.JSON:
        surface.document(data)
    elif surface.face is Face.PIPE:
        for name, value in data.items():
            surface.row(name, value)
    else:
        told = [
            figures.count(getattr(receipt, name), noun)
            for name, noun in (("sessions", "session"), ("events", "event"), ("frames", "frame"), ("blobs", "blob"))
            if getattr(receipt, name)
        ]  # fmt: skip
        if receipt.rows:
            told.append(f"{figures.count(receipt.rows, 'row')} of index and memory")
        numbers = f"{', '.join(told)}. Receipt {receipt.id}" if told else "there was nothing."
        surface.say(f"{surface.glyphs.good} {done}: {numbers}")
    gone = receipt.sessions or receipt.events or receipt.frames or receipt.blobs or receipt.rows
    if surface.face is not Face.TERMINAL and not gone and not receipt.waiting:
        surface.note(nothing)
    if receipt.waiting:
        surface.note(
            f"{figures.count(receipt.waiting, 'session')} hidden, to go with the last fork that reads from it."
        )
    if receipt.pending:
        surface.note(
            "Somebody is reading; traces are left in files until the next erasure or opening."
        )
