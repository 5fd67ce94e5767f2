"""Exit codes, and the text of error messages.

An error prints three lines: what happened, why, and what to type next. With --json it prints one
line of problem+json. The codes are part of the API: they do not change.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, cast

from limpet import errors
from limpet.cli import hints, output

DONE, FAILED, USAGE, NOT_FOUND = 0, 1, 2, 3
CONFLICT, OVER_BUDGET, DAMAGE, UNSAFE, UNAVAILABLE = 5, 6, 7, 8, 9
INTERRUPTED, PIPE_CLOSED = 130, 141

EXIT_CODE_MEANINGS: Final[Mapping[int, str]] = {
    DONE: "done",
    FAILED: "failed, or a claim of the demo did not hold",
    USAGE: "wrong usage, or a library that is needed is not installed",
    NOT_FOUND: "not found: no such store, session, message, fact, frame or suspension",
    4: "not authenticated or not allowed (a service; not used yet)",
    CONFLICT: "conflict: another writer was first; read again, then repeat",
    OVER_BUDGET: "over budget: the messages that a context must have do not fit",
    DAMAGE: "damage found: stored data, or a file to import, was changed or is incomplete",
    UNSAFE: "refused for safety: not a store, a store of a newer version, or a target that exists",
    UNAVAILABLE: "the store is busy, full, read-only or away; repeating is safe",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "the reader of the pipe closed it",
}


_VERIFY_COMMAND: Final = "`limpet verify`"


class CommandProblem(NamedTuple):
    """The text of an error, and the exit code.

    `command` is the command to type next: its words, then its options. `subject` is its argument;
    `store_options` name the store.
    """

    exit: int
    code: str
    what: str
    why: str
    next: str
    facts: Mapping[str, object] = errors.NO_FACTS
    command: Sequence[str] = ()
    store_options: Sequence[str] = ()
    subject: str = ""

    def next_step(self) -> str:
        """Return the next step. A command in it can be typed as it is printed."""
        told = self.next
        if self.store_options and _VERIFY_COMMAND in told:
            told = told.replace(_VERIFY_COMMAND, f"`{hints.command_line('verify', on=self.store_options)}`")
        if not self.command:
            return told
        words, *options = self.command
        return f"{told} {hints.command_line(words, *options, named=self.subject, on=self.store_options)}".lstrip()

    def text(self, indent: str = "       ") -> str:
        """Return the error as three lines of plain text."""
        parts = (self.what, self._why_with_facts(), f"{self.next_step()}  (exit {self.exit})")
        return "error: " + f"\n{indent}".join(output.escape_line(part) for part in parts)

    def _why_with_facts(self) -> str:
        told = f"{self.what} {self.why} {self.next_step()}"
        shown = [
            f"{name.replace('_', ' ')} {_format_fact(value)}"
            for name, value in self.facts.items()
            if isinstance(value, str | int | float) and not isinstance(value, bool) and _format_fact(value) not in told
        ]
        return f"{self.why} ({', '.join(shown)})" if shown else self.why

    def problem_json(self) -> str:
        """Return one line of problem+json."""
        document = {
            "type": f"urn:limpet:error:{self.code}",
            "title": output.escape_line(self.what),
            "detail": output.escape_line(self.why),
            "next": output.escape_line(self.next_step()),
            "code": self.code,
            "exit_code": self.exit,
            "facts": {key: _json_safe(value) for key, value in self.facts.items()},
        }
        return json.dumps(document)


class CommandFailure(Exception):
    """The command line itself found a reason to end the command."""

    def __init__(self, problem: CommandProblem) -> None:
        super().__init__(problem.what)
        self.problem = problem


def failure(
    exit_code: int,
    code: str,
    what: str,
    why: str,
    next_step: str,
    *,
    facts: Mapping[str, object] = errors.NO_FACTS,
    command: Sequence[str] = (),
    subject: str = "",
) -> CommandFailure:
    """Return the exception that ends a command with a problem. The parameters are the fields of `CommandProblem`."""
    return CommandFailure(
        CommandProblem(exit_code, code, what, why, next_step, facts, command=command, subject=subject)
    )


def usage_failure(what: str, next_step: str, why: str = "Nothing was done.", code: str = "usage") -> CommandFailure:
    """Return the exception for arguments that a command does not accept."""
    return failure(USAGE, code, what, why, next_step)


class _ErrorRule(NamedTuple):
    exit: int
    why: str
    next: str
    command: Sequence[str] = ()


ERROR_RULES: Final[Mapping[type[errors.Error], _ErrorRule]] = {
    errors.NotFound: _ErrorRule(
        NOT_FOUND, "Give a whole id, a unique prefix of an id, or @last.", "", ("sessions list",)
    ),
    errors.MessageNotFound: _ErrorRule(
        NOT_FOUND, "Messages are numbered within their session.", "", ("sessions list",)
    ),
    errors.FrameNotFound: _ErrorRule(
        NOT_FOUND, "Give a whole id, a unique prefix of an id, or @last.", "", ("frames list", "--all")
    ),
    errors.ToolNotFound: _ErrorRule(NOT_FOUND, "A frame lists the tools that are in progress.", "", ("frames list",)),
    errors.SuspensionNotFound: _ErrorRule(
        NOT_FOUND, "Give a whole id, a unique prefix of an id, or @last.", "", ("suspensions list", "--all")
    ),
    errors.Conflict: _ErrorRule(CONFLICT, "Another writer was first; nothing was changed.", "Read again, then repeat."),
    errors.InvalidRequest: _ErrorRule(USAGE, "Nothing was done.", "limpet --help"),
    errors.ContextOverflow: _ErrorRule(OVER_BUDGET, "No window was made.", "Raise --budget."),
    errors.UnknownScheme: _ErrorRule(USAGE, "Nothing was opened.", "limpet help environment"),
    errors.NotInstalled: _ErrorRule(USAGE, "Nothing was opened.", "Install what is missing."),
    errors.UnsafeStore: _ErrorRule(UNSAFE, "Refused, so that nothing can be lost.", "Choose another place."),
    errors.NotAStore: _ErrorRule(UNSAFE, "Nothing was changed.", "Choose another path."),
    errors.NewerStore: _ErrorRule(UNSAFE, "Nothing was changed.", "In an up-to-date clone of Limpet: pip install ."),
    errors.DamagedFile: _ErrorRule(
        DAMAGE, "Nothing from the file was imported.", "Export again, or copy the file again."
    ),
    errors.Refused: _ErrorRule(FAILED, "The request breaks a rule; nothing was changed.", "limpet --help"),
    errors.Unavailable: _ErrorRule(UNAVAILABLE, "Data that was acknowledged before is safe.", "Repeat the command."),
    errors.Corrupt: _ErrorRule(DAMAGE, "Stored data is not what was written.", "", ("verify",)),
    errors.EventsLost: _ErrorRule(
        DAMAGE,
        "Nothing was changed; the events that are there are undamaged.",
        "Restore a more recent copy, or repeat the command.",
    ),
    errors.Error: _ErrorRule(FAILED, "No further detail is known.", "limpet --help"),
}
"""The rule of the nearest ancestor of an error's class applies."""


def problem_of(error: Exception) -> CommandProblem:
    """Return the text and the exit code for an exception."""
    if isinstance(error, CommandFailure):
        return error.problem
    if isinstance(error, errors.Error):
        return _engine_problem(error)
    return _system_problem(error) if isinstance(error, OSError) else _defect_problem(error)


def _engine_problem(error: errors.Error) -> CommandProblem:
    rule = next(ERROR_RULES[kind] for kind in type(error).__mro__ if kind in ERROR_RULES)
    code = UNSAFE if "exists" in error.facts else rule.exit
    why = _partial_effect(error) or rule.why
    if error.hint:
        then = error.hint.replace(errors.RETRY_HINT, "Repeat the command.")
        return CommandProblem(code, error.code, error.message, why, then, error.facts)
    then = rule.next
    if then.startswith("limpet "):
        then = hints.program_name() + then.removeprefix("limpet")
    return CommandProblem(code, error.code, error.message, why, then, error.facts, rule.command)


def _system_problem(error: OSError) -> CommandProblem:
    about = f" ({error.filename})" if error.filename else ""
    return CommandProblem(
        FAILED,
        "system",
        f"the system refused: {error.strerror or error}{about}.",
        f"The operating system reported error {error.errno}.",
        "Remove the cause, then repeat the command.",
    )


def _defect_problem(error: Exception) -> CommandProblem:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return CommandProblem(
        FAILED,
        "defect",
        f"this should not happen: {type(error).__name__}: {error}",
        f"This is a bug in Limpet, in {place.name} ({Path(place.filename).name}:{place.lineno}).",
        "Set LIMPET_DEBUG=1 to print the traceback, and report it.",
    )


def _partial_effect(error: errors.Error) -> str:
    """Return what an erasure had done before it failed; empty if the error has no receipt."""
    receipt = error.facts.get("receipt")
    if isinstance(receipt, dict):
        told = cast("dict[str, object]", receipt)
        return f"The data is erased for every reader (receipt {told['id']}), but traces are left in files."
    return ""


def _format_fact(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _json_safe(value: object) -> object:
    if isinstance(value, str):
        return output.escape_line(value)
    return value if isinstance(value, int | float | bool | None) else output.escape_line(str(value))
