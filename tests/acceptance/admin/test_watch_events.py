"""Watching the log: what is there, then what comes, in order and without gaps."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import limpet
from limpet import Limpet, errors
from tests.acceptance.conversation_steps import user


def test_what_is_there_comes_first_and_then_what_comes(lp: Limpet):
    lp.sessions.create_session("s")
    watching = lp.events.watch()
    assert next(watching).kind == "session.created"
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(lambda: list(itertools.islice(watching, 3)))
        for number in range(3):
            lp.sessions.add_messages("s", [user(str(number))])
        assert [event.position for event in coming.result()] == [2, 3, 4]


def test_watching_ends_when_nothing_comes_for_a_time(lp: Limpet):
    lp.sessions.create_session("s")
    lp.sessions.add_messages("s", [user("1")])
    assert [event.position for event in lp.events.watch(timeout_s=0)] == [1, 2]
    assert [event.position for event in lp.events.watch(1, timeout_s=0.01)] == [2]
    assert list(lp.events.watch(2, timeout_s=0)) == []


def test_one_process_hears_of_what_another_opener_writes(tmp_path: Path):
    path = tmp_path / "a.db"
    with limpet.connect(path) as mine, limpet.connect(path) as theirs, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, theirs.events.watch())
        mine.sessions.create_session("s")
        assert coming.result().position == 1


def test_closing_ends_the_watch(lp: Limpet):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, lp.events.watch())
        lp.close()
        with pytest.raises(errors.EngineClosed):
            waiting.result()


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "soon"])
def test_a_time_is_a_number(lp: Limpet, wrong: object):
    with pytest.raises(errors.InvalidRequest):
        next(lp.events.watch(timeout_s=wrong))  # pyright: ignore[reportArgumentType]


def test_awaited_it_is_the_same(tmp_path: Path):
    async def scenario() -> None:
        async with limpet.connect_async(tmp_path / "a.db") as lp:
            await lp.sessions.create_session("s")

            async def watched() -> list[int]:
                found: list[int] = []
                async for event in lp.events.watch():
                    found.append(event.position)
                    if len(found) == 3:
                        break
                return found

            watching = asyncio.create_task(watched())
            await asyncio.gather(*[lp.sessions.add_messages("s", [user()]) for _ in range(2)])
            assert await watching == [1, 2, 3]
            assert [e.position async for e in lp.events.watch(1, timeout_s=0.01)] == [2, 3]

    asyncio.run(scenario())
