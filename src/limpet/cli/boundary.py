"""The edge of the command line: parses, runs, and turns whatever is raised into lines and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from limpet import errors
from limpet.cli import exits


def run(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the command they name."""

    def body() -> int:
        from limpet.cli import program  # noqa: PLC0415 - cyclopts is slow to import

        return program.dispatch(arguments)

    return guarded(body, as_json="--json" in arguments)


def guarded(body: Callable[[], int | None], *, as_json: bool) -> int:
    """Run the body; return its exit code, or that of the error it ended with."""
    _write_anything()
    try:
        code = body() or exits.DONE
        sys.stdout.flush()
    except exits.Failure as failure:
        return _tell(failure.problem, as_json=as_json)
    except errors.Error as error:
        return _tell(exits.of_error(error), as_json=as_json)
    except KeyboardInterrupt:
        _say("interrupted.")
        return exits.INTERRUPTED
    except BrokenPipeError:
        _leave_stdout()
        return exits.PIPE_CLOSED
    except OSError as error:
        _leave_stdout()
        return _tell(_system(error), as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the boundary: nobody above could tell the user
        if _interrupted(error):
            _say("interrupted.")
            return exits.INTERRUPTED
        return _tell(_defect(error), as_json=as_json)
    return code


def _interrupted(error: BaseException) -> bool:
    """Whether an error is what became of an interrupt: one can come amid the interpreter's own locks."""
    before = error.__context__
    return isinstance(before, KeyboardInterrupt) or (before is not None and _interrupted(before))


def _write_anything() -> None:
    """Let no character of a stored text stop the output where the terminal's encoding is poor."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _leave_stdout() -> None:
    """Let the interpreter's last flush go nowhere: it would fail once more, and loudly."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _system(error: OSError) -> exits.Problem:
    about = f" ({error.filename})" if error.filename else ""
    return exits.Problem(
        exits.FAILED,
        "system",
        f"the system refused: {error.strerror or error}{about}.",
        f"It is error {error.errno} of the operating system.",
        "Free or mend what it names, then repeat the command.",
    )


def _tell(problem: exits.Problem, *, as_json: bool) -> int:
    _say(problem.problem_json() if as_json else problem.text())
    return problem.exit


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr)


def _defect(error: Exception) -> exits.Problem:
    if os.environ.get("LIMPET_DEBUG"):
        traceback.print_exception(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return exits.Problem(
        exits.FAILED,
        "defect",
        f"this should not happen: {type(error).__name__}: {error}",
        f"It is a defect of Limpet, in {place.name} ({Path(place.filename).name}:{place.lineno}).",
        "LIMPET_DEBUG=1 shows the whole trace; please report it.",
    )
