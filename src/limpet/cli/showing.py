"""`limpet sessions show`: one session with its messages, its open calls and its links."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet.cli import again, exits, figures, references, target, visible
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values.json_values import thaw

if TYPE_CHECKING:
    from rich.text import Text

    from limpet.core.values.json_values import Json
    from limpet.core.values.messages import Message
    from limpet.sessions.manager import Session

SCREENFUL = 50
"""Messages that a terminal gets when no number is asked for."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Which of the messages: the first `limit`, the last `tail`, or all; raw is their bare text."""

    limit: int | None = None
    tail: int | None = None
    raw: bool = False
    force: bool = False


def run(reference: str, part: Part, common: Common) -> int:
    """Print a session."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    _check(part, common)
    with target.opened(common) as lp:
        session = references.session(lp, reference)
        first, last = _range(part, session, surface, common)
        if part.raw:
            _write_raw(session, first, last)
        elif surface.face is Face.JSON:
            surface.document(_document(session, first, last))
        elif surface.face is Face.PIPE:
            for position, message in _messages(session, first, last):
                surface.row(
                    position, message.timestamp, message.role, _tokens(message), message.id, flat(message)
                )  # fmt: skip
        else:
            _show(surface, session, first, last)
    return exits.DONE


def _check(part: Part, common: Common) -> None:
    if part.limit is not None and part.tail is not None:
        raise exits.Failure(
            _misuse("--limit and --tail exclude each other.", "One counts from the start, the other from the end.", "Give one of them.")
        )  # fmt: skip
    if part.raw and common.json:
        raise exits.Failure(
            _misuse("--raw and --json exclude each other.", "Raw text is not JSON.", "Give one of them.")
        )  # fmt: skip
    if part.raw and sys.stdout.isatty() and not part.force:
        raise exits.Failure(
            exits.Problem(
                exits.UNSAFE,
                "raw_on_terminal",
                "--raw does not write to a terminal.",
                "Stored text can hold sequences that a terminal obeys.",
                "Send it to a file or a pipe, or add --force.",
            )
        )


def _misuse(what: str, why: str, then: str) -> exits.Problem:
    return exits.Problem(exits.USAGE, "usage", what, why, then)


def _range(part: Part, session: Session, surface: Surface, common: Common) -> tuple[int, int]:
    """Return the positions to print, first and last, counted from 1."""
    tail, count = part.tail, session.message_count
    if tail is None and part.limit is None and surface.face is Face.TERMINAL and count > SCREENFUL:
        tail = SCREENFUL
        whole = again.command(
            "sessions show", "--limit", str(count), named=session.id, on=common.on
        )
        surface.note(f"The last {tail} of {count:,} messages; all of them: {whole}")
    if tail is not None:
        return max(1, count - tail + 1), count
    return 1, count if part.limit is None else min(count, part.limit)


def _messages(session: Session, first: int, last: int) -> Iterator[tuple[int, Message]]:
    messages = session.messages
    for start in range(first, last + 1, 256):
        chunk = messages[start - 1 : min(start + 255, last)]
        yield from enumerate(chunk, start)


def _tokens(message: Message) -> int:
    return message.fallback_estimate_tokens()


def _links(session: Session) -> dict[str, Json]:
    state = session.state
    return {
        "continued_from": state.continued_from,
        "continued_to": state.continued_to,
        "continuation_index": state.continuation_index,
        "root": state.root_id,
    }


def _document(session: Session, first: int, last: int) -> Json:
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
        "links": _links(session),
        "pending_calls": [
            {"call_id": call.call_id, "message_id": call.message_id, "name": call.name, "args": call.args}
            for call in session.pending_calls()
        ],
        "first": first,
        "last": last,
        "messages": [
            {"position": position, "tokens_counted_or_estimated": _tokens(message), **message.to_dict()}
            for position, message in _messages(session, first, last)
        ],
    }  # fmt: skip


def _write_raw(session: Session, first: int, last: int) -> None:
    for _, message in _messages(session, first, last):
        print(_content(message.to_dict()["content"]))


def _content(content: Json) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else compact(content)


def compact(value: Json) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def flat(message: Message) -> str:
    """Return what a message says and calls, as one text."""
    told = message.to_dict()
    parts = [_content(told["content"])]
    parts += [
        f"call {c['id']} {c['name']} {compact(c.get('args', {}))}" for c in told["tool_calls"]
    ]
    parts += [f"result {r['tool_call_id']} {compact(r['result'])}" for r in told["tool_results"]]
    return " ".join(part for part in parts if part)


def _show(surface: Surface, session: Session, first: int, last: int) -> None:
    from rich.padding import Padding  # noqa: PLC0415 - only a terminal pays for rich
    from rich.text import Text  # noqa: PLC0415

    console = surface.console
    surface.facts(_heading(session, surface))
    for position, message in _messages(session, first, last):
        console.print()
        head = Text(f"#{position:<4}", style="dim")
        head.append(f"{message.role:<10}", style=_STYLES[message.role])
        head.append(f" {message.timestamp[11:19]}  {_tokens(message):,} tokens", style="dim")
        console.print(head)
        for body in _bodies(message, surface):
            console.print(Padding(body, (0, 0, 0, 5)))
    console.print()


_STYLES = {
    "system": "bold magenta",
    "user": "bold green",
    "assistant": "bold cyan",
    "tool": "bold yellow",
}


def _heading(session: Session, surface: Surface) -> list[tuple[str, str]]:
    dot, state = surface.glyphs.dot, session.state
    reset = f" {dot} reset {session.generation} times" if session.generation else ""
    rows = [
        ("session", session.id),
        ("title", session.title or state.preview or ""),
        ("user", session.user_id or ""),
        ("status", f"{session.status} {dot} last active {figures.ago(session.last_active)}{reset}"),
        (
            "holds",
            f"{figures.count(session.message_count, 'message')} {dot}"
            f" {figures.count(session.total_tokens, 'token')} {dot} version {session.version:,}",
        ),
    ]
    if state.metadata:
        rows.append(("metadata", compact(thaw(state.metadata))))
    rows += [
        (name.replace("_", " "), str(value))
        for name, value in _links(session).items()
        if value and name != "continuation_index"
    ]
    for call in session.pending_calls():
        rows.append(("waits for", f"{call.name} {compact(call.args)} {dot} {call.call_id}"))
    return [(name, visible.line(value)) for name, value in rows if value]


def _bodies(message: Message, surface: Surface) -> Iterator[Text]:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    told, glyphs = message.to_dict(), surface.glyphs
    results = told["tool_results"]
    # An OpenAI tool message says the same twice: as its content and as the result of its call.
    if told["content"] and not results:
        yield Text(visible.lines(_content(told["content"])))
    for call in told["tool_calls"]:
        shown = f"{glyphs.to} {call['name']} {compact(call.get('args', {}))}"
        yield Text(visible.line(shown), style="cyan")
    for result in results:
        style = "red" if result["is_error"] else "yellow"
        value = result["result"]
        shown = value if isinstance(value, str) else compact(value)
        yield Text(f"{glyphs.back} {visible.lines(shown)}", style=style)
