"""`limpet sessions list` and `limpet sessions show`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from limpet.cli import exit_codes, hints, options, output, target
from limpet.cli.options import CommonOptions, Limit, Positive, Reference, Switch
from limpet.cli.output import Cell, Output, OutputMode
from limpet.core.values.validation import thaw

if TYPE_CHECKING:
    from limpet.core.values.messages import Message
    from limpet.core.values.validation import Json
    from limpet.sessions.manager import Session
    from limpet.sessions.requests import Page


SESSION_COLUMNS = (
    "id", "user_id", "status", "message_count", "total_tokens", "pending_calls", "last_active", "title",
)  # fmt: skip
"""The columns of a TSV line, in order."""

_WIDE_TERMINAL = 100


@dataclass(frozen=True, kw_only=True)
class SessionListOptions(CommonOptions):
    """Which sessions to list. Every given condition must hold."""

    user: str | None = None
    """Only sessions of this user."""
    status: Literal["active", "ended"] | None = None
    """Only sessions with this status."""
    since: str | None = None
    """Only sessions active at or after this time: ISO 8601, or 30m, 2h, 3d, 1w before now."""
    until: str | None = None
    """Only sessions active at or before this time."""
    meta: Annotated[tuple[str, ...], Parameter(negative_iterable="", show_default=False)] = ()
    """Only sessions with this key=value in their metadata. May be repeated."""
    limit: Limit = 50
    cursor: str | None = None
    """The next_cursor of the previous page."""


def list_sessions(wanted: SessionListOptions = SessionListOptions()) -> None:
    """List sessions, the last active first. Every given condition must hold.

    Example: limpet sessions list --user ada --since 2h --meta team=north
    """
    surface = Output(wanted)
    since = None if wanted.since is None else options.parse_moment("--since", wanted.since)
    until = None if wanted.until is None else options.parse_moment("--until", wanted.until)
    metadata = dict(_parse_metadata_pair(text) for text in wanted.meta)
    with target.open_store(wanted) as lp:
        page = lp.sessions.list_sessions(
            wanted.limit, cursor=wanted.cursor, user_id=wanted.user, status=wanted.status, metadata=metadata,
            active_after=since, active_before=until,
        )  # fmt: skip
    rows = ([row[name] for name in SESSION_COLUMNS] for row in page)
    if not surface.print_data({"sessions": list(page), "next_cursor": page.next_cursor}, rows):
        _print_sessions(surface, page)
    if page.next_cursor is not None and surface.mode is not OutputMode.JSON:
        surface.note(f"There are more: {_next_page_command(wanted, page.next_cursor)}")


def _next_page_command(wanted: SessionListOptions, cursor: str) -> str:
    given = [
        ("--user", wanted.user), ("--status", wanted.status), ("--since", wanted.since),
        ("--until", wanted.until), *(("--meta", pair) for pair in wanted.meta),
        ("--limit", wanted.limit), ("--cursor", cursor),
    ]  # fmt: skip
    return hints.command_line("sessions list", *hints.given_options(given), on=wanted.store_options)


def _parse_metadata_pair(text: str) -> tuple[str, Json]:
    """Parse key=value; a number, true, false, null or a quoted text is parsed as JSON."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise exit_codes.usage_failure(
            f"--meta {text!r} is not key=value.",
            "--meta team=north --meta 'year=2026' --meta 'code=\"0042\"'",
            "--meta compares one top-level value of a session's metadata.",
            "bad_filter",
        )
    try:
        found: Json = json.loads(value)
    except ValueError:
        return key, value
    return key, value if isinstance(found, dict | list) else found


def _print_sessions(surface: Output, page: Page) -> None:
    if not page:
        surface.note("No session matches.")
        return
    headings = ["ID", "STATUS", ">MSGS", ">TOKENS", "ACTIVE", "TITLE"]
    rows: list[list[Cell]] = [
        [
            (row["id"], "cyan"),
            (row["status"], "" if row["status"] == "active" else "dim"),
            f"{row['message_count']:,}",
            f"{row['total_tokens']:,}",
            output.relative_time(row["last_active"]),
            _title_cell(row, surface),
        ]
        for row in page
    ]
    if surface.console.width < _WIDE_TERMINAL:
        for line in (headings, *rows):
            del line[3]
    surface.print_table(headings, rows)


def _title_cell(row: dict[str, Json], surface: Output) -> str:
    waiting = row["pending_calls"]
    mark = f"{surface.symbols.warn} {output.quantity(waiting, 'open call')}" if waiting else ""
    shown = (mark, row["user_id"], row["title"])
    return f" {surface.symbols.dot} ".join(part for part in shown if part)


MESSAGES_SHOWN = 50
"""The number of messages that a terminal shows without --limit and --tail."""


@dataclass(frozen=True, kw_only=True)
class SessionShowOptions(CommonOptions):
    """Which messages to show, and how."""

    limit: Positive | None = None
    """Only this number of messages from the start."""
    tail: Positive | None = None
    """Only this number of messages from the end."""
    raw: Switch = False
    """Only the text of the messages, without escaping. Not on a terminal, unless --force is given."""
    force: Switch = False
    """Allow --raw on a terminal."""


def show_session(session: Reference, /, *, part: SessionShowOptions = SessionShowOptions()) -> None:
    """Show a session: its messages, open tool calls, and links to other sessions.

    Example: limpet sessions show @last --tail 20
    """
    surface = Output(part)
    _check_range(part)
    with target.open_store(part) as lp:
        found = target.find_session(lp, session)
        first, last = _shown_positions(part, found, surface)
        if part.raw:
            for _, message in _read_messages(found, first, last):
                print(_content_text(message.to_dict()["content"]))
        elif surface.mode is OutputMode.JSON:
            surface.print_json(_session_document(found, first, last))
        elif surface.mode is OutputMode.PIPE:
            for position, message in _read_messages(found, first, last):
                surface.print_row(
                    position, message.timestamp, message.role, message.fallback_estimate_tokens(), message.id,
                    message_text(message),
                )  # fmt: skip
        else:
            _print_session(surface, found, first, last)


def _check_range(part: SessionShowOptions) -> None:
    if part.limit is not None and part.tail is not None:
        why = "--limit counts from the start, --tail from the end."
        raise exit_codes.usage_failure("--limit and --tail exclude each other.", "Give one of them.", why)
    if part.raw and part.json:
        raise exit_codes.usage_failure(
            "--raw and --json exclude each other.", "Give one of them.", "Raw text is not JSON."
        )
    if part.raw and sys.stdout.isatty() and not part.force:
        raise exit_codes.failure(
            exit_codes.UNSAFE,
            "raw_on_terminal",
            "--raw does not write to a terminal.",
            "Stored text can contain control sequences that a terminal executes.",
            "Redirect the output to a file or a pipe, or add --force.",
        )


def _shown_positions(part: SessionShowOptions, session: Session, surface: Output) -> tuple[int, int]:
    """Return the positions to print, first and last, counted from 1."""
    tail, count = part.tail, session.message_count
    if tail is None and part.limit is None and surface.mode is OutputMode.TERMINAL and count > MESSAGES_SHOWN:
        tail = MESSAGES_SHOWN
        whole = hints.command_line("sessions show", "--limit", str(count), named=session.id, on=part.store_options)
        surface.note(f"The last {tail} of {count:,} messages. To show all: {whole}")
    if tail is not None:
        return max(1, count - tail + 1), count
    return 1, count if part.limit is None else min(count, part.limit)


def _read_messages(session: Session, first: int, last: int) -> Iterator[tuple[int, Message]]:
    messages = session.messages
    for start in range(first, last + 1, 256):
        yield from enumerate(messages[start - 1 : min(start + 255, last)], start)


def _session_links(session: Session) -> dict[str, Json]:
    state = session.state
    return {
        "continued_from": state.continued_from,
        "continued_to": state.continued_to,
        "continuation_index": state.continuation_index,
        "root": state.root_id,
    }


def _session_document(session: Session, first: int, last: int) -> Json:
    return {
        "id": session.id,
        "user_id": session.user_id,
        "title": session.title,
        "status": str(session.status),
        "metadata": session.metadata,
        "created_at": session.created_at,
        "last_active": session.last_active,
        "message_count": session.message_count,
        "total_tokens": session.total_tokens,
        "version": session.version,
        "generation": session.generation,
        "links": _session_links(session),
        "pending_calls": [
            {"call_id": call.call_id, "message_id": call.message_id, "name": call.name, "args": call.args}
            for call in session.pending_calls()
        ],
        "first": first,
        "last": last,
        "messages": [
            {
                "position": position, "tokens_counted_or_estimated": message.fallback_estimate_tokens(),
                **message.to_dict(),
            }
            for position, message in _read_messages(session, first, last)
        ],
    }  # fmt: skip


def _content_text(content: Json) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else output.compact_json(content)


def message_text(message: Message) -> str:
    """Return the content, tool calls and tool results of a message as one text."""
    told = message.to_dict()
    parts = [_content_text(told["content"])]
    parts += [f"call {c['id']} {c['name']} {output.compact_json(c.get('args', {}))}" for c in told["tool_calls"]]
    parts += [f"result {r['tool_call_id']} {output.compact_json(r['result'])}" for r in told["tool_results"]]
    return " ".join(part for part in parts if part)


def _print_session(surface: Output, session: Session, first: int, last: int) -> None:
    surface.print_facts(_heading_facts(session, surface))
    for position, message in _read_messages(session, first, last):
        tokens = message.fallback_estimate_tokens()
        surface.console.print()
        surface.print_head(
            (f"#{position:<4}", "dim"),
            (f"{message.role:<10}", _ROLE_STYLES[message.role]),
            (f" {message.timestamp[11:19]}  {tokens:,} tokens", "dim"),
        )
        for text, style in _message_bodies(message, surface):
            surface.print_block(text, style, indent=5)
    surface.console.print()


_ROLE_STYLES = {"system": "bold magenta", "user": "bold green", "assistant": "bold cyan", "tool": "bold yellow"}


def _heading_facts(session: Session, surface: Output) -> list[tuple[str, str]]:
    dot, state = surface.symbols.dot, session.state
    reset = f" {dot} reset {session.generation} times" if session.generation else ""
    rows = [
        ("session", session.id),
        ("title", session.title or state.preview or ""),
        ("user", session.user_id or ""),
        ("status", f"{session.status} {dot} last active {output.relative_time(session.last_active)}{reset}"),
        (
            "holds",
            f"{output.quantity(session.message_count, 'message')} {dot}"
            f" {output.quantity(session.total_tokens, 'token')} {dot} version {session.version:,}",
        ),
    ]
    if state.metadata:
        rows.append(("metadata", output.compact_json(thaw(state.metadata))))
    rows += [
        (name.replace("_", " "), str(value))
        for name, value in _session_links(session).items()
        if value and name != "continuation_index"
    ]
    for call in session.pending_calls():
        rows.append(("waits for", f"{call.name} {output.compact_json(call.args)} {dot} {call.call_id}"))
    return [(name, output.escape_line(value)) for name, value in rows if value]


def _message_bodies(message: Message, surface: Output) -> Iterator[tuple[str, str]]:
    """Yield the content, tool calls and tool results of a message, each with its style."""
    told, glyphs = message.to_dict(), surface.symbols
    # An OpenAI tool message says the same twice: as its content and as the result of its call.
    if told["content"] and not told["tool_results"]:
        yield _content_text(told["content"]), ""
    for call in told["tool_calls"]:
        yield output.escape_line(f"{glyphs.to} {call['name']} {output.compact_json(call.get('args', {}))}"), "cyan"
    for result in told["tool_results"]:
        value = result["result"]
        shown = value if isinstance(value, str) else output.compact_json(value)
        yield f"{glyphs.back} {shown}", "red" if result["is_error"] else "yellow"
