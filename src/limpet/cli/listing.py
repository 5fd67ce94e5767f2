"""`limpet sessions list`: a page of sessions, last active first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet.cli import again, exits, figures, target, visible
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface

if TYPE_CHECKING:
    from limpet.core.values.json_values import Json
    from limpet.sessions.requests import Page

COLUMNS = (
    "id", "user_id", "status", "message_count", "total_tokens", "pending_calls", "last_active", "title",
)  # fmt: skip
"""What a line of TSV holds, in order."""

_WIDE = 100


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which sessions; every condition given must hold."""

    user: str | None = None
    status: str | None = None
    since: str | None = None
    until: str | None = None
    meta: Sequence[str] = ()
    limit: int = 50
    cursor: str | None = None


def run(wanted: Filter, common: Common) -> int:
    """Print one page of sessions."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    conditions = {
        "active_after": figures.moment("--since", wanted.since),
        "active_before": figures.moment("--until", wanted.until),
    }
    metadata = dict(_pair(text) for text in wanted.meta)
    with target.opened(common) as lp:
        page = lp.sessions.list_sessions(
            wanted.limit,
            cursor=wanted.cursor,
            user_id=wanted.user,
            status=wanted.status,
            active_after=conditions["active_after"],
            active_before=conditions["active_before"],
            metadata=metadata,
        )
    if surface.face is Face.JSON:
        surface.document({"sessions": list(page), "next_cursor": page.next_cursor})
        return exits.DONE
    if surface.face is Face.PIPE:
        for row in page:
            surface.row(*(row[name] for name in COLUMNS))
    else:
        _show(surface, page)
    if page.next_cursor is not None:
        surface.note(f"There are more: {_following(wanted, page.next_cursor, common)}")
    return exits.DONE


def _following(wanted: Filter, cursor: str, common: Common) -> str:
    """Return the command that prints the next page."""
    given = [
        ("--user", wanted.user), ("--status", wanted.status), ("--since", wanted.since),
        ("--until", wanted.until), *(("--meta", pair) for pair in wanted.meta),
        ("--limit", wanted.limit), ("--cursor", cursor),
    ]  # fmt: skip
    words = [word for name, value in given if value for word in again.option(name, value)]
    return again.command("sessions list", *words, on=common.on)


def _pair(text: str) -> tuple[str, Json]:
    """Read key=value; a number, true, false, null or a quoted text is taken as JSON."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise exits.Failure(
            exits.Problem(
                exits.USAGE,
                "bad_filter",
                f"--meta {text!r} is not key=value.",
                "It compares one top-level value of a session's metadata.",
                "--meta team=north --meta 'year=2026' --meta 'code=\"0042\"'",
            )
        )
    try:
        found: Json = json.loads(value)
    except ValueError:
        return key, value
    return key, value if isinstance(found, dict | list) else found


def _show(surface: Surface, page: Page) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    if not page:
        surface.note("No session matches.")
        return
    headings = ["ID", "STATUS", ">MSGS", ">TOKENS", "ACTIVE", "TITLE"]
    rows = [
        [
            Text(visible.line(row["id"]), style="cyan"),
            Text(row["status"], style="" if row["status"] == "active" else "dim"),
            Text(f"{row['message_count']:,}"),
            Text(f"{row['total_tokens']:,}"),
            Text(figures.ago(row["last_active"])),
            Text(visible.line(_title(row, surface))),
        ]
        for row in page
    ]
    if surface.console.width < _WIDE:
        del headings[3]
        for row in rows:
            del row[3]
    surface.listed(headings, rows)


def _title(row: dict[str, Json], surface: Surface) -> str:
    waiting = row["pending_calls"]
    mark = f"{surface.glyphs.warn} {figures.count(waiting, 'open call')}" if waiting else ""
    shown = (mark, row["user_id"], row["title"])
    return f" {surface.glyphs.dot} ".join(part for part in shown if part)
