"""The package keeps the laws of the whole: few files and lines, small folders, names that mean one thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import package_laws as laws

SOURCE = Path(__file__).resolve().parents[2] / "src" / "limpet"

# What is not reached yet, with today's measure. May only shrink; what keeps its law leaves the list.
OFFENDERS: dict[laws.PackageLaw, laws.Offenders] = {
    laws.few_files: {},
    laws.few_lines: {},
    laws.short_functions: {},
    laws.small_folders: {},
    laws.noun_modules: {},
    laws.distinct_modules: {},
    laws.distinct_classes: {},
    laws.no_mixins: {},
}

FORBIDDEN: list[tuple[laws.PackageLaw, dict[str, str], laws.Offenders]] = [
    (laws.few_files, {f"m{n}.py": "" for n in range(201)}, {"files": 201}),
    (laws.few_lines, {"m.py": "x = 1\n" * 60_001}, {"lines": 60_001}),
    (laws.short_functions, {"m.py": "def f():\n" + "    x = 1\n" * 6}, {"median": 7}),
    (
        laws.short_functions,
        {"m.py": "def f(): ...\n" * 8 + ("def g():\n" + "    x = 1\n" * 18) * 2},
        {"ninth decile": 19},
    ),
    (laws.small_folders, {f"a/m{n}.sql": "" for n in range(13)}, {"a": 13}),
    (laws.small_folders, {f"m{n}.py": "" for n in range(21)}, {".": 21}),
    (laws.noun_modules, {"planning.py": "", "a/log_reading.py": ""}, {"planning.py": 1, "a/log_reading.py": 1}),
    (laws.noun_modules, {"reading/log.py": ""}, {"reading": 1}),
    (laws.distinct_modules, {"a/cache.py": "", "b/cache.py": ""}, {"cache": 2}),
    (laws.distinct_classes, {"a.py": "class _Row: ...\n", "b.py": "class _Row: ...\n"}, {"_Row": 2}),
    (
        laws.no_mixins,
        {"a.py": "class Reads: ...\n", "b.py": "class Store(a.Reads, Writes[int]): ...\nclass Writes: ...\n"},
        {"Store": 2},
    ),
]

ALLOWED: list[tuple[laws.PackageLaw, dict[str, str]]] = [
    (laws.small_folders, {f"a/m{n}.py": "" for n in range(12)}),
    (laws.noun_modules, {"error_mapping.py": "", "things.py": ""}),
    (laws.distinct_modules, {"a/store.py": "", "b/store.py": "", "a/__init__.py": "", "b/__init__.py": ""}),
    (laws.no_mixins, {"a.py": "class A: ...\nclass B(A, Protocol): ...\n"}),
]


def name(value: object) -> str:
    return getattr(value, "__name__", "")


def write_package(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.parametrize("law", OFFENDERS, ids=name)
def test_package_keeps_the_law(law: laws.PackageLaw):
    found, allowed = law(SOURCE), OFFENDERS[law]
    assert {who: n for who, n in found.items() if n > allowed.get(who, 0)} == {}
    assert [who for who in allowed if who not in found] == [], "it keeps the law: take it off the list"


@pytest.mark.parametrize(("law", "files", "expected"), FORBIDDEN, ids=name)
def test_law_catches(law: laws.PackageLaw, files: dict[str, str], expected: laws.Offenders, tmp_path: Path):
    assert law(write_package(tmp_path, files)) == expected


@pytest.mark.parametrize(("law", "files"), ALLOWED, ids=name)
def test_law_allows(law: laws.PackageLaw, files: dict[str, str], tmp_path: Path):
    assert law(write_package(tmp_path, files)) == {}
