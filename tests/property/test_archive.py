"""The archive against a naive scan of all that was said: added, forgotten, deleted, by two indexers, over restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import limpet
from limpet import Message
from limpet.core.values.events import MessageAddedEvent
from limpet.core.values.memory_records import TenantUser
from limpet.jobs.index_task import IndexTask
from limpet.memory.index import inverted_index, search, terms
from limpet.memory.index.inverted_index import ArchiveIndex, IndexBatch
from limpet.memory.index_store import IndexStore

USERS = ("ada", "ben", None)
SESSIONS = ("s1", "s2", "s3", "s4")
WORDS = st.sampled_from(
    [
        "seat",
        "seats",
        "window",
        "QH7-44",
        "4418",
        "foo_bar",
        "東京",
        "京都に行く",
        "猫",
        "コーヒー",
        "the",
        "a",
        "booking",
        "cancelled",
    ]
)
TEXT = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments so small that a short walk fills and merges all their sizes."""
    for module in (inverted_index, search):
        monkeypatch.setattr(module, "SEGMENT_SIZES", (2, 4, 8, 16))


class Told:
    """A message as the model has it."""

    def __init__(self, user: str | None, session: str, position: int, role: str, text: str) -> None:
        self.user, self.session, self.position, self.role = user, session, position, role
        self.terms = {*terms.count_terms(text)}
        self.answers: Told | None = None
        self.there = True

    def has(self, query: list[bytes]) -> bool:
        return self.there and any(
            any(own.startswith(term) for own in self.terms) if terms.is_prefix(term) else term in self.terms
            for term in query
        )


class Walk(RuleBasedStateMachine):
    """Whatever happens, a search finds exactly what a scan finds."""

    url = "volatile:"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="archive-")
        url = self.url or str(Path(self.folder.name) / "state.db")
        self.lp = limpet.connect(url)
        self.end = 0
        self.told: list[Told] = []
        self.owner: dict[str, str | None] = {}
        self.last: dict[tuple[str, str], Told] = {}

    def teardown(self) -> None:
        self.lp.close()
        self.folder.cleanup()

    @property
    def shelf(self) -> IndexStore:
        return self.lp._opened.index_store()

    @rule(name=st.sampled_from(SESSIONS), user=st.sampled_from(USERS), texts=st.lists(TEXT, min_size=1, max_size=5), role=st.sampled_from(("user", "assistant")))  # fmt: skip
    def say(self, name: str, user: str | None, texts: list[str], role: str) -> None:
        session = self.lp.sessions.get_or_create_session(name, user_id=user)
        self.owner.setdefault(name, user)
        before = len(session.messages)
        messages = [Message(role=role, content=text) for text in texts]
        session.add_messages(messages)
        assert len(session.messages) == before + len(texts)
        new = list(self.lp.events.feed(self.end))
        self.end = new[-1].position
        at = [fact.position for fact in new if isinstance(fact.event, MessageAddedEvent)]
        for text, position in zip(texts, at, strict=True):
            one = Told(self.owner[name], name, position, role, text)
            one.answers = self.last.get((name, "assistant" if role == "user" else "user"))
            self.last[name, role] = one
            self.told.append(one)

    @rule(steps=st.integers(1, 2))
    def follow(self, steps: int) -> None:
        for _ in range(steps):
            self.lp.archive.task.step("default")

    @rule()
    def another_follows(self) -> None:
        """Two who have read the same can't both write it."""
        stale = IndexBatch(ArchiveIndex(self.shelf), "default")
        IndexTask(self.lp._opened.engine, self.shelf).step("default")
        if ArchiveIndex(self.shelf).cursor("default")[0] != stale.cursor:
            assert not stale.write(10**6, b"")

    @rule()
    def restart(self) -> None:
        if self.url == "volatile:":
            self.lp.archive._task = None
            return
        self.lp.close()
        self.lp = limpet.connect(str(Path(self.folder.name) / "state.db"))

    @rule(name=st.sampled_from(SESSIONS))
    def reset(self, name: str) -> None:
        if name in self.owner:
            self.lp.sessions.reset_session(name)
            self._cut(name)

    @rule(name=st.sampled_from(SESSIONS))
    def delete(self, name: str) -> None:
        if self.owner.pop(name, "none") != "none":
            self.lp.sessions.delete_session(name)
            self._cut(name)
            self._drop(lambda one: one.session == name)

    @rule(user=st.sampled_from(USERS))
    def forget_user(self, user: str | None) -> None:
        self._forget(user, lambda one: one.user == user)
        for name, owner in self.owner.items():
            if owner == user:
                self._cut(name)

    @rule(name=st.sampled_from(SESSIONS))
    def forget_session(self, name: str) -> None:
        if name in self.owner:
            user = self.owner[name]
            self._forget(user, lambda one: one.user == user and one.session == name, name)
            self._cut(name)

    @rule(at=st.integers(0, 30))
    def forget_message(self, at: int) -> None:
        if at < len(self.told):
            one = self.told[at]
            self._forget(one.user, lambda other: other is one, None, one.position)

    def _forget(self, user: str | None, chosen: Any, *place: Any) -> None:
        while self.lp.archive.task.step("default"):
            pass
        there = sum(one.there and chosen(one) for one in self.told)
        assert self.lp.archive.forget(user, *place) == there
        self._drop(chosen)

    def _drop(self, chosen: Any) -> None:
        for one in self.told:
            if chosen(one):
                one.there = False

    def _cut(self, name: str) -> None:
        self.last.pop((name, "user"), None)
        self.last.pop((name, "assistant"), None)

    @rule(query=TEXT, user=st.sampled_from(USERS))
    def search(self, query: str, user: str | None) -> None:
        wanted = terms.query_terms(query)
        found = self.lp.archive.search(query, user_id=user, limit=100)
        expected = {
            one.position
            for one in self.told
            if one.there and one.user == user
            if one.has(wanted) or (one.answers is not None and one.answers.has(wanted))
        }
        assert {hit.position for hit in found} == expected
        assert len(found) == len(expected)
        assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)

    @invariant()
    def no_row_of_one_owner_has_a_word_of_another(self) -> None:
        rows = ArchiveIndex(self.shelf)
        for user in USERS:
            owner = rows.owner(TenantUser("default", user or ""))
            held = {b for one in self.told if one.user == user and one.there for b in one.terms}
            hidden = {b for one in self.told if one.user == user for b in one.terms}
            if owner is not None:
                for segment in inverted_index.segments(rows.head(owner).following):
                    assert rows.terms(owner, segment).keys() <= held | hidden


class OnDisk(Walk):
    url = ""


@pytest.mark.parametrize("walk", [Walk, OnDisk], ids=["volatile", "sqlite"])
def test_a_search_finds_what_a_scan_finds(walk: type[Walk]):
    run_state_machine_as_test(
        walk,
        settings=settings(
            max_examples=40 if walk is Walk else 12,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
