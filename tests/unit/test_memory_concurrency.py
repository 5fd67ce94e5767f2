"""The built-in memory in company: others take and forget at the same time, processes die, files are searched."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from limpet import errors, limits
from limpet.core.values.memory_records import ArchivedMessage
from limpet.memory.builtin import BuiltInMemory
from limpet.memory.facts import fact_store
from limpet.memory.index_store import IndexStore, VolatileIndexStore
from limpet.stores.sqlite.index_store import SQLiteIndexStore
from limpet.testing.memory_contract import ADA, BOB, conversation, facts_with_word, ingest_texts, position


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.fixture(params=["volatile", "sqlite"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IndexStore]:
    made = VolatileIndexStore() if request.param == "volatile" else SQLiteIndexStore(tmp_path / "x-memory")
    yield made
    made.close()


def test_two_who_take_one_conversation_do_not_mix(shelf: IndexStore):
    """The second one takes over; the first one's next chunk is refused, and nothing is there twice."""
    first, second = BuiltInMemory(shelf, count=count), BuiltInMemory(shelf, count=count)
    history, said = conversation(ADA, "s1", "I live in Oslo.", "My name is Ada.")

    def interrupted() -> Iterator[Sequence[ArchivedMessage]]:
        yield said[:1]
        second.ingest(history, [said])
        yield said[1:]

    with pytest.raises(errors.Unavailable):
        first.ingest(history, interrupted())
    assert len(second.facts(ADA)) == 2


@pytest.mark.parametrize("what", ["user", "session", "message", "position"])
def test_what_is_forgotten_while_it_is_taken_does_not_come_back(shelf: IndexStore, what: str):
    engine, other = BuiltInMemory(shelf, count=count), BuiltInMemory(shelf, count=count)
    history, said = conversation(ADA, "s1", "I live in Oslo.", "My name is Ada.")
    where = {
        "user": (None, None),
        "session": ("s1", None),
        "message": ("s1", position(1, 2)),
        "position": (None, position(1, 2)),
    }[what]

    def meanwhile() -> Iterator[Sequence[ArchivedMessage]]:
        yield said[:1]
        other.forget(ADA, *where)
        # Somebody begins on it again, so that there is a row like the one that was forgotten.
        with pytest.raises(ConnectionError):
            other.ingest(history, stopping())
        yield said[1:]

    def stopping() -> Iterator[Sequence[ArchivedMessage]]:
        raise ConnectionError
        yield []

    with pytest.raises(errors.Unavailable):
        engine.ingest(history, meanwhile())
    assert facts_with_word(engine, ADA, "name") == []


def test_forgetting_others_does_not_disturb(shelf: IndexStore):
    engine = BuiltInMemory(shelf, count=count)
    history, said = conversation(ADA, "s1", "I live in Oslo.", "My name is Ada.")

    def meanwhile() -> Iterator[Sequence[ArchivedMessage]]:
        yield said[:1]
        engine.forget(BOB)
        engine.forget(ADA, "s7")
        yield said[1:]

    engine.ingest(history, meanwhile())
    assert len(engine.facts(ADA)) == 2


def test_threads_that_learn_of_one_user_lose_nothing(shelf: IndexStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "RETRIES_MAX", 1_000)
    engine = BuiltInMemory(shelf, count=count)

    def learn(thread: int) -> None:
        for n in range(6):
            ingest_texts(engine, ADA, f"s{thread}-{n}", f"I'm allergic to food{thread}x{n}.", day=n + 1)

    threads = [threading.Thread(target=learn, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engine.facts(ADA)) == 18
    assert len(engine.profile(ADA, 10_000).facts) == 18


DIES = """
import os, sys
from pathlib import Path
from limpet.memory.builtin import BuiltInMemory
from limpet.stores.sqlite.index_store import SQLiteIndexStore
from limpet.testing.memory_contract import ADA, conversation

history, said = conversation(ADA, "s1", *sys.argv[2:])
def chunks():
    for at in range(2):
        yield said[at:at + 1]
    os._exit(9)
BuiltInMemory(SQLiteIndexStore(Path(sys.argv[1])), count=len).ingest(history, chunks())
"""


@pytest.mark.req("A-14")
def test_a_process_that_dies_in_the_middle_leaves_nothing_that_matters(tmp_path: Path):
    path, texts = tmp_path / "x-memory", ["I live in Oslo.", "My name is Ada.", "I like jazz."]
    died = subprocess.run([sys.executable, "-c", DIES, str(path), *texts], check=False)
    assert died.returncode == 9
    shelf, other = SQLiteIndexStore(path), BuiltInMemory(VolatileIndexStore(), count=count)
    engine = BuiltInMemory(shelf, count=count)
    assert len(engine.facts(ADA)) == 2
    for each in (engine, other):
        ingest_texts(each, ADA, "s1", *texts)
    assert engine.facts(ADA) == other.facts(ADA)
    assert engine.profile(ADA, 500) == other.profile(ADA, 500)
    shelf.close()


@pytest.mark.req("A-14")
def test_nothing_of_what_is_forgotten_is_in_any_file(tmp_path: Path):
    shelf = SQLiteIndexStore(tmp_path / "state.db-memory")
    engine = BuiltInMemory(shelf, count=count)

    def bytes_() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.iterdir())

    ingest_texts(engine, ADA, "ses-canary1", "I live in Canarytown.", "I'm allergic to canarynuts.", day=1)
    ingest_texts(engine, ADA, "ses-other", "I moved to Elsewhere.", "I hate canarysongs.", "My name is Cana.", day=2)
    ingest_texts(engine, BOB, "ses-bob", "I live in Bobtown.", day=3)
    assert b"Canarytown" in bytes_()
    engine.forget(ADA, "ses-canary1")
    left = bytes_()
    for gone in (b"anarytown", b"canarytown", b"canarynut", b"ses-canary1"):
        assert gone not in left
    engine.forget(ADA, "ses-other", position(2, 2))
    assert b"canarysong" not in bytes_()
    assert b"ada" in bytes_()
    engine.forget(ADA)
    left = bytes_()
    for gone in (b"ada", b"Elsewhere", b"Cana", b"ses-other", b"elsewhere"):
        assert gone not in left
    assert b"Bobtown" in left
    shelf.close()


def test_rows_of_a_user_begin_with_tenant_and_user(shelf: IndexStore):
    engine = BuiltInMemory(shelf, count=count)
    ingest_texts(engine, ADA, "s1", "I live in Oslo.", "My name is Ada.")
    mine = fact_store.encode_key(ADA.tenant, ADA.user_id)
    for book in (*fact_store.TABLES, "memory.taken"):
        rows = shelf.scan(book, b"", b"\xff" * 9, limit=99)
        assert rows
        assert all(key.startswith(mine) for key, _ in rows)
