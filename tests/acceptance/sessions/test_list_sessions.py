"""Listing sessions: newest first, in pages that neither repeat nor skip, with filters that hold."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest

from limpet import Limpet, errors
from limpet.core.values import ids
from tests.acceptance.conversation_steps import set_clock, user


def listed(lp: Limpet, **filters: Any) -> list[str]:
    return [row["id"] for row in lp.sessions.list_sessions(**filters)]


def paged(lp: Limpet, limit: int, **filters: Any) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = lp.sessions.list_sessions(limit, cursor=cursor, **filters)
        assert len(page) <= limit
        found += [row["id"] for row in page]
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.fixture
def five(lp: Limpet) -> Limpet:
    """s0 … s4, an hour apart, of two users, with metadata."""
    for number in range(5):
        set_clock(lp, ids.microseconds(f"2026-01-01T0{number}:00:00Z"))
        lp.sessions.create_session(
            f"s{number}",
            user_id="ada" if number % 2 else "bob",
            metadata={"n": number, "even": number % 2 == 0, "tag": "x", "none": None},
        )
    return lp


@pytest.mark.req("B-15")
def test_newest_activity_comes_first(five: Limpet):
    assert listed(five) == ["s4", "s3", "s2", "s1", "s0"]
    set_clock(five, ids.microseconds("2026-01-02T00:00:00Z"))
    five.sessions.get_session("s1").add_message(user())
    assert listed(five) == ["s1", "s4", "s3", "s2", "s0"]
    five.sessions.update_session("s0", title="touched")
    assert set(listed(five)[:2]) == {"s0", "s1"}


@pytest.mark.req("B-15")
def test_pages_by_limit_and_offset(five: Limpet):
    assert listed(five, limit=2) == ["s4", "s3"]
    assert listed(five, limit=2, offset=2) == ["s2", "s1"]
    assert listed(five, limit=2, offset=4) == ["s0"]
    assert listed(five, limit=2, offset=99) == []
    assert [row["id"] for row in five.sessions.list_sessions(2, 1)] == ["s3", "s2"]


@pytest.mark.req("B-15")
@pytest.mark.parametrize("limit", [1, 7, 50, 100, 205, 206])
def test_205_sessions_of_the_same_moment_come_each_once(lp: Limpet, limit: int):
    set_clock(lp, 1_700_000_000_000_000)
    names = [f"s{number:03}" for number in range(205)]
    for name in names:
        lp.sessions.create_session(name)
    assert sorted(paged(lp, limit)) == names
    assert len(listed(lp)) == 100


def test_a_session_that_moves_to_the_front_is_not_seen_twice_further_back(five: Limpet):
    page = five.sessions.list_sessions(2)
    set_clock(five, ids.microseconds("2026-01-02T00:00:00Z"))
    five.sessions.get_session("s2").add_message(user())
    five.sessions.create_session("new")
    rest = five.sessions.list_sessions(10, cursor=page.next_cursor)
    assert [row["id"] for row in rest] == ["s1", "s0"]


def test_filters_on_owner(five: Limpet):
    assert listed(five, user_id="ada") == ["s3", "s1"]
    assert listed(five, user_id="nobody") == []
    assert paged(five, 1, user_id="bob") == ["s4", "s2", "s0"]


def test_filters_on_time_in_each_form(five: Limpet):
    for after in (
        "2026-01-01T02:00:00Z",
        datetime(2026, 1, 1, 2, tzinfo=UTC),
        ids.microseconds("2026-01-01T02:00:00Z"),
    ):
        assert listed(five, active_after=after) == ["s4", "s3", "s2"]
    assert listed(five, active_before="2026-01-01T01:30:00Z") == ["s1", "s0"]
    between = {"active_after": "2026-01-01T01:00:00Z", "active_before": "2026-01-01T03:00:00Z"}
    assert listed(five, **between) == ["s3", "s2", "s1"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"n": 3}, ["s3"]),
        ({"even": True}, ["s4", "s2", "s0"]),
        ({"even": False, "tag": "x"}, ["s3", "s1"]),
        ({"none": None}, ["s4", "s3", "s2", "s1", "s0"]),
        ({"tag": "X"}, []),
        ({"tag": "x", "n": 9}, []),
        ({"unknown": 1}, []),
        ({}, ["s4", "s3", "s2", "s1", "s0"]),
    ],
    ids=str,
)
def test_filters_on_metadata(five: Limpet, wanted: dict[str, Any], found: list[str]):
    assert listed(five, metadata=wanted) == found


def test_metadata_filters_follow_changes(five: Limpet):
    five.sessions.update_session("s3", metadata={"n": 30}, drop_metadata=["tag"])
    assert listed(five, metadata={"n": 3}) == []
    assert listed(five, metadata={"n": 30}) == ["s3"]
    assert "s3" not in listed(five, metadata={"tag": "x"})
    five.sessions.delete_session("s3")
    assert listed(five, metadata={"n": 30}) == []


def test_filters_on_status_and_all_together(five: Limpet):
    five.sessions.end_session("s3")
    assert listed(five, status="ended") == ["s3"]
    assert "s3" not in listed(five, status="active")
    assert listed(five, status="ended", user_id="ada", metadata={"n": 3}) == ["s3"]
    assert listed(five, status="ended", user_id="bob") == []


def test_a_row_tells_what_the_session_is(five: Limpet):
    session = five.sessions.get_session("s0")
    session.add_messages([user("How do I get to Oslo?")])
    row = next(row for row in five.sessions.list_sessions() if row["id"] == "s0")
    assert row["user_id"] == "bob" and row["status"] == "active"
    assert row["title"] == "How do I get to Oslo?", "an untitled session shows how it begins"
    assert row["message_count"] == 1 and row["total_tokens"] == session.total_tokens
    assert row["created_at"] == "2026-01-01T00:00:00.000000+00:00"
    assert row["last_active"] == session.last_active
    assert row["metadata"]["n"] == 0
    assert (row["version"], row["generation"], row["pending_calls"]) == (2, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0}, {"limit": 1001}, {"limit": "5"}, {"limit": True}, {"offset": -1},
        {"offset": 1.5}, {"cursor": "x"}, {"cursor": 5}, {"cursor": "ÿ"}, {"status": "deleted"},
        {"status": 5}, {"metadata": {"a": [1]}}, {"metadata": {"a": {}}}, {"metadata": [1]},
        {"metadata": {f"k{n}": n for n in range(21)}}, {"active_after": "soon"},
        {"active_before": 5.5},
    ],
    ids=lambda wrong: str(wrong)[:30],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused(five: Limpet, wrong: dict[str, Any]):
    with pytest.raises(errors.Refused):
        five.sessions.list_sessions(**wrong)


@pytest.mark.parametrize(
    "odd",
    [
        {"user_id": "\ud800"}, {"user_id": 5}, {"offset": 2**70}, {"active_after": 2**70},
        {"active_before": -(2**70)}, {"metadata": {"a": 2**70}}, {"user_id": "x" * 10_000},
    ],
    ids=str,
)  # fmt: skip
def test_odd_arguments_find_nothing_or_are_refused_but_never_break(five: Limpet, odd: dict[str, Any]):
    with contextlib.suppress(errors.Refused):
        assert listed(five, **odd) == []
