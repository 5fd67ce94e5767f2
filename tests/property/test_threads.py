"""Threads on the same conversations, through continuations, reopening and crashes: nothing is lost."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet import Message
from limpet.core.values.events import MessageAddedEvent
from limpet.sessions.requests import Settings
from tests.faults import provider_pairing
from tests.property.store_homes import Home, SQLiteHome, VolatileHome

THREADS, ROUNDS, MESSAGES = 6, 4, 20
TALKS = ("one", "two", "three")


@pytest.fixture
def folder() -> Iterator[Path]:
    shm = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="limpet-", dir=shm if shm.is_dir() else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def write(home: Home, thread: int, number: int, failed: list[BaseException]) -> None:
    rng = random.Random(thread * 1_000 + number)
    try:
        for count in range(MESSAGES):
            role = rng.choice(["user", "assistant"])
            message = Message(role, f"{thread}/{number:02}-{count:02}")
            home.sessions.add_messages(rng.choice(TALKS), [message])
            if rng.random() < 0.2:
                home.sessions.add_messages(rng.choice(TALKS), [message], key=f"{message.id}")
    except BaseException as error:
        failed.append(error)


def check(home: Home, rounds: int) -> None:
    added: list[str] = []
    for event in home.events.feed():
        if isinstance(event.event, MessageAddedEvent) and event.event.message.origin is None:
            added.append(str(event.event.message.content))
    expected = {
        f"{thread}/{number:02}-{count:02}"
        for thread in range(THREADS)
        for number in range(rounds)
        for count in range(MESSAGES)
    }
    assert set(added) == expected
    read: list[str] = []
    for talk in TALKS:
        chain = home.sessions.session_chain(talk)
        assert [part.state.continuation_index for part in chain] == list(range(len(chain)))
        texts: list[str] = []
        for part in chain:
            messages = list(part.messages)
            assert not provider_pairing.faults(messages)
            texts += [str(message.content) for message in messages if message.origin is None]
        for thread in range(THREADS):
            mine = [text for text in texts if text.startswith(f"{thread}/")]
            assert mine == sorted(mine), "each thread's messages stand in the order it added them"
            assert len(set(mine)) == len(mine)
        read += texts
    assert sorted(read) == sorted(added)


@pytest.mark.slow
@pytest.mark.req("A-18", "A-20", "B-17")
@pytest.mark.parametrize("size", [8, 40])
@pytest.mark.parametrize("backend", ["volatile", "sqlite"])
def test_threads_lose_nothing_and_keep_their_order(backend: str, size: int, folder: Path):
    settings = Settings(max_messages_per_session=size)
    home: Home = VolatileHome(settings, 100) if backend == "volatile" else SQLiteHome(folder, settings, 100)
    for talk in TALKS:
        home.sessions.create_session(talk)
    try:
        for number in range(ROUNDS):
            failed: list[BaseException] = []
            threads = [threading.Thread(target=write, args=(home, thread, number, failed)) for thread in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failed == []
            (home.crash if number % 2 else home.reopen)()
            check(home, number + 1)
        assert home.admin.verify().ok
    finally:
        home.close()
