"""The laws of the package as a whole, as functions from its folder to its offenders.

An offender is named, and has a measure: how many there are, or how long it is.
"""

from __future__ import annotations

import ast
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.tidy import laws

FILES_MAX = 200
LINES_MAX = 60_000
FOLDER_ENTRIES_MAX = 12
MEDIAN_FUNCTION_LINES_MAX = 6
NINTH_DECILE_FUNCTION_LINES_MAX = 18

# The root of the package has an entry for each capability, and the modules that everything imports.
ROOT_ENTRIES_MAX = 20

# Modules that every backend has, or every group: the folder says whose it is.
SHARED_MODULE_NAMES = {
    "__init__",
    "connections",
    "driver",
    "error_mapping",
    "index_store",
    "maintenance",
    "notifications",
    "port",
    "schema",
    "serialization",
    "settings",
    "store",
}

# Nouns of the field that end in -ing.
NOUNS = {"mapping", "testing", "wiring"}

Offenders = dict[str, int]
PackageLaw = Callable[[Path], Offenders]


def modules(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def few_files(package: Path) -> Offenders:
    count = len(modules(package))
    return {"files": count} if count > FILES_MAX else {}


def few_lines(package: Path) -> Offenders:
    count = sum(path.read_text(encoding="utf-8").count("\n") for path in modules(package))
    return {"lines": count} if count > LINES_MAX else {}


def short_functions(package: Path) -> Offenders:
    """The median and the ninth decile of the functions' lengths; the longest is a law of each file."""
    lengths = sorted(
        (function.end_lineno or function.lineno) - function.lineno + 1
        for path in modules(package)
        for function in laws.functions(path.read_text(encoding="utf-8"))
    )
    if not lengths:
        return {}
    median = round(statistics.median(lengths))
    decile = lengths[len(lengths) * 9 // 10]
    over = {}
    if median > MEDIAN_FUNCTION_LINES_MAX:
        over["median"] = median
    if decile > NINTH_DECILE_FUNCTION_LINES_MAX:
        over["ninth decile"] = decile
    return over


def small_folders(package: Path) -> Offenders:
    counts: Counter[str] = Counter()
    for path in package.rglob("*"):
        if "__pycache__" not in path.parts:
            counts[path.parent.relative_to(package).as_posix()] += 1
    limits = {".": ROOT_ENTRIES_MAX}
    return {name: n for name, n in counts.items() if n > limits.get(name, FOLDER_ENTRIES_MAX)}


def noun_modules(package: Path) -> Offenders:
    """A module is named after what it holds, not after what is done: no word of its name ends in -ing."""
    paths = (path for path in package.rglob("*") if path.suffix == ".py" or path.is_dir())
    return {
        path.relative_to(package).as_posix(): 1
        for path in paths
        if any(word.endswith("ing") and word not in NOUNS for word in path.stem.split("_"))
    }


def distinct_modules(package: Path) -> Offenders:
    counts = Counter(path.stem for path in modules(package))
    return {name: n for name, n in counts.items() if n > 1 and name not in SHARED_MODULE_NAMES}


def classes(package: Path) -> Iterator[ast.ClassDef]:
    for path in modules(package):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node


def distinct_classes(package: Path) -> Offenders:
    counts = Counter(node.name for node in classes(package))
    return {name: n for name, n in counts.items() if n > 1}


def no_mixins(package: Path) -> Offenders:
    """A class has at most one base of the package. Of a contract suite it may have several: pytest collects them."""
    defined = {node.name for node in classes(package)}
    bases = {node.name: sum(base_name(base) in defined for base in node.bases) for node in classes(package)}
    return {name: n for name, n in bases.items() if n > 1 and not name.endswith("Contract")}


def base_name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
