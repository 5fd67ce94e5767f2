"""Forks, rewinds, resets and continuations against plain lists, walked by hypothesis."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from limpet import Message, ToolCallRequest, ToolCallResult, errors
from limpet.sessions.requests import Settings
from tests.property.store_homes import SQLiteHome, VolatileHome

AT = st.integers(0, 60)
ArchivedMessage = tuple[str, Any]
"""A message's id and what it says."""


class Talk:
    """A session as a plain list: all that was said in it, and where the present generation begins."""

    def __init__(self, said: list[ArchivedMessage], began: int = 0) -> None:
        self.said = said
        self.began = began
        self.continued = False

    @property
    def now(self) -> list[ArchivedMessage]:
        return self.said[self.began :]


class Machine(RuleBasedStateMachine):
    """Rules over sessions and lists; which home they have is said by the subclass."""

    def home(self) -> Any:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.place = self.home()
        self.talks: dict[str, Talk] = {}
        self.was: list[tuple[str, int, list[ArchivedMessage]]] = []
        self.moments: dict[int, dict[str, list[ArchivedMessage]]] = {}
        self.count = 0

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def pick(self, at: int) -> tuple[str, Talk]:
        return list(self.talks.items())[at % len(self.talks)]

    def note(self, name: str) -> None:
        """Remember how it is, to look at it again later."""
        session = self.place.sessions.get_session(name)
        self.was.append((name, session.version, self.talks[name].now))
        last = list(self.place.events.feed())[-1].position
        self.moments[last] = {each: talk.now for each, talk in self.talks.items()}

    @rule()
    def create(self) -> None:
        name = self.new("s")
        self.place.sessions.create_session(name)
        self.talks[name] = Talk([])

    @precondition(lambda self: self.talks)
    @rule(at=AT, ids=st.lists(st.integers(0, 25), min_size=1, max_size=4, unique=True), tool=st.booleans())
    def add(self, at: int, ids: list[int], tool: bool) -> None:
        name, talk = self.pick(at)
        if talk.continued:
            return
        messages = [Message("user", f"{n} {self.new('t')}", id=f"m{n}") for n in ids]
        if tool:
            call = self.new("c")
            messages[0] = Message("assistant", tool_calls=[ToolCallRequest(call, "f", {})], id=messages[0].id)
            messages[1:] = [Message("tool", tool_results=[ToolCallResult(call, "r")], id=self.new("r"))]
        state = self.place.sessions.get_session(name).state
        if state.open_calls:
            result = ToolCallResult(state.open_calls[0].call_id, "late")
            messages = [Message("tool", tool_results=[result], id=self.new("r"))]
        taken = {said[0] for said in talk.said}
        if any(message.id in taken for message in messages):
            with pytest.raises(errors.DuplicateMessage):
                self.place.sessions.add_messages(name, messages)
            return
        self.place.sessions.add_messages(name, messages)
        talk.said = [*talk.said, *map(shown, messages)]
        self.note(name)

    @precondition(lambda self: self.talks)
    @rule(at=AT, number=AT, by_id=st.booleans())
    def fork(self, at: int, number: int, by_id: bool) -> None:
        name, talk = self.pick(at)
        if not talk.now:
            return
        number = number % len(talk.now) + 1
        fork = self.new("f")
        place = talk.now[number - 1][0] if by_id else number
        self.place.sessions.fork_session(name, place, new_id=fork)
        self.talks[fork] = Talk(talk.said[: talk.began + number], talk.began)
        self.note(fork)

    @precondition(lambda self: self.talks)
    @rule(at=AT, number=AT, by_id=st.booleans())
    def rewind(self, at: int, number: int, by_id: bool) -> None:
        name, talk = self.pick(at)
        if not talk.now:
            return
        number = number % len(talk.now) + 1
        place = talk.now[number - 1][0] if by_id else number
        self.place.sessions.rewind_session(name, place)
        talk.said = talk.said[: talk.began + number]
        talk.continued = False
        self.note(name)

    @precondition(lambda self: self.was)
    @rule(at=AT)
    def fork_the_past(self, at: int) -> None:
        name, version, said = self.was[at % len(self.was)]
        if name not in self.talks:
            return
        fork = self.new("p")
        past = self.place.sessions.get_session(name).at(version)
        past.fork(new_id=fork)
        # Ids of earlier generations are taken in it too; which they were is not known here.
        self.talks[fork] = Talk(said)
        self.talks[fork].continued = past.generation > 0

    @precondition(lambda self: self.talks)
    @rule(at=AT)
    def reset(self, at: int) -> None:
        name, talk = self.pick(at)
        self.place.sessions.reset_session(name)
        talk.began, talk.continued = len(talk.said), False
        self.note(name)

    @precondition(lambda self: self.talks)
    @rule(at=AT)
    def go_on(self, at: int) -> None:
        name, talk = self.pick(at)
        if talk.continued:
            return
        session = self.place.sessions.get_session(name)
        following = self.place.sessions.create_continuation_session(session)
        talk.continued = True
        self.talks[following.id] = Talk([shown(message) for message in following.messages])
        self.note(following.id)

    @precondition(lambda self: len(self.talks) > 3)
    @rule(at=AT)
    def delete(self, at: int) -> None:
        name, _ = self.pick(at)
        self.place.sessions.delete_session(name)
        del self.talks[name]

    @rule()
    def reopen(self) -> None:
        self.place.reopen()

    @rule()
    def crash(self) -> None:
        self.place.crash()

    @invariant()
    def all_is_as_the_lists_say(self) -> None:
        for name, talk in getattr(self, "talks", {}).items():
            session = self.place.sessions.get_session(name)
            assert [shown(message) for message in session.messages] == talk.now, name
            seen = session.window(10**6, counter="estimate").messages
            open_ = bool(session.state.open_calls)
            assert open_ or [shown(message) for message in seen] == talk.now, name

    def teardown(self) -> None:
        if not hasattr(self, "place"):
            return
        for name, version, said in self.was:
            if name in self.talks:
                past = self.place.sessions.get_session(name).at(version)
                assert [shown(message) for message in past.messages] == said, (name, version)
        for position, talks in self.moments.items():
            moment = self.place.events.at(position)
            for name in talks.keys() & self.talks.keys():
                found = [shown(message) for message in moment.session(name).messages]
                assert found == talks[name], (position, name)
                changed = moment.diff(moment).session(name)
                assert changed.removed == changed.added == ()
        assert self.place.admin.verify().ok
        self.place.close()


def shown(message: Message) -> ArchivedMessage:
    return message.id, message.content or [str(part) for part in message.tool_results]


class VolatileMachine(Machine):
    def home(self) -> Any:
        return VolatileHome(Settings(), cached=2)


class SQLiteMachine(Machine):
    def home(self) -> Any:
        shm = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(prefix="limpet-", dir=shm if shm.is_dir() else None))
        return SQLiteHome(self._folder, Settings(), cached=2)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "examples"), [(VolatileMachine, 120), (SQLiteMachine, 40)], ids=["volatile", "sqlite"]
)
def test_forks_and_rewinds_agree_with_plain_lists(machine: type[Machine], examples: int):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
