"""Embedding in the background: everything once, whoever is stopped; what is not worth it never; then found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet import Message, ToolCallRequest, ToolCallResult, errors, limits
from limpet.core.values.memory_records import TenantUser
from limpet.jobs.embed_task import EmbedTask
from limpet.memory.index.search import MessageFilter
from limpet.memory.index_store import IndexStore, VolatileIndexStore
from limpet.memory.vectors.embedder import embedding_text, passages
from limpet.memory.vectors.vector_store import SemanticSearch, VectorStore
from limpet.runtime import state_cache
from limpet.stores.port import Store
from limpet.stores.sqlite.index_store import SQLiteIndexStore
from tests.unit.word_vectors import Words

ADA = TenantUser("default", "ada")


class Place:
    """A store, a shelf beside it, and a worker that is new each time."""

    def __init__(self, lp: limpet.Limpet, shelf: IndexStore) -> None:
        self.lp = lp
        self.store: Store = lp._opened.engine.store
        self.shelf = shelf
        self.words = Words()
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1

    def task(self) -> EmbedTask:
        return EmbedTask(self.store, VectorStore(self.shelf, self.words), self.words)

    def drain(self) -> None:
        while self.task().step("default", self.beat):
            pass

    def texts(self, positions: Sequence[int]) -> Mapping[int, str]:
        found = {position: self.store.feed("default", after=position - 1, limit=1) for position in positions}
        return {
            position: embedding_text(state_cache.messages_of(self.store, "default", page)[0])
            for position, page in found.items()
            if page[0].payload is not None
        }

    def recall(self, query: str, by_words: Sequence[int] = (), limit: int = 3, **filters: object):
        recall = SemanticSearch(VectorStore(self.shelf, self.words), self.words)
        wanted = MessageFilter(**filters)  # pyright: ignore[reportArgumentType]
        found = recall.search(ADA, query, limit, by_words=by_words, texts=self.texts, wanted=wanted)
        return list(self.texts(found[:limit]).values())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    shelf = SQLiteIndexStore(tmp_path / "state.db-memory")
    with limpet.connect(tmp_path / "state.db") as lp:
        yield Place(lp, shelf)
    shelf.close()


def say(place: Place, *texts: str, user: str = "ada") -> limpet.Session:
    session = place.lp.sessions.create_session(user_id=user)
    session.add_messages([Message(role="user", content=text) for text in texts])
    return session


def test_what_was_said_is_embedded_once_and_found(place: Place):
    say(place, "the landlord wants more rent", "the dentist is on tuesday")
    say(place, "bob has a landlord too", user="bob")
    place.drain()
    place.drain()
    assert sorted(place.words.asked) == [
        "bob has a landlord too", "the dentist is on tuesday", "the landlord wants more rent",
    ]  # fmt: skip
    assert place.recall("landlord rent", limit=1) == ["the landlord wants more rent"]
    assert "bob has a landlord too" not in place.recall("bob has a landlord too", limit=9)


def test_only_words_of_users_and_assistants_are_embedded(place: Place):
    session = place.lp.sessions.create_session(user_id="ada", system="you are a long prompt")
    session.add_messages([
        Message(role="user", content="where is my boat"),
        Message(role="assistant", tool_calls=[ToolCallRequest(id="c1", name="look", args={})]),
        Message(role="tool", tool_results=[ToolCallResult(tool_call_id="c1", result="row after row")]),
        Message(role="assistant", content=[{"type": "text", "text": "it lies in the old harbour"}]),
        Message(role="user", content="..."),
    ])  # fmt: skip
    place.drain()
    assert place.words.asked == ["where is my boat", "it lies in the old harbour"]


def test_sessions_of_nobody_are_apart_and_deleted_ones_are_passed_over(place: Place):
    place.lp.sessions.create_session().add_message(Message(role="user", content="nobody says this to anyone"))
    gone = say(place, "this will be deleted quite soon")
    place.lp.sessions.delete_session(gone.id)
    place.drain()
    assert place.words.asked == ["nobody says this to anyone"]
    assert place.recall("nobody says this to anyone") == []


def test_carried_copies_are_not_embedded_again(place: Place):
    session = place.lp.sessions.create_session(user_id="ada", system="be kind")
    session.add_message(Message(role="user", content="remember the number forty two"))
    place.lp.sessions.create_continuation_session(session)
    place.drain()
    assert place.words.asked.count("remember the number forty two") == 1


def test_a_short_answer_is_embedded_with_what_it_answers(place: Place):
    session = place.lp.sessions.create_session(user_id="ada")
    session.add_messages([
        Message(role="assistant", content="Which seat would you like on planes?"),
        Message(role="user", content="The window one."),
        Message(role="user", content="And this I say at greater length."),
    ])  # fmt: skip
    place.drain()
    assert place.words.asked[1:] == [
        "Which seat would you like on planes?\nThe window one.", "And this I say at greater length.",
    ]  # fmt: skip
    assert "The window one." in place.recall("seat on planes", limit=2)


def test_a_step_is_bounded_and_gives_signs_of_life(place: Place):
    say(place, *(f"message number {n} of many" for n in range(limits.EMBED_EVENTS * 2)))
    assert place.task().step("default", place.beat)
    assert len(place.words.asked) <= limits.EMBED_EVENTS
    assert place.beats >= limits.EMBED_EVENTS // limits.EMBED_TEXTS
    place.drain()
    assert len(place.words.asked) == limits.EMBED_EVENTS * 2
    assert place.task().step("default", place.beat) is False


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.lists(st.integers(1, 60), max_size=6))
@settings(max_examples=15)
def test_a_worker_that_is_stopped_anywhere_loses_and_repeats_nothing(stops: list[int], sizes: list[int]):
    with limpet.connect("volatile:") as lp:
        place = Place(lp, VolatileIndexStore())
        said = [f"thing number {n}" for n in range(sum(sizes))]
        rest = iter(said)
        for size, left in zip(sizes, [*stops, *[99] * 6], strict=False):
            say(place, *(next(rest) for _ in range(size)))
            place.beat = stopping(left)
            try:
                place.drain()
            except errors.Conflict:
                continue
        place.beat = stopping(10**6)
        place.drain()
        held = VectorStore(place.shelf, place.words).owner_index(ADA).vectors.positions.tolist()
        assert held == sorted(set(held))
        assert list(place.texts(held).values()) == said


def stopping(left: int):
    """A beat that says after a while that somebody else has taken over."""

    def beat() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise errors.Conflict

    return beat


def test_what_is_forgotten_while_a_step_runs_stays_forgotten(place: Place):
    say(place, "the secret is swordfish", "nothing else")
    vectors = VectorStore(place.shelf, place.words)

    def forget() -> None:
        if not place.beats:
            vectors.forget(ADA)
        place.beats += 1

    assert place.task().step("default", forget) is True
    assert len(vectors.owner_index(ADA).vectors) == 0
    assert vectors.progress("default").position == 0


def test_an_embedder_that_fails_leaves_nothing_half_done(place: Place):
    say(place, *(f"message number {n}" for n in range(40)))
    embed, calls = place.words.embed, []

    def failing(texts: Sequence[str]):
        calls.append(texts)
        if len(calls) == 2:
            raise errors.Unavailable("the embedder is away")
        return embed(texts)

    place.words.embed = failing
    with pytest.raises(errors.Unavailable):
        place.drain()
    assert VectorStore(place.shelf, place.words).progress("default").position == 0
    place.drain()
    assert len(VectorStore(place.shelf, place.words).owner_index(ADA).vectors) == 40


def test_another_embedder_begins_anew(place: Place):
    say(place, "the landlord wants more rent")
    place.drain()
    place.words = Words("another", 32)
    place.drain()
    assert place.recall("landlord", limit=1) == ["the landlord wants more rent"]


def test_hits_by_words_are_found_without_any_vectors(place: Place):
    say(place, "the ticket is 0093-ELM")
    head = place.store.feed("default")[-1].position
    assert place.recall("0093-ELM", by_words=[head]) == ["the ticket is 0093-ELM"]
    assert place.words.asked == []


def test_the_latest_word_comes_first(place: Place):
    say(place, "the gym code is LYNX-3307 for now", "the weather is fine", "rain is coming soon")
    say(place, "the gym code is HERON-9914 from now on")
    place.drain()
    found = place.recall("what is the gym code LYNX", limit=3)
    assert found[0] == "the gym code is HERON-9914 from now on"
    assert "the gym code is LYNX-3307 for now" in found


def test_filters_hold_for_what_is_found_by_meaning(place: Place):
    one = say(place, "the boat is red")
    say(place, "the boat is green")
    place.drain()
    assert place.recall("boat", session_id=one.id) == ["the boat is red"]
    assert place.recall("boat", roles=frozenset({"assistant"})) == []


def test_long_messages_are_embedded_in_passages():
    text = "One sentence of middling length that ends here. " * 60
    found = passages(text)
    assert " ".join(found) == text.strip()
    assert all(len(passage) <= limits.EMBED_PASSAGE_CHARS for passage in found)
    assert all(passage.endswith(".") for passage in found)
    assert len(passages("x" * 100_000)) == limits.EMBED_PASSAGES_MAX
    assert passages("") == passages(" \n--- ") == []


@given(st.text(max_size=3_000))
def test_passages_are_of_the_text_and_in_order(text: str):
    at = 0
    for passage in passages(text):
        assert 0 < len(passage) <= limits.EMBED_PASSAGE_CHARS
        at = text.index(passage, at) + len(passage)
