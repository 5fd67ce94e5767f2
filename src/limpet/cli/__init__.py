"""The `limpet` command: runs a command line and turns its result or its error into an exit code.

`program` registers the commands, `subcommands` implements them, and `output` prints their results.
cyclopts and rich are the extra `cli`. They are imported only where they are needed, because the command must start quickly.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from limpet import errors
from limpet.cli import exit_codes, hints

if TYPE_CHECKING:
    from cyclopts import App

    app: App


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. `limpet help exit-codes` lists the codes."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return run_guarded(lambda: _run(given), as_json="--json" in given)


def _run(arguments: Sequence[str]) -> int:
    if missing := [name for name in ("cyclopts", "rich") if find_spec(name) is None]:
        raise exit_codes.failure(
            exit_codes.USAGE,
            errors.NotInstalled.code,
            f"the command line needs {' and '.join(missing)}: not installed.",
            "Limpet was installed without its extra cli. Nothing was done.",
            "In a clone of Limpet: pip install '.[cli]'",
        )
    if arguments in ([], ["--help"], ["-h"], ["help"]):
        print(hints.FIRST_SCREEN)
        return exit_codes.DONE
    from limpet.cli import program  # noqa: PLC0415 - cyclopts is slow to import

    return program.dispatch(arguments)


def run_guarded(body: Callable[[], int | None], *, as_json: bool) -> int:
    """Run the body. Return its exit code, or the exit code of the error that ended it."""
    _escape_unencodable_output()
    try:
        code = body() or exit_codes.DONE
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _end_interrupted()
    except BrokenPipeError:
        _redirect_stdout_to_null()
        return exit_codes.PIPE_CLOSED
    except Exception as error:  # noqa: BLE001 - the outermost handler reports every error
        if isinstance(error, OSError):
            _redirect_stdout_to_null()
        elif not isinstance(error, exit_codes.CommandFailure | errors.Error):
            if _caused_by_interrupt(error):
                return _end_interrupted()
            if os.environ.get("LIMPET_DEBUG"):
                traceback.print_exception(error)
        problem = exit_codes.problem_of(error)
        _print_to_stderr(problem.problem_json() if as_json else problem.text())
        return problem.exit
    return code


def _end_interrupted() -> int:
    _print_to_stderr("interrupted.")
    return exit_codes.INTERRUPTED


def _caused_by_interrupt(error: BaseException) -> bool:
    """Whether a KeyboardInterrupt led to this error: inside the interpreter's own locks it surfaces as another error."""
    before = error.__context__
    return isinstance(before, KeyboardInterrupt) or (before is not None and _caused_by_interrupt(before))


def _escape_unencodable_output() -> None:
    """Escape characters that the encoding of the terminal lacks: printing them would raise UnicodeEncodeError."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _redirect_stdout_to_null() -> None:
    """Redirect stdout to the null device: the flush at the end of the process would fail again and print a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_to_stderr(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr)


def __getattr__(name: str) -> App:
    if name == "app":
        from limpet.cli import program  # noqa: PLC0415 - cyclopts is slow to import

        return program.app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
