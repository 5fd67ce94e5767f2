"""The map of the package in docs/internals/architecture.md is the tree, and every module says what it holds."""

from __future__ import annotations

from pathlib import Path

from scripts import package_map


def test_map_is_the_tree():
    page = package_map.PAGE.read_text(encoding="utf-8")
    assert package_map.with_map(page, package_map.PACKAGE) == page, "run: .venv/bin/python scripts/package_map.py"


def test_every_module_says_what_it_holds():
    modules = sorted(package_map.PACKAGE.rglob("*.py"))
    assert [str(path) for path in modules if not package_map.first_line(path)] == []


def test_module_that_is_missing_on_the_map_is_caught(tmp_path: Path):
    package = tmp_path / "engine"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text('"""The engine."""\n')
    (package / "inner" / "__init__.py").write_text('"""Its parts."""\n')
    (package / "inner" / "piston.py").write_text('"""A piston,\nor more."""\n')
    page = package_map.with_map(f"Before.\n{package_map.BEGIN}{package_map.END}After.\n", package)
    assert "### engine/inner/" in page and "| `piston.py` | A piston, or more. |" in page
    assert page.startswith("Before.\n") and page.endswith("After.\n")
    (package / "inner" / "valve.py").write_text('"""A valve."""\n')
    assert package_map.with_map(page, package) != page
