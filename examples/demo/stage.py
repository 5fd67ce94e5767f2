"""Shows the night: in colour and at a person's pace on a terminal, plainly in a pipe, not at all for JSON."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limpet.cli import output
from limpet.cli.output import Output, OutputMode
from limpet.cli.subcommands import context_command

if TYPE_CHECKING:
    from limpet.core.values.frame_state import Frame
    from limpet.core.windows.window import Window

Span = tuple[str, str]
"""A piece of text and its style."""

_STYLES = {"system": "magenta", "user": "green", "assistant": "cyan", "tool": "yellow"}
_TEXT_AT = 16
_WIDTH_MAX = 92
_PIPE_WIDTH = 80


class Stage:
    """Prints what happens as it happens."""

    def __init__(self, surface: Output, *, pace_s: float) -> None:
        self._surface = surface
        self._glyphs = surface.symbols
        self._pace_s = pace_s
        self._ringing = False

    def line(self, *spans: Span) -> None:
        """Print one line of styled pieces."""
        self._end_ringing()
        self._print(spans, "\n")

    def pause(self, times: float = 1.0) -> None:
        """Give a person time to read."""
        time.sleep(self._pace_s * times)

    def title(self, heading: str, below: str) -> None:
        """Begin."""
        self.line()
        self.line((f"  {heading}", "bold"))
        self.line((f"  {below}", "dim"))
        self.line()

    def chapter(self, heading: str) -> None:
        """Begin the next part."""
        self.line()
        self.line((f"  {heading}", "bold"))

    def named(self, name: str, value: str) -> None:
        """Print a name and its value."""
        self.line((f"  {name:<11}", "dim"), (output.escape_line(value), ""))

    def message(self, position: int, message: Mapping[str, Any], *, helper: bool = False) -> None:
        """Print a message of the conversation, or of a helper's."""
        role = str(message["role"])
        number = f"  {self._glyphs.dot:>2} " if helper else f"  {position:>2} "
        lead: list[Span] = [(number, "dim"), (f"{role:<11}", _STYLES[role])]
        if message["content"]:
            self._hanging(lead, str(message["content"]), "")
            lead = [(" " * _TEXT_AT, "")]
        for call in message["tool_calls"]:
            self._hanging(lead, f"{self._glyphs.to} {call['name']}({_args(call.get('args', {}))})", "cyan")
        for result in message["tool_results"]:
            value = result["result"]
            shown = value if isinstance(value, str) else json.dumps(value)
            style = "red" if result["is_error"] else "yellow"
            self._hanging(lead, f"{self._glyphs.back} {shown}", style)
            lead = [(" " * _TEXT_AT, "")]

    def stroke(self) -> None:
        """Let the bell be heard."""
        lead = "  " if self._ringing else " " * (_TEXT_AT + 2)
        self._ringing = True
        self._print([(f"{lead}dong", "bold yellow")], "")

    def countdown(self, words: str) -> None:
        """Count to the kill, if somebody is watching."""
        self.line()
        self._print([(f"  {words}", "bold red")], "")
        if self._pace_s:
            self._print([(" in", "red")], "")
            for number in "321":
                self._print([(f" {number}", "red")], "")
                self.pause(1.6)
        self._print([], "\n")

    def verdict(self, text: str, *, good: bool) -> None:
        """Print something that was checked."""
        mark, style = (self._glyphs.good, "green") if good else (self._glyphs.bad, "bold red")
        self._hanging([(f"  {mark} ", style)], text, "" if good else "red", at=4)

    def waiting(self, name: str, args: Mapping[str, Any], plan: str) -> None:
        """Print a call that has no result, and what will be done about it."""
        self._hanging([(f"  {self._glyphs.warn} ", "bold yellow")], f"{name}({_args(args)})", "yellow", at=4)
        self.line((f"    {plan}", "dim"))

    def account(self, frame: Frame) -> None:
        """Print what a frame may spend and what it has."""
        budget = frame.budget
        text = (
            f"{frame.scope.actor_id}, {frame.status}: {budget.used:,} of {budget.total:,} tokens used,"
            f" {budget.available():,} free"
        )
        self.named("frame", text)

    def window(self, window: Window) -> None:
        """Draw what a model sees, as `limpet context` does."""
        watched = self._surface.mode is OutputMode.TERMINAL
        width = min(self._surface.console.width, _WIDTH_MAX) if watched else _PIPE_WIDTH
        for text, style in context_command.window_bar(window, plain=self._surface.ascii, width=width):
            self.line((text, style))
        self.line((context_command.coverage_statement(window, self._glyphs), ""))

    def _hanging(self, lead: Sequence[Span], text: str, style: str, *, at: int = _TEXT_AT) -> None:
        first, *rest = self._wrapped(output.escape_line(text), at)
        self.line(*lead, (first, style))
        for more in rest:
            self.line((" " * at, ""), (more, style))

    def _wrapped(self, text: str, at: int) -> list[str]:
        if self._surface.mode is not OutputMode.TERMINAL:
            return [text]
        width = min(self._surface.console.width, _WIDTH_MAX) - at
        return textwrap.wrap(text, max(width, 20), break_on_hyphens=False) or [""]

    def _end_ringing(self) -> None:
        if self._ringing:
            self._ringing = False
            self._print([], "\n")

    def _print(self, spans: Sequence[Span], end: str) -> None:
        if self._surface.mode is OutputMode.PIPE:
            print("".join(text for text, _ in spans), end=end, flush=True)
        elif self._surface.mode is OutputMode.TERMINAL:
            from rich.text import Text

            self._surface.console.print(Text.assemble(*spans), end=end, soft_wrap=True)


def _args(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in args.items())
