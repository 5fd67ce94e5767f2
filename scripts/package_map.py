"""Writes the map of the package into docs/internals/architecture.md: every folder and module, with one line each.

The line is the first of the module's docstring, or, for a folder, of its `__init__`. A test compares the page with
the tree.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "limpet"
PAGE = ROOT / "docs" / "internals" / "architecture.md"
BEGIN = "<!-- The map is written by scripts/package_map.py. -->\n"
END = "<!-- End of the map. -->\n"


def first_line(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line; empty if it has none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split()).replace("|", "\\|")


def folders(package: Path) -> Iterator[Path]:
    yield package
    for folder in sorted(path for path in package.iterdir() if (path / "__init__.py").exists()):
        yield from folders(folder)


def map_text(package: Path) -> str:
    """Return a table for each folder that holds modules."""
    parts: list[str] = []
    for folder in folders(package):
        modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        name = folder.relative_to(package.parent).as_posix()
        parts.append(f"### {name}/\n\n{first_line(folder / '__init__.py')}\n")
        if modules:
            rows = "\n".join(f"| `{path.name}` | {first_line(path)} |" for path in modules)
            parts.append(f"| module | holds |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def with_map(page: str, package: Path) -> str:
    """Return the page with the map of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{map_text(package)}\n{END}{after}"


def main() -> int:
    PAGE.write_text(with_map(PAGE.read_text(encoding="utf-8"), PACKAGE), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
