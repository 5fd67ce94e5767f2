"""Traces five calls on a SQLite store, and writes the modules that each crosses to docs/internals/walk.md.

A module of `limpet` is crossed if one of its functions runs during the call. What runs because a module is
imported meanwhile does not count. Without arguments the page is written again and the numbers are printed;
`--list` prints every function that ran, too.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import functools
import io
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

import limpet
from limpet import Message, Scope, TokenBudget, cli

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "internals" / "walk.md"
PACKAGE = Path(limpet.__file__).parent

HEAD = """\
# Five calls, step by step

Which modules of `limpet` a call crosses, in the order in which it first reaches them, with the function that it
enters there. `scripts/walk.py` writes this page from a trace on a SQLite store; a test compares the two.
"""


@dataclasses.dataclass(frozen=True)
class Step:
    """The first call into a module."""

    module: str
    function: str
    line: str


@dataclasses.dataclass(frozen=True)
class Walk:
    """A traced call: how many modules it may cross, and those that it crosses."""

    title: str
    about: str
    limit: int
    steps: list[Step]
    functions: list[str]


class Trace:
    """Notes the functions of the package that run, in all threads, but not those that an import runs."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []
        self._seen: set[CodeType] = set()
        self._imports = threading.local()

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code.co_name == "<module>" and event in {"call", "return"}:
            depth = getattr(self._imports, "depth", 0)
            self._imports.depth = max(0, depth + (1 if event == "call" else -1))
        elif event == "call" and code not in self._seen and not getattr(self._imports, "depth", 0):
            self._seen.add(code)
            if code.co_filename.startswith(str(PACKAGE)) and not is_class_body(code):
                self.codes.append(code)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def is_class_body(code: CodeType) -> bool:
    return not code.co_flags & 1  # CO_OPTIMIZED: set for functions


def module_name(code: CodeType) -> str:
    path = Path(code.co_filename).relative_to(PACKAGE.parent)
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def first_lines(filename: str) -> dict[int, str]:
    """Return the first docstring line of each function of a file by its line, and the module's as line 0."""
    tree = ast.parse(Path(filename).read_text(encoding="utf-8"))
    lines = {0: first_line(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines[start] = first_line(node)
    return lines


def first_line(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def steps(codes: list[CodeType]) -> list[Step]:
    """Return the first function with a docstring of each module, or its first function, in order of arrival."""
    by_module: dict[str, list[CodeType]] = {}
    for code in codes:
        by_module.setdefault(module_name(code), []).append(code)
    return [make_step(module, entered) for module, entered in by_module.items()]


def make_step(module: str, entered: list[CodeType]) -> Step:
    lines = first_lines(entered[0].co_filename)
    named = [code for code in entered if not code.co_name.startswith("<")] or entered
    code = next((code for code in named if lines.get(code.co_firstlineno)), named[0])
    name = code.co_qualname.replace("<locals>.", "").replace("<lambda>", "lambda")
    return Step(module, name, lines.get(code.co_firstlineno) or lines[0])


def walk(title: str, about: str, limit: int, call: Callable[[], object]) -> Walk:
    trace = Trace()
    with trace.running():
        call()
    functions = [f"{module_name(code)}:{code.co_qualname}" for code in trace.codes]
    return Walk(title, about, limit, steps(trace.codes), functions)


def walks() -> Iterator[Walk]:
    with tempfile.TemporaryDirectory(prefix="limpet-walk-") as folder:
        path = Path(folder) / "state.db"
        with limpet.connect(path) as lp:
            yield from walks_through(lp)
        yield walk_through_command(path)


def walks_through(lp: limpet.Limpet) -> Iterator[Walk]:
    session = lp.sessions.create_session("trip", user_id="ada", system="You plan trips.")
    session.add_message(Message(role="user", content="Find me a flight to Oslo."))
    message = Message(role="assistant", content="There is one at nine.")
    yield walk(
        "`session.add_message(message)`",
        "From the call to the disk: a message of a session that is open.",
        18,
        lambda: session.add_message(message),
    )
    session.window(budget=8_000)
    yield walk(
        "`session.window(budget=8_000)`",
        "The window of a session that is in memory.",
        12,
        lambda: session.window(budget=8_000),
    )
    scope = Scope(actor_id="planner", session_id="trip")
    root = lp.index.push_frame(scope, goal="plan the trip", budget=TokenBudget(total=8_000))
    yield walk(
        "`lp.index.push_frame(…)`",
        "A child frame that takes its tokens from its parent.",
        18,
        lambda: lp.index.push_frame(
            scope, parent_frame_id=root.frame_id, goal="compare flights", budget=TokenBudget(total=3_000)
        ),
    )
    other = lp.sessions.create_session("other", user_id="grace", system="You plan trips.")
    other.add_message(Message(role="user", content="My name is Grace. I like trains."))
    other.add_message(Message(role="assistant", content="Noted."))
    lp.sessions.end_session("other")
    lp.worker().run_once()
    yield walk(
        "`lp.memory.forget(user_id)`",
        "A user with one ended session, whose facts are in long-term memory.",
        30,
        lambda: lp.memory.forget("grace"),
    )


def walk_through_command(path: Path) -> Walk:
    with contextlib.redirect_stdout(io.StringIO()):
        return walk(
            "`limpet sessions list`",
            "The command, from its arguments to its last line.",
            35,
            lambda: cli.main(["sessions", "list", "--url", str(path)]),
        )


def page(found: list[Walk]) -> str:
    parts = [HEAD, "| call | modules |\n|---|---|"]
    parts += [f"| {one.title} | {len(one.steps)} |" for one in found]
    text = "\n".join(parts) + "\n"
    for one in found:
        rows = "\n".join(
            f"| {number} | `{step.module}` | `{step.function}` | {cell(step.line)} |"
            for number, step in enumerate(one.steps, 1)
        )
        text += (
            f"\n## {one.title}\n\n{one.about}\n\n| | module | function | what it does |\n|---|---|---|---|\n{rows}\n"
        )
    return text


def cell(line: str) -> str:
    return re.sub(r"\s+", " ", line).replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every function that ran")
    options = parser.parse_args()
    found = list(walks())
    PAGE.write_text(page(found), encoding="utf-8")
    for one in found:
        print(f"{len(one.steps):3} of {one.limit:3}  {one.title}")
        if options.list:
            print("".join(f"       {name}\n" for name in one.functions), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
