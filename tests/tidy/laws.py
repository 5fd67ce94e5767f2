"""The laws of the source, as functions from a file's text to its offences.

An offence is a line number and a sentence. What ruff and import-linter can check is theirs; here is
what they can't.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

FILE_LINES_MAX = 900
FUNCTION_LINES_MAX = 60

# Loading data must never run code.
CODE_LOADERS = {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve"}
CODE_RUNNERS = {"__import__", "eval", "exec"}

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|PRAGMA|ATTACH|DETACH|VACUUM|WITH"
    r"|BEGIN|SAVEPOINT|RELEASE|ROLLBACK)\s+\S"
)

Offence = tuple[int, str]
Law = Callable[[str], Iterator[Offence]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            yield node


def short_files(text: str) -> Iterator[Offence]:
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield 1, f"{lines} lines; a file is one idea, at most {FILE_LINES_MAX}"


def short_functions(text: str) -> Iterator[Offence]:
    for function in functions(text):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield function.lineno, f"{function.name} has {lines} lines, over {FUNCTION_LINES_MAX}"


def nothing_unfinished(text: str) -> Iterator[Offence]:
    for number, line in enumerate(text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield number, "unfinished work belongs in an issue"


def named_parameters(text: str) -> Iterator[Offence]:
    """A caller sees which parameters there are: by their names, or by a type that lists them."""
    for function in functions(text):
        if (rest := function.args.kwarg) and not function.name.startswith("_") and not lists_parameters(rest):
            yield function.lineno, f"{function.name} takes **{rest.arg}"


def lists_parameters(rest: ast.arg) -> bool:
    """Whether the type is `Unpack[…]` of a TypedDict, or the `kwargs` of a ParamSpec."""
    match rest.annotation:
        case ast.Attribute(attr="kwargs") | ast.Subscript(value=ast.Name(id="Unpack")):
            return True
        case _:
            return False


def data_only(text: str) -> Iterator[Offence]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in imported_modules(node):
                if module.partition(".")[0] in CODE_LOADERS:
                    yield node.lineno, f"{module} runs code when it loads data"
        elif isinstance(node, ast.Name) and node.id in CODE_RUNNERS:
            yield node.lineno, f"{node.id} runs code that is data"


def imported_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]


def whole_statements(text: str) -> Iterator[Offence]:
    """SQL is never put together from values: not by f-string, format, % or +."""
    for node in ast.walk(ast.parse(text)):
        built = (
            (isinstance(node, ast.JoinedStr) and interpolates(node) and node.values[0])
            or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod) and node.left)
            or (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "format"
                and node.func.value
            )
        )
        if isinstance(built, ast.Constant) and SQL.match(str(built.value)):
            yield built.lineno, "SQL is put together from pieces; bind parameters instead"


def interpolates(node: ast.JoinedStr) -> bool:
    return any(isinstance(value, ast.FormattedValue) for value in node.values)


def narrow_excepts(text: str) -> Iterator[Offence]:
    """A handler for everything must end with `raise`; the others are in the allow-list.

    A handler for `Exception`, which leaves interrupts alone, may also end by raising another error from what it caught.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler) and catches_all(node) and not reraises(node):
            yield node.lineno, "catches everything and goes on"
        elif isinstance(node, ast.Call) and suppresses(node) and names_all(node.args):
            yield node.lineno, "suppresses everything"


def catches_all(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return handler.type is None or names_all(caught)


def names_all(caught: Sequence[ast.expr | None]) -> bool:
    names = {part.id for part in caught if isinstance(part, ast.Name)}
    return bool(names & {"BaseException", "Exception"})


def suppresses(call: ast.Call) -> bool:
    called = call.func
    return (isinstance(called, ast.Attribute) and called.attr == "suppress") or (
        isinstance(called, ast.Name) and called.id == "suppress"
    )


def reraises(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    if not isinstance(last, ast.Raise):
        return False
    caught = handler.type.id if isinstance(handler.type, ast.Name) else ""
    kept = isinstance(last.cause, ast.Name) and last.cause.id == handler.name
    return last.exc is None or (caught == "Exception" and kept)
