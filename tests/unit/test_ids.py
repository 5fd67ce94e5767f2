"""Ids and moments: from one factory, sortable, and unique."""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest

from limpet.core.values import ids


def factory(now_us: int, byte: int = 0) -> ids.Factory:
    return ids.Factory(now_us=lambda: now_us, random=lambda size: bytes([byte]) * size)


@pytest.mark.req("B-6")
def test_a_session_id_shows_its_second_and_sorts_by_it():
    made = ids.new_session_id(factory(1_680_352_496_000_000))
    assert re.fullmatch(r"session_20230401_123456_[0-9a-f]{8,}", made)
    later = ids.new_session_id(factory(1_680_352_497_000_000))
    assert made < later


def test_message_ids_sort_by_time_and_differ_by_chance():
    early, late = ids.new_id("msg", factory(1_000_000)), ids.new_id("msg", factory(2_000_000))
    assert early < late
    assert ids.new_id("msg", factory(1, 1)) != ids.new_id("msg", factory(1, 2))


def test_a_factory_is_in_force_only_where_it_was_put():
    with ids.using(factory(5_000_000)):
        assert ids.new_id_and_time("x")[1] == ids.iso(5_000_000)
        with ids.using(factory(6_000_000)):
            assert ids.new_id_and_time("x")[1] == ids.iso(6_000_000)
        assert ids.new_id_and_time("x")[1] == ids.iso(5_000_000)
    assert ids.new_id_and_time("x")[1] > ids.iso(6_000_000)


@pytest.mark.parametrize("time_us", [0, 1, 1_700_000_000_123_456, -1, -62_135_596_800_000_000])
def test_moments_round_trip_to_the_microsecond(time_us: int):
    assert ids.microseconds(ids.iso(time_us)) == time_us


def test_a_moment_without_offset_is_utc_and_one_with_is_converted():
    assert ids.microseconds("2026-01-31T12:00:00") == ids.microseconds("2026-01-31T12:00:00Z")
    tokyo = datetime(2026, 1, 31, 21, tzinfo=timezone(timedelta(hours=9)))
    assert ids.microseconds(tokyo) == ids.microseconds(datetime(2026, 1, 31, 12, tzinfo=UTC))


def test_no_random_piece_is_given_out_twice_not_even_by_two_threads():
    made: list[bytes] = []

    def draw() -> None:
        mine = [ids.SYSTEM_FACTORY.random(8) for _ in range(2_000)]
        made.extend(mine)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8_000
    assert {len(piece) for piece in made} == {8}


def test_a_forked_child_draws_other_random_pieces_than_its_parent():
    ids.SYSTEM_FACTORY.random(8)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(ids.SYSTEM_FACTORY.random(8) for _ in range(40)))
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 320)
    os.close(reading)
    os.close(writing)
    ours = {ids.SYSTEM_FACTORY.random(8) for _ in range(40)}
    assert ours.isdisjoint(theirs[at : at + 8] for at in range(0, 320, 8))
