"""Links inside the documentation lead somewhere, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import markdown

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDERS = [DOCS, *(ROOT / name for name in ("benchmarks", "src", "tests"))]
PAGES = [*sorted(ROOT.glob("*.md")), *(page for folder in FOLDERS for page in sorted(folder.rglob("*.md")))]
NAMED_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sql|lua|patch|txt))`")
# Where the files are that pages name: in the repository, or in the package.
BASES = [ROOT, ROOT / "src" / "limpet", ROOT / "examples" / "pocket"]
STARTS = [ROOT / "README.md", DOCS / "index.md"]


def inner_links(page: Path) -> list[tuple[str, Path, str]]:
    """Each link to a place in the repository: as written, its file, its anchor."""
    found: list[tuple[str, Path, str]] = []
    for target in markdown.links(page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        found.append((target, (page.parent / name).resolve() if name else page, anchor))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for written, path, anchor in inner_links(page):
        assert path.exists(), f"{written}: no such file"
        if anchor:
            assert anchor in markdown.anchors(path), f"{written}: no such heading"


def missing_files(text: str) -> list[str]:
    return [name for name in NAMED_FILE.findall(text) if not any((base / name).exists() for base in BASES)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path):
    assert missing_files(page.read_text(encoding="utf-8")) == []


def test_name_of_a_file_that_is_gone_is_caught():
    assert missing_files("See `stores/port.py` and `stores/gone.py`.") == ["stores/gone.py"]


def test_every_page_can_be_reached():
    reached = set(STARTS)
    waiting = list(STARTS)
    while waiting:
        page = waiting.pop()
        for _, path, _ in inner_links(page):
            if path.suffix == ".md" and path.exists() and path not in reached:
                reached.add(path)
                waiting.append(path)
    unreached = [page for page in DOCS.rglob("*.md") if page not in reached]
    assert [str(page.relative_to(ROOT)) for page in unreached] == []
