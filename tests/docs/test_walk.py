"""docs/internals/walk.md is what a trace shows today, and no call crosses more modules than it may."""

from __future__ import annotations

import pytest

from scripts import walk

# Calls that cross more modules than their limit, with today's number. May only shrink.
OVER_THE_LIMIT = {"`lp.memory.forget(user_id)`": 37}


@pytest.fixture(scope="module")
def walks() -> list[walk.Walk]:
    return list(walk.walks())


def test_page_is_what_a_trace_shows(walks: list[walk.Walk]):
    written = walk.PAGE.read_text(encoding="utf-8")
    assert walk.page(walks) == written, "run: .venv/bin/python scripts/walk.py"


def test_no_call_crosses_too_many_modules(walks: list[walk.Walk]):
    over = {one.title: len(one.steps) for one in walks if len(one.steps) > one.limit}
    worse = {title: count for title, count in over.items() if count > OVER_THE_LIMIT.get(title, 0)}
    assert worse == {}
    assert over.keys() == OVER_THE_LIMIT.keys(), "a call that keeps its limit leaves the list"
