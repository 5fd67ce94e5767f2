"""What is known of a user does not depend on how it became known, and what is forgotten might never have been."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.core.values.memory_records import ArchivedMessage, Fact, History, Profile
from limpet.memory.builtin import BuiltInMemory
from limpet.memory.index_store import VolatileIndexStore
from limpet.testing.memory_contract import ADA, conversation

SAYINGS = [
    "I live in Oslo.",
    "i live in oslo",
    "I moved to Bergen.",
    "I prefer window seats.",
    "From now on book aisle seats for me.",
    "I'm allergic to nuts.",
    "I'm not allergic to nuts any more.",
    "I like jazz.",
    "I hate jazz.",
    "My sister Mia is loud.",
    "Fine, thanks.",
    "福岡に引っ越しました。",
    "我喜欢靠窗的座位。",
]
Conversation = tuple[History, list[ArchivedMessage]]


@st.composite
def histories(draw: st.DrawFn) -> list[Conversation]:
    """Some sessions, some of them on one day: then their messages have the same times and positions."""
    made = list[Conversation]()
    for number in range(draw(st.integers(1, 5))):
        texts = draw(st.lists(st.sampled_from(SAYINGS), min_size=1, max_size=5))
        made.append(conversation(ADA, f"s{number}", *texts, day=draw(st.integers(1, 4))))
    return made


def known(engine: BuiltInMemory) -> tuple[list[Fact], Profile, list[list[object]]]:
    facts = engine.facts(ADA)
    return facts, engine.profile(ADA, 10_000), [list(engine.sources(ADA, each)) for each in facts]


def fresh() -> BuiltInMemory:
    return BuiltInMemory(VolatileIndexStore(), count=len)


def chunks(said: Sequence[ArchivedMessage], size: int) -> list[Sequence[ArchivedMessage]]:
    return [said[at : at + size] for at in range(0, len(said), size)]


def broken_off(pieces: Sequence[Sequence[ArchivedMessage]], after: int) -> Iterator[Sequence[ArchivedMessage]]:
    yield from pieces[:after]
    raise ConnectionError


def learn(engine: BuiltInMemory, taken: Sequence[Conversation], size: int = 2) -> None:
    for history, said in taken:
        engine.ingest(history, chunks(said, size))


@pytest.mark.req("A-16")
@given(taken=histories(), data=st.data())
@settings(deadline=None)
def test_order_repeats_and_breaks_make_no_difference(taken: list[Conversation], data: st.DataObject):
    plain, other = fresh(), fresh()
    learn(plain, taken)
    steps = data.draw(st.lists(st.tuples(st.sampled_from(taken), st.integers(0, 3)), max_size=6))
    for (history, said), after in steps:
        pieces = chunks(said, data.draw(st.integers(1, 3)))
        if after >= len(pieces):
            other.ingest(history, pieces)
        else:
            try:
                other.ingest(history, broken_off(pieces, after))
            except ConnectionError:
                continue
    learn(other, data.draw(st.permutations(taken)), size=data.draw(st.integers(1, 4)))
    assert known(other) == known(plain)


@pytest.mark.req("A-16")
@given(taken=histories(), data=st.data())
@settings(deadline=None)
def test_what_is_forgotten_might_never_have_been(taken: list[Conversation], data: st.DataObject):
    shelf = VolatileIndexStore()
    engine, without = BuiltInMemory(shelf, count=len), fresh()
    gone = data.draw(st.lists(st.sampled_from(taken), unique_by=lambda each: each[0].key))
    learn(engine, taken)
    count = 0
    for history, said in gone:
        if data.draw(st.booleans()):
            count += engine.forget(ADA, history.session_id)
        else:
            for one in said:
                count += engine.forget(ADA, history.session_id, one.position)
    learn(without, [each for each in taken if each not in gone])
    assert known(engine) == known(without)
    everything = fresh()
    learn(everything, taken)
    assert count == len(everything.facts(ADA)) - len(engine.facts(ADA))
    engine.forget(ADA)
    left = [row for book in list(shelf._tables) for row in shelf.scan(book, b"", b"\xff" * 9, limit=99)]
    assert len(left) == 1, "how often something was forgotten in the tenant"
