"""docs/internals/walk.md is what a trace shows today, and no call crosses more modules than it may."""

from __future__ import annotations

import pytest

from scripts import walk


@pytest.fixture(scope="module")
def walks() -> list[walk.Walk]:
    return list(walk.walks())


def test_page_is_what_a_trace_shows(walks: list[walk.Walk]):
    written = walk.PAGE.read_text(encoding="utf-8")
    assert walk.page(walks) == written, "run: .venv/bin/python scripts/walk.py"


def test_no_call_crosses_too_many_modules(walks: list[walk.Walk]):
    assert {one.title: len(one.steps) for one in walks if len(one.steps) > one.limit} == {}
