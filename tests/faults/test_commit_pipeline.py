"""Tasks whose commits are sent ahead of answers, while connections are cut, servers killed and others write: each message once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import limpet
from limpet import Message, WindowPolicy, errors
from limpet.stores.server.changes import ServerPipeline
from limpet.wiring import store_opener
from tests.faults.fault_servers import SERVERS, Served
from tests.faults.proxy import KINDS, WAYS, Fault, Proxy

TASKS, EACH = 32, 40
PATIENCE_S = 2.0
TRIES = 400

pytestmark = [pytest.mark.slow, pytest.mark.req("A-20"), pytest.mark.parametrize("backend", SERVERS)]


class Counted:
    """How many commits were sent while another was on its way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0
        sound = ServerPipeline.send

        def send(sending: ServerPipeline, appends: object) -> bool:
            behind = bool(sending._in_flight)
            sent = sound(sending, appends)  # type: ignore[arg-type]
            self.ahead += sent and behind
            return sent

        monkeypatch.setattr(ServerPipeline, "send", send)


def said(task: int, number: int) -> Message:
    return Message(role="user", content=f"{task}/{number}", id=f"m{task}-{number}")


async def persist(session: limpet.AsyncSession, message: Message) -> None:
    """Say something until it is known to be said; a cut may come at any time."""
    for _ in range(TRIES):
        try:
            await session.add_message(message)
            return
        except errors.Unavailable:
            await asyncio.sleep(0.01)
    raise AssertionError("no answer")


async def begun(lp: limpet.AsyncLimpet, name: str) -> limpet.AsyncSession:
    for _ in range(TRIES):
        try:
            return await lp.sessions.get_or_create_session(name)
        except errors.Unavailable:
            await asyncio.sleep(0.01)
    raise AssertionError("no answer")


async def talk(lp: limpet.AsyncLimpet, task: int) -> None:
    session = await begun(lp, f"s{task}")
    for number in range(EACH):
        await persist(session, said(task, number))


def check(served: Served, tasks: int = TASKS) -> None:
    """Look past all that was disturbed: every message once, in order, and the log is sound."""
    with limpet.connect(served.direct) as lp:
        for task in range(tasks):
            told = [message.content for message in lp.sessions.get_session(f"s{task}").messages]
            assert told == [f"{task}/{number}" for number in range(EACH)], task
        assert lp.admin.verify().ok


@contextmanager
def cut_now_and_then(proxy: Proxy, rng: random.Random) -> Iterator[list[int]]:
    """Cut a connection after some bytes, again and again; gives how often it was to be."""
    asked = [0]

    async def attack() -> None:
        while True:
            await asyncio.sleep(0.02)
            asked[0] += 1
            way, kind = rng.choice(WAYS), rng.choice(KINDS[:2])
            proxy.count_anew(Fault(way, rng.randrange(20_000), kind))

    cutting = asyncio.get_running_loop().create_task(attack())
    try:
        yield asked
    finally:
        cutting.cancel()
        proxy.arm(None)


def test_cuts_make_nothing_twice_and_lose_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)

    async def run(url: str, proxy: Proxy) -> None:
        async with await limpet.connect_async(url) as lp:
            with cut_now_and_then(proxy, random.Random(7)):
                await asyncio.gather(*(talk(lp, task) for task in range(TASKS)))

    with SERVERS[backend]() as served, Proxy("127.0.0.1", served.port) as proxy:
        store_opener.open_store(served.direct).close()
        asyncio.run(run(served.url(proxy.port, timeout_s=PATIENCE_S), proxy))
        happened = proxy.faults_happened
        check(served)
    assert happened >= 5 and counted.ahead >= 10, (happened, counted.ahead)


def test_a_server_that_is_killed_loses_nothing_that_was_answered(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)

    async def run(served: Served) -> None:
        async with await limpet.connect_async(served.url(timeout_s=PATIENCE_S)) as lp:
            talking = asyncio.gather(*(talk(lp, task) for task in range(TASKS)))
            for _ in range(3):
                await asyncio.sleep(0.05)
                await asyncio.to_thread(served.restart)
            await talking

    with SERVERS[backend]() as served:
        store_opener.open_store(served.direct).close()
        asyncio.run(run(served))
        check(served)
    assert counted.ahead


def test_others_who_write_to_the_same_tenant_pass_by_nobody(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines, each with half of the tasks; and both write to one session now and then."""
    counted = Counted(monkeypatch)

    async def both(lp: limpet.AsyncLimpet, mine: int) -> None:
        async def now_and_then() -> None:
            session = await begun(lp, "common")
            for number in range(10):
                await persist(session, said(1_000 + mine, number))
                await asyncio.sleep(0.01)

        tasks = range(mine, TASKS, 2)
        await asyncio.gather(now_and_then(), *(talk(lp, task) for task in tasks))

    async def run(url: str) -> None:
        one, other = await limpet.connect_async(url), await limpet.connect_async(url)
        async with one, other:
            await both(one, 0)
            await asyncio.gather(both(one, 0), both(other, 1))

    with SERVERS[backend]() as served:
        asyncio.run(run(served.direct))
        check(served)
        with limpet.connect(served.direct) as lp:
            told = [str(message.content) for message in lp.sessions.get_session("common").messages]
    for mine in (0, 1):
        mines = [text for text in told if text.startswith(f"{1_000 + mine}/")]
        assert mines == [f"{1_000 + mine}/{number}" for number in range(10)]
    assert counted.ahead


def test_what_can_not_go_ahead_goes_in_its_turn(backend: str) -> None:
    """Keys, policies, versions that do not hold, messages said before and several at one session, all at once."""

    async def several(lp: limpet.AsyncLimpet) -> int:
        session = await lp.sessions.create_session("several")
        adding = (session.add_message(said(500, number)) for number in range(EACH))
        await asyncio.gather(*adding)
        refused = await asyncio.gather(
            *(session.add_message(said(501, n), expected_version=1) for n in range(5)),
            session.add_message(Message(role="user", content="other", id="m500-1")),
            return_exceptions=True,
        )
        assert [type(each) for each in refused[:5]] == [errors.StaleVersion] * 5
        assert type(refused[5]) is errors.DuplicateMessage
        await session.add_message(said(500, 3))
        return len(refused)

    async def keyed(lp: limpet.AsyncLimpet) -> None:
        session = await lp.sessions.create_session("keyed")
        for number in range(EACH):
            for _ in range(2):
                await session.add_message(Message(role="user", content=f"{number}"), key=f"k{number}")

    async def bounded(lp: limpet.AsyncLimpet) -> None:
        session = await lp.sessions.create_session("bounded", policy=WindowPolicy(budget=300))
        for number in range(EACH):
            await session.add_message(said(600, number))

    async def run(url: str) -> None:
        async with await limpet.connect_async(url) as lp:
            await asyncio.gather(several(lp), keyed(lp), bounded(lp), *(talk(lp, task) for task in range(TASKS)))

    with SERVERS[backend]() as served:
        asyncio.run(run(served.direct))
        check(served)
        with limpet.connect(served.direct) as lp:
            counts = {
                name: len(list(lp.sessions.get_session(name).messages)) for name in ("several", "keyed", "bounded")
            }
    assert counts == dict.fromkeys(("several", "keyed", "bounded"), EACH)
