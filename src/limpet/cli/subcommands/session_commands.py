"""`limpet sessions list` and `limpet sessions show`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet.cli import exit_codes, formatting, hints, output, target
from limpet.cli.options import CommonOptions
from limpet.cli.output import Output, OutputMode
from limpet.core.values.validation import thaw

if TYPE_CHECKING:
    from rich.text import Text

    from limpet.core.values.messages import Message
    from limpet.core.values.validation import Json
    from limpet.sessions.manager import Session
    from limpet.sessions.requests import Page


SESSION_COLUMNS = (
    "id", "user_id", "status", "message_count", "total_tokens", "pending_calls", "last_active", "title",
)  # fmt: skip
"""What a line of TSV holds, in order."""

_WIDE_TERMINAL = 100


@dataclass(frozen=True, kw_only=True)
class SessionListOptions:
    """Which sessions; every condition given must hold."""

    user: str | None = None
    status: str | None = None
    since: str | None = None
    until: str | None = None
    meta: Sequence[str] = ()
    limit: int = 50
    cursor: str | None = None


def list_sessions(wanted: SessionListOptions, common: CommonOptions) -> int:
    """Print one page of sessions."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    conditions = {
        "active_after": formatting.parse_moment("--since", wanted.since),
        "active_before": formatting.parse_moment("--until", wanted.until),
    }
    metadata = dict(_parse_metadata_pair(text) for text in wanted.meta)
    with target.open_store(common) as lp:
        page = lp.sessions.list_sessions(
            wanted.limit,
            cursor=wanted.cursor,
            user_id=wanted.user,
            status=wanted.status,
            active_after=conditions["active_after"],
            active_before=conditions["active_before"],
            metadata=metadata,
        )
    if surface.mode is OutputMode.JSON:
        surface.print_json({"sessions": list(page), "next_cursor": page.next_cursor})
        return exit_codes.DONE
    if surface.mode is OutputMode.PIPE:
        for row in page:
            surface.print_row(*(row[name] for name in SESSION_COLUMNS))
    else:
        _print_sessions(surface, page)
    if page.next_cursor is not None:
        surface.note(f"There are more: {_next_page_command(wanted, page.next_cursor, common)}")
    return exit_codes.DONE


def _next_page_command(wanted: SessionListOptions, cursor: str, common: CommonOptions) -> str:
    """Return the command that prints the next page."""
    given = [
        ("--user", wanted.user), ("--status", wanted.status), ("--since", wanted.since),
        ("--until", wanted.until), *(("--meta", pair) for pair in wanted.meta),
        ("--limit", wanted.limit), ("--cursor", cursor),
    ]  # fmt: skip
    words = [word for name, value in given if value for word in hints.option_words(name, value)]
    return hints.command_line("sessions list", *words, on=common.store_options)


def _parse_metadata_pair(text: str) -> tuple[str, Json]:
    """Read key=value; a number, true, false, null or a quoted text is taken as JSON."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.USAGE,
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


def _print_sessions(surface: Output, page: Page) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    if not page:
        surface.note("No session matches.")
        return
    headings = ["ID", "STATUS", ">MSGS", ">TOKENS", "ACTIVE", "TITLE"]
    rows = [
        [
            Text(output.escape_line(row["id"]), style="cyan"),
            Text(row["status"], style="" if row["status"] == "active" else "dim"),
            Text(f"{row['message_count']:,}"),
            Text(f"{row['total_tokens']:,}"),
            Text(formatting.relative_time(row["last_active"])),
            Text(output.escape_line(_title_cell(row, surface))),
        ]
        for row in page
    ]
    if surface.console.width < _WIDE_TERMINAL:
        del headings[3]
        for row in rows:
            del row[3]
    surface.print_table(headings, rows)


def _title_cell(row: dict[str, Json], surface: Output) -> str:
    waiting = row["pending_calls"]
    mark = f"{surface.symbols.warn} {formatting.quantity(waiting, 'open call')}" if waiting else ""
    shown = (mark, row["user_id"], row["title"])
    return f" {surface.symbols.dot} ".join(part for part in shown if part)


MESSAGES_SHOWN = 50
"""Messages that a terminal gets when no number is asked for."""


@dataclass(frozen=True, kw_only=True)
class ShownMessageRange:
    """Which of the messages: the first `limit`, the last `tail`, or all; raw is their bare text."""

    limit: int | None = None
    tail: int | None = None
    raw: bool = False
    force: bool = False


def show_session(reference: str, part: ShownMessageRange, common: CommonOptions) -> int:
    """Print a session."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    _check_range(part, common)
    with target.open_store(common) as lp:
        session = target.find_session(lp, reference)
        first, last = _shown_positions(part, session, surface, common)
        if part.raw:
            _print_raw(session, first, last)
        elif surface.mode is OutputMode.JSON:
            surface.print_json(_session_document(session, first, last))
        elif surface.mode is OutputMode.PIPE:
            for position, message in _read_messages(session, first, last):
                surface.print_row(
                    position, message.timestamp, message.role, _token_count(message), message.id, message_text(message)
                )  # fmt: skip
        else:
            _print_session(surface, session, first, last)
    return exit_codes.DONE


def _check_range(part: ShownMessageRange, common: CommonOptions) -> None:
    if part.limit is not None and part.tail is not None:
        raise exit_codes.CommandFailure(
            _usage_problem("--limit and --tail exclude each other.", "One counts from the start, the other from the end.", "Give one of them.")
        )  # fmt: skip
    if part.raw and common.json:
        raise exit_codes.CommandFailure(
            _usage_problem("--raw and --json exclude each other.", "Raw text is not JSON.", "Give one of them.")
        )  # fmt: skip
    if part.raw and sys.stdout.isatty() and not part.force:
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.UNSAFE,
                "raw_on_terminal",
                "--raw does not write to a terminal.",
                "Stored text can hold sequences that a terminal obeys.",
                "Send it to a file or a pipe, or add --force.",
            )
        )


def _usage_problem(what: str, why: str, then: str) -> exit_codes.CommandProblem:
    return exit_codes.CommandProblem(exit_codes.USAGE, "usage", what, why, then)


def _shown_positions(
    part: ShownMessageRange, session: Session, surface: Output, common: CommonOptions
) -> tuple[int, int]:
    """Return the positions to print, first and last, counted from 1."""
    tail, count = part.tail, session.message_count
    if tail is None and part.limit is None and surface.mode is OutputMode.TERMINAL and count > MESSAGES_SHOWN:
        tail = MESSAGES_SHOWN
        whole = hints.command_line("sessions show", "--limit", str(count), named=session.id, on=common.store_options)
        surface.note(f"The last {tail} of {count:,} messages; all of them: {whole}")
    if tail is not None:
        return max(1, count - tail + 1), count
    return 1, count if part.limit is None else min(count, part.limit)


def _read_messages(session: Session, first: int, last: int) -> Iterator[tuple[int, Message]]:
    messages = session.messages
    for start in range(first, last + 1, 256):
        chunk = messages[start - 1 : min(start + 255, last)]
        yield from enumerate(chunk, start)


def _token_count(message: Message) -> int:
    return message.fallback_estimate_tokens()


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
            {"position": position, "tokens_counted_or_estimated": _token_count(message), **message.to_dict()}
            for position, message in _read_messages(session, first, last)
        ],
    }  # fmt: skip


def _print_raw(session: Session, first: int, last: int) -> None:
    for _, message in _read_messages(session, first, last):
        print(_content_text(message.to_dict()["content"]))


def _content_text(content: Json) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else compact_json(content)


def compact_json(value: Json) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def message_text(message: Message) -> str:
    """Return what a message says and calls, as one text."""
    told = message.to_dict()
    parts = [_content_text(told["content"])]
    parts += [f"call {c['id']} {c['name']} {compact_json(c.get('args', {}))}" for c in told["tool_calls"]]
    parts += [f"result {r['tool_call_id']} {compact_json(r['result'])}" for r in told["tool_results"]]
    return " ".join(part for part in parts if part)


def _print_session(surface: Output, session: Session, first: int, last: int) -> None:
    from rich.padding import Padding  # noqa: PLC0415 - only a terminal pays for rich
    from rich.text import Text  # noqa: PLC0415

    console = surface.console
    surface.print_facts(_heading_facts(session, surface))
    for position, message in _read_messages(session, first, last):
        console.print()
        head = Text(f"#{position:<4}", style="dim")
        head.append(f"{message.role:<10}", style=_ROLE_STYLES[message.role])
        head.append(f" {message.timestamp[11:19]}  {_token_count(message):,} tokens", style="dim")
        console.print(head)
        for body in _message_bodies(message, surface):
            console.print(Padding(body, (0, 0, 0, 5)))
    console.print()


_ROLE_STYLES = {"system": "bold magenta", "user": "bold green", "assistant": "bold cyan", "tool": "bold yellow"}


def _heading_facts(session: Session, surface: Output) -> list[tuple[str, str]]:
    dot, state = surface.symbols.dot, session.state
    reset = f" {dot} reset {session.generation} times" if session.generation else ""
    rows = [
        ("session", session.id),
        ("title", session.title or state.preview or ""),
        ("user", session.user_id or ""),
        ("status", f"{session.status} {dot} last active {formatting.relative_time(session.last_active)}{reset}"),
        (
            "holds",
            f"{formatting.quantity(session.message_count, 'message')} {dot}"
            f" {formatting.quantity(session.total_tokens, 'token')} {dot} version {session.version:,}",
        ),
    ]
    if state.metadata:
        rows.append(("metadata", compact_json(thaw(state.metadata))))
    rows += [
        (name.replace("_", " "), str(value))
        for name, value in _session_links(session).items()
        if value and name != "continuation_index"
    ]
    for call in session.pending_calls():
        rows.append(("waits for", f"{call.name} {compact_json(call.args)} {dot} {call.call_id}"))
    return [(name, output.escape_line(value)) for name, value in rows if value]


def _message_bodies(message: Message, surface: Output) -> Iterator[Text]:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    told, glyphs = message.to_dict(), surface.symbols
    results = told["tool_results"]
    # An OpenAI tool message says the same twice: as its content and as the result of its call.
    if told["content"] and not results:
        yield Text(output.escape_text(_content_text(told["content"])))
    for call in told["tool_calls"]:
        shown = f"{glyphs.to} {call['name']} {compact_json(call.get('args', {}))}"
        yield Text(output.escape_line(shown), style="cyan")
    for result in results:
        style = "red" if result["is_error"] else "yellow"
        value = result["result"]
        shown = value if isinstance(value, str) else compact_json(value)
        yield Text(f"{glyphs.back} {output.escape_text(shown)}", style=style)
