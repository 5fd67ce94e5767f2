"""The reference mentions all there is: names, errors with their codes, limits and commands."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import cyclopts
import pytest

import limpet
import limpet.cli
from limpet import errors, limits
from tests.tidy import public_types

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


@pytest.fixture(scope="module")
def reference() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(REFERENCE.rglob("*.md")))


def error_classes() -> list[type[errors.Error]]:
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [value for value in classes if issubclass(value, errors.Error)]


def commands(app: cyclopts.App, words: tuple[str, ...]) -> Iterator[str]:
    """Every command of the program, without options such as --help, as a person types it."""
    for name in app:
        if not name.startswith("-"):
            inner = app[name]
            below = list(commands(inner, (*words, name)))
            yield from below or [" ".join((*words, name))]


def program() -> cyclopts.App:
    modules = [limpet.cli]
    modules += [
        importlib.import_module(found.name)
        for found in pkgutil.iter_modules(limpet.cli.__path__, "limpet.cli.")
        if not found.name.endswith("__main__")
    ]
    apps = [app for module in modules for app in vars(module).values() if isinstance(app, cyclopts.App)]
    return next(app for app in apps if "limpet" in app.name)


def test_errors_are_documented(reference: str):
    missing = [kind.__name__ for kind in error_classes() if f"`{kind.__name__}`" not in reference]
    assert missing == []


def test_error_codes_are_documented_and_distinct(reference: str):
    codes = [kind.code for kind in error_classes()]
    assert sorted(codes) == sorted(set(codes))
    assert [code for code in codes if f"`{code}`" not in reference] == []


def test_limits_are_documented(reference: str):
    names = [name for name in vars(limits) if name.isupper()]
    assert names
    assert [name for name in names if f"`{name}`" not in reference] == []


def test_limits_that_are_documented_exist():
    lines = (REFERENCE / "limits.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert len(listed) > 100
    assert sorted(listed) == sorted(set(listed))
    assert [name for name in listed if not hasattr(limits, name)] == []


def test_connect_names_every_kind_of_store():
    told = inspect.getdoc(limpet.connect) or ""
    kinds = ("sqlite", "files", "postgresql", "redis", "volatile")
    assert [kind for kind in kinds if f"{kind}:" not in told] == []


@pytest.mark.parametrize("package", public_types.PACKAGES)
def test_names_of_public_modules_are_listed(package: str):
    lines = (REFERENCE / "api.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if line.startswith(f"| `{package}` |")]
    listed = re.findall(r"`(\w+)`", row.split("|")[3])
    assert sorted(listed) == sorted(importlib.import_module(package).__all__)


def test_commands_are_documented(reference: str):
    found = list(commands(program(), ("limpet",)))
    assert "limpet demo" in found
    assert [command for command in found if command not in reference] == []


NEWER = {
    "stores/sqlite/database.py": "user_version", "stores/files/journal.py": "first line of a segment",
    "stores/server/postgres/schema.py": "row `schema`", "stores/server/redis/settings.py": "limpet:format",
    "stores/chain.py": "entry 0", "core/formats/codec.py": "entry 2",
    "admin/import_.py": "exported file", "runtime/state_cache.py": "of streams",
}  # fmt: skip
"""What says that something was written by a newer version, and how the format names it."""


def test_every_number_by_which_a_newer_version_is_known_is_in_the_format():
    source = Path(limpet.__file__).parent
    raising = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if re.search(r"(raise|return) errors\.NewerStore\b", path.read_text(encoding="utf-8"))
    }
    assert raising == NEWER.keys()
    text = (REFERENCE.parent / "internals" / "format.md").read_text(encoding="utf-8")
    versions = text.partition("## Versions")[2].partition("An older database")[0]
    assert [words for words in NEWER.values() if words not in versions] == []
