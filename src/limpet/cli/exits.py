"""Exit codes: one table from kinds of error to codes, and the three lines that each error prints.

What happened; why, with numbers; what to type next. The codes are API: they do not change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, cast

from limpet import errors
from limpet.cli import again, visible

DONE, FAILED, USAGE, NOT_FOUND = 0, 1, 2, 3
CONFLICT, OVER_BUDGET, DAMAGE, UNSAFE, UNAVAILABLE = 5, 6, 7, 8, 9
INTERRUPTED, PIPE_CLOSED = 130, 141

MEANINGS: Final[Mapping[int, str]] = {
    DONE: "done",
    FAILED: "failed, or a claim of the demo did not hold",
    USAGE: "wrong usage",
    NOT_FOUND: "not found: no such store, session, message, fact, frame or suspension",
    4: "not authenticated or not allowed (a service; not used yet)",
    CONFLICT: "conflict: someone else was first; read again, then repeat",
    OVER_BUDGET: "over budget: what must be in a context does not fit",
    DAMAGE: "damage found: stored data, or a file to import, is not what was written",
    UNSAFE: "refused for safety: not a store, a newer one, a target that exists",
    UNAVAILABLE: "the store is busy, full, read-only or away; repeating is safe",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "the reader of the pipe went away",
}


_VERIFY: Final = "`limpet verify`"


class Problem(NamedTuple):
    """What an error says and how the command ends for it.

    `command` is what to type next, its words and its options; `named` is what it is about, and `on`
    leads it to the same store.
    """

    exit: int
    code: str
    what: str
    why: str
    next: str
    facts: Mapping[str, object] = errors.NO_FACTS
    command: Sequence[str] = ()
    on: Sequence[str] = ()
    named: str = ""

    def then(self) -> str:
        """Return what to do next; a command in it can be typed as it is."""
        told = self.next
        if self.on and _VERIFY in told:
            told = told.replace(_VERIFY, f"`{again.command('verify', on=self.on)}`")
        if not self.command:
            return told
        words, *options = self.command
        return f"{told} {again.command(words, *options, named=self.named, on=self.on)}".lstrip()

    def text(self, indent: str = "       ") -> str:
        """Return the three lines for people."""
        parts = (self.what, self._numbers(), f"{self.then()}  (exit {self.exit})")
        return "error: " + f"\n{indent}".join(visible.line(part) for part in parts)

    def _numbers(self) -> str:
        told = f"{self.what} {self.why} {self.then()}"
        shown = [
            f"{name.replace('_', ' ')} {_shown(value)}"
            for name, value in self.facts.items()
            if isinstance(value, str | int | float)
            and not isinstance(value, bool)
            and _shown(value) not in told
        ]
        return f"{self.why} ({', '.join(shown)})" if shown else self.why

    def problem_json(self) -> str:
        """Return one line of problem+json."""
        document = {
            "type": f"urn:limpet:error:{self.code}",
            "title": visible.line(self.what),
            "detail": visible.line(self.why),
            "next": visible.line(self.then()),
            "code": self.code,
            "exit_code": self.exit,
            "facts": {key: _plain(value) for key, value in self.facts.items()},
        }
        return json.dumps(document)


class Failure(Exception):
    """The command can't go on, for a reason of the command line's own."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


class _Rule(NamedTuple):
    exit: int
    why: str
    next: str
    command: Sequence[str] = ()


TABLE: Final[Mapping[type[errors.Error], _Rule]] = {
    errors.NotFound: _Rule(
        NOT_FOUND,
        "Give a whole id, any unique beginning of one, or @last.",
        "",
        ("sessions list",),
    ),
    errors.MessageNotFound: _Rule(
        NOT_FOUND, "Messages are numbered within their session.", "", ("sessions list",)
    ),
    errors.FrameNotFound: _Rule(
        NOT_FOUND,
        "Give a whole id, any unique beginning of one, or @last.",
        "",
        ("frames list", "--all"),
    ),
    errors.ToolNotFound: _Rule(
        NOT_FOUND, "A frame lists the tools that are not through.", "", ("frames list",)
    ),
    errors.SuspensionNotFound: _Rule(
        NOT_FOUND,
        "Give a whole id, any unique beginning of one, or @last.",
        "",
        ("suspensions list", "--all"),
    ),
    errors.Conflict: _Rule(
        CONFLICT, "Someone else was first; nothing was changed.", "Read again, then repeat."
    ),
    errors.InvalidRequest: _Rule(USAGE, "Nothing was done.", "limpet --help"),
    errors.ContextOverflow: _Rule(OVER_BUDGET, "No window was made.", "Raise --budget."),
    errors.UnknownScheme: _Rule(USAGE, "Nothing was opened.", "limpet help environment"),
    errors.NotInstalled: _Rule(USAGE, "Nothing was opened.", "Install what is missing."),
    errors.UnsafeStore: _Rule(
        UNSAFE, "Refused, so that nothing can be lost.", "Choose another place."
    ),
    errors.NotAStore: _Rule(UNSAFE, "It was left as it is.", "Choose another path."),
    errors.NewerStore: _Rule(
        UNSAFE, "It was left as it is.", "In an up-to-date clone of Limpet: pip install ."
    ),
    errors.DamagedFile: _Rule(
        DAMAGE, "Nothing of it was written.", "Export again, or copy the file again."
    ),
    errors.Refused: _Rule(FAILED, "The rules forbid it; nothing was changed.", "limpet --help"),
    errors.Unavailable: _Rule(
        UNAVAILABLE, "What was acknowledged before is safe.", "Repeat the command."
    ),
    errors.Corrupt: _Rule(
        DAMAGE,
        "Stored data is not what was written.",
        "",
        ("verify",),
    ),
    errors.EventsLost: _Rule(
        DAMAGE,
        "Nothing was changed; what is there now is whole.",
        "Bring a fuller copy back, or repeat the command.",
    ),
    errors.Error: _Rule(FAILED, "Nothing more is known.", "limpet --help"),
}
"""The nearest ancestor of an error's class decides."""


def of_error(error: errors.Error) -> Problem:
    """Return how the command ends for one of the engine's errors."""
    rule = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    code = UNSAFE if "exists" in error.facts else rule.exit
    why = _effect(error) or rule.why
    if error.hint:
        then = error.hint.replace(errors.RETRY_HINT, "Repeat the command.")
        return Problem(code, error.code, error.message, why, then, error.facts)
    then = rule.next
    if then.startswith("limpet "):
        then = again.program() + then.removeprefix("limpet")
    return Problem(code, error.code, error.message, why, then, error.facts, rule.command)


def _effect(error: errors.Error) -> str:
    """Return what was done before an error, where it says so; its kind tells what is so of all of its kind."""
    receipt = error.facts.get("receipt")
    if isinstance(receipt, dict):
        told = cast("dict[str, object]", receipt)
        return (
            f"It is erased for every reader (receipt {told['id']}), but traces are left in files."
        )
    return ""


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return visible.line(value)
    return value if isinstance(value, int | float | bool | None) else visible.line(str(value))
