"""Links inside the documentation lead somewhere, and every page can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import markdown

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDERS = [DOCS, *(ROOT / name for name in ("benchmarks", "src", "tests"))]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for folder in FOLDERS for page in sorted(folder.rglob("*.md"))),
]
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
