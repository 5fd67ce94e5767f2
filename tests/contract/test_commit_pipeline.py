"""The engine over a server whose answers take a while: what goes ahead, what does not, and who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from limpet import errors
from limpet.core.values import ids
from limpet.runtime.engine import IDLE_TIMES, Engine
from limpet.sessions.async_sessions import AsyncSession, AsyncSessions
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings
from limpet.stores.server.driver import ChangeResult, TenantChange
from limpet.stores.server.store import ServerStore
from limpet.stores.volatile import RamServer
from tests.contract.ram_driver import LatePipeline, RemoteDriver

LATE_S = 0.003
TASKS = 32


class Late(RemoteDriver):
    """Answers late. Keeps how large each commit was, `-` before those sent ahead, and fails at the sending that is named."""

    def __init__(self) -> None:
        super().__init__(RamServer())
        self.commits: list[int] = []
        self.fails_at = 0
        self.error: errors.Error = errors.UnsafeStore("the server syncs no more.")

    def apply(self, changes: Sequence[TenantChange]) -> list[ChangeResult]:
        self.commits.append(sum(len(change.rows) for change in changes))
        return super().apply(changes)

    def pipeline(self) -> LatePipeline:
        driver, count = self, 0

        class Line(LatePipeline):
            def send(self, changes: Sequence[TenantChange]) -> bool:
                nonlocal count
                count += 1
                if count == driver.fails_at:
                    raise driver.error
                sent = super().send(changes)
                driver.commits[-1] *= -1
                return sent

        return Line(self.apply, LATE_S)


class World:
    """An engine for tasks over such a server."""

    def __init__(self) -> None:
        self.driver = Late()
        self.engine = Engine(ServerStore(self.driver), factory=ids.SYSTEM_FACTORY)
        self.sessions = AsyncSessions(Sessions(SessionService(self.engine, Settings())))

    async def talks(self, count: int = TASKS) -> list[AsyncSession]:
        talks = [await self.sessions.create_session(f"s{number}") for number in range(count)]
        await self.rest()
        self.driver.commits.clear()
        return talks

    async def rounds(self, count: int) -> None:
        """Have all say something, so many times, each time when nobody leads any more."""
        talks = await self.talks()
        for _ in range(count):
            await asyncio.gather(*(talk.add_message(say("hello")) for talk in talks))
            await self.rest()

    async def rest(self) -> None:
        """Wait until nobody leads: a leader who is not gone yet would take the first who come, before the others are there."""
        while self.engine._commits._has_leader():
            await asyncio.sleep(0)

    def said(self) -> int:
        return sum(
            event.kind == "session.message_added" for event in self.engine.store.feed("default", limit=9_999)
        )  # fmt: skip


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # However busy the machine is.
    monkeypatch.setattr("limpet.runtime.engine.IDLE_MAX", 1.0)
    monkeypatch.setattr("limpet.runtime.commit_queue.PIPELINE_S", 30.0)
    world = World()
    yield world
    world.engine.close()


def say(text: str, id_: str | None = None) -> dict[str, str]:
    return {"role": "user", "content": text} | ({"id": id_} if id_ else {})


def test_half_is_decided_while_the_other_half_is_on_its_way(world: World):
    async def run() -> None:
        talks = await world.talks()
        await asyncio.gather(*(talk.add_message(say("hello")) for talk in talks))

    asyncio.run(run())
    assert world.driver.commits == [-16, -16] and world.said() == TASKS


def test_they_go_on_as_long_as_others_come(world: World):
    turns: list[bool] = []
    begin = world.engine.states.write_lock_acquired

    def counted(*, alone: bool) -> None:
        turns.append(alone)
        begin(alone=alone)

    async def talk_on(talk: AsyncSession) -> None:
        for number in range(10):
            await talk.add_message(say(f"{number}"))

    async def run() -> None:
        talks = await world.talks()
        setattr(world.engine.states, "write_lock_acquired", counted)  # noqa: B010
        await asyncio.gather(*map(talk_on, talks))

    asyncio.run(run())
    assert world.said() == 10 * TASKS
    ahead = [-size for size in world.driver.commits if size < 0]
    assert sum(ahead) > 5 * TASKS and len(turns) < len(ahead), (ahead, len(turns))


def test_a_lone_caller_and_what_can_not_all_go_are_committed_in_one_go(world: World):
    async def run() -> None:
        talks = await world.talks()
        for _ in range(20):
            await talks[0].add_message(say("alone"))
        await world.rest()
        await asyncio.gather(*(talks[1].add_message(say("one session")) for _ in range(50)))
        await world.rest()
        await asyncio.gather(
            *(talk.add_message(say("keys"), key=talk.id if at % 4 == 3 else None) for at, talk in enumerate(talks))
        )  # fmt: skip

    asyncio.run(run())
    assert world.driver.commits == [1] * 20 + [50, TASKS]


def test_who_was_on_its_way_when_another_fails_is_not_told_that_nothing_was_done(world: World):
    async def run() -> list[object]:
        talks = await world.talks()
        world.driver.fails_at = 2
        adding = (talk.add_message(say("hello")) for talk in talks)
        return await asyncio.gather(*adding, return_exceptions=True)

    told = asyncio.run(run())
    assert [type(each) for each in told] == [errors.Unavailable] * 16 + [errors.UnsafeStore] * 16
    assert "unknown" in str(told[0]) and world.said() == 16


def test_a_message_said_before_keeps_nobody_from_going_ahead_later(world: World):
    async def run() -> None:
        talks = await world.talks()
        await talks[3].add_message(say("once", "m1"))
        ids_ = ["m1" if talk is talks[3] else None for talk in talks]
        await asyncio.gather(*(t.add_message(say("once", i)) for t, i in zip(talks, ids_, strict=True)))
        await world.rest()
        world.driver.commits.clear()
        for _ in range(5):
            await asyncio.gather(*(talk.add_message(say("hello")) for talk in talks))
            await world.rest()

    asyncio.run(run())
    assert world.driver.commits.count(-16) >= 4 and world.said() == 6 * TASKS


def test_where_the_server_is_what_takes_time_all_go_together(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("limpet.runtime.engine.IDLE_MAX", -1.0)
    monkeypatch.setattr("limpet.runtime.engine.PIPELINE_PAUSE_S", 3600.0)
    asyncio.run(world.rounds(8))
    assert world.driver.commits == [-16, -16] * IDLE_TIMES + [TASKS] * (8 - IDLE_TIMES)


def test_whose_time_is_over_goes_ahead_again(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("limpet.runtime.commit_queue.PIPELINE_S", 0.0)
    asyncio.run(world.rounds(6))
    assert world.said() == 6 * TASKS
    assert world.driver.commits == [-16, -8, -8] * 6


def test_full_sessions_go_on_in_their_turn(world: World):
    async def run() -> list[AsyncSession]:
        world.sessions = AsyncSessions(Sessions(SessionService(world.engine, Settings(max_messages_per_session=3))))
        talks = await world.talks()
        for number in range(8):
            await asyncio.gather(*(talk.add_message(say(f"{number}")) for talk in talks))
        return talks

    talks = asyncio.run(run())
    assert world.said() >= 8 * TASKS
    assert len({talk.state.root_id or talk.id for talk in talks}) == TASKS


def test_what_nobody_could_be_taken_for_is_told_once(world: World):
    waits: list[int] = []

    class Away(Late):
        def pipeline(self) -> LatePipeline:
            waits.append(1)
            raise errors.Unavailable("no connection is left.")

    async def run() -> list[object]:
        talks = await world.talks()
        setattr(world.driver, "pipeline", Away().pipeline)  # noqa: B010
        adding = (talk.add_message(say("hello")) for talk in talks)
        return await asyncio.gather(*adding, return_exceptions=True)

    told = asyncio.run(run())
    failed = [each for each in told if isinstance(each, errors.Unavailable)]
    assert failed and len(failed) + world.said() == TASKS and len(waits) <= 3
