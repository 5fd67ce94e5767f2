"""How a person names a session: its id, any unique beginning of it, @last, @last~2."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from limpet import errors, limits
from limpet.cli import exits, figures

if TYPE_CHECKING:
    from limpet.sessions.manager import Session
    from limpet.wiring import Limpet

_LAST = re.compile(r"@last(?:~(\d{1,9}))?")
_SHOWN = 3


def session(lp: Limpet, reference: str) -> Session:
    """Return the session that the reference names; raise what tells a person how to name it better."""
    last = _LAST.fullmatch(reference)
    if last:
        return _nth_last(lp, int(last[1] or 0), reference)
    try:
        return lp.sessions.get_session(reference)
    except errors.SessionNotFound:
        return lp.sessions.get_session(_completed(lp, reference))


def whole(lp: Limpet, session_id: str) -> Session:
    """Return the session that has this very id: where nobody is asked, a beginning could be another's."""
    try:
        return lp.sessions.get_session(session_id)
    except errors.SessionNotFound as error:
        problem = _unknown(session_id, "With --yes only a whole id names one.")
        raise exits.Failure(problem) from error


def _nth_last(lp: Limpet, back: int, reference: str) -> Session:
    rows = lp.sessions.list_sessions(limit=1, offset=back)
    if rows:
        return lp.sessions.get_session(rows[0]["id"])
    held = lp.admin.status().get("holds", {}).get("session", {})
    raise exits.Failure(
        exits.Problem(
            exits.NOT_FOUND,
            errors.SessionNotFound.code,
            f"{reference} names no session.",
            f"The store holds {sum(held.values()):,} sessions; @last is the newest of this tenant's.",
            "",
            command=("sessions list",),
        )
    )


def _completed(lp: Limpet, beginning: str) -> str:
    found: list[str] = []
    cursor: str | None = None
    seen = 0
    while True:
        page = lp.sessions.list_sessions(limit=limits.PAGE_SIZE_MAX, cursor=cursor)
        seen += len(page)
        found += [row["id"] for row in page if str(row["id"]).startswith(beginning)]
        cursor = page.next_cursor
        if cursor is None or len(found) > _SHOWN:
            break
    if len(found) == 1:
        return found[0]
    if found:
        raise exits.Failure(_ambiguous(beginning, found))
    among = figures.count(seen, "session")
    raise exits.Failure(_unknown(beginning, f"Of {among}, none has an id that begins like that."))


def _ambiguous(beginning: str, found: list[str]) -> exits.Problem:
    more = " and more" if len(found) > _SHOWN else ""
    return exits.Problem(
        exits.USAGE,
        "ambiguous_id",
        f"{beginning!r} is the beginning of more than one id.",
        f"It could be {', '.join(found[:_SHOWN])}{more}.",
        "Give more of the id, or list them:",
        command=("sessions list",),
    )


def _unknown(reference: str, why: str) -> exits.Problem:
    return exits.Problem(
        exits.NOT_FOUND,
        errors.SessionNotFound.code,
        f"there is no session {reference!r}.",
        why,
        "",
        {"session": reference},
        ("sessions list",),
    )
