"""The same world, walked by hypothesis: short walks, but it finds the shortest one that fails."""

from __future__ import annotations

import random
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

from limpet.sessions.requests import Settings
from tests.property import random_messages
from tests.property.store_homes import SQLiteHome, VolatileHome
from tests.property.world import Talk, World

SEEDS = st.integers(0, 2**16)
AT = st.integers(0, 50)


class Machine(RuleBasedStateMachine):
    """Rules over a world; which home it has is said by the subclass."""

    world: World

    def home(self, size: int) -> Any:
        raise NotImplementedError

    @initialize(size=st.integers(1, 6))
    def begin(self, size: int) -> None:
        self.world = World(self.home(size))

    def _talk(self, at: int) -> Talk:
        return list(self.world.talks.values())[at % len(self.world.talks)]

    @rule(system=st.none() | st.text(st.characters(codec="utf-8"), max_size=5))
    def create(self, system: str | None) -> None:
        self.world.create(system=system, user_id="ada")

    @precondition(lambda self: self.world.talks)
    @rule(at=AT, seed=SEEDS, count=st.integers(1, 5), via=st.integers(0, 2), keyed=st.booleans())
    def add(self, at: int, seed: int, count: int, via: int, keyed: bool) -> None:
        talk = self._talk(at)
        messages = random_messages.fitting(random.Random(seed), talk, count)
        key = self.world.new_id("key-") if keyed else None
        self.world.add(talk, messages, via=via, key=key)

    @precondition(lambda self: self.world.talks)
    @rule(at=AT, seed=SEEDS)
    def add_wrong(self, at: int, seed: int) -> None:
        talk = self._talk(at)
        self.world.add(talk, random_messages.wrong(random.Random(seed), talk))

    @precondition(lambda self: self.world.talks)
    @rule(at=AT, start=AT, count=st.integers(1, 3))
    def repeat(self, at: int, start: int, count: int) -> None:
        self.world.repeat(self._talk(at), start, count)
        self.world.repeat_partly(self._talk(at), random_messages.spoken(random.Random(start)))

    @rule(at=AT, seed=SEEDS)
    def keys(self, at: int, seed: int) -> None:
        self.world.repeat_key(at)
        self.world.reuse_key(at, random_messages.spoken(random.Random(seed)))

    @precondition(lambda self: self.world.talks)
    @rule(at=AT, title=st.none() | st.text(st.characters(codec="utf-8"), max_size=9))
    def update(self, at: int, title: str | None) -> None:
        self.world.update(self._talk(at), title, {"k": [title]}, ["z"])

    @precondition(lambda self: self.world.talks)
    @rule(at=AT)
    def go_on(self, at: int) -> None:
        self.world.go_on(self._talk(at))

    @precondition(lambda self: self.world.talks)
    @rule(at=AT)
    def close_calls(self, at: int) -> None:
        self.world.close_calls(self._talk(at))

    @precondition(lambda self: self.world.talks)
    @rule(at=AT)
    def end(self, at: int) -> None:
        self.world.end(self._talk(at))

    @precondition(lambda self: self.world.talks)
    @rule(at=AT, by_get_or_create=st.booleans())
    def reset(self, at: int, by_get_or_create: bool) -> None:
        self.world.reset(self._talk(at), by_get_or_create=by_get_or_create)

    @precondition(lambda self: self.world.talks)
    @rule(at=AT)
    def delete(self, at: int) -> None:
        self.world.delete(self._talk(at))

    @rule()
    def expire(self) -> None:
        self.world.expire()

    @rule()
    def rebuild(self) -> None:
        self.world.rebuild()

    @rule()
    def reopen(self) -> None:
        self.world.reopen()

    @rule()
    def crash(self) -> None:
        self.world.crash()

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        if hasattr(self, "world"):
            for talk in self.world.talks.values():
                self.world.check(talk)
            self.world.check_listing(3)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_all()
            self.world.home.close()


class VolatileMachine(Machine):
    def home(self, size: int) -> Any:
        return VolatileHome(Settings(max_messages_per_session=size), cached=2)


class SQLiteMachine(Machine):
    def home(self, size: int) -> Any:
        shm = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(prefix="limpet-", dir=shm if shm.is_dir() else None))
        return SQLiteHome(self._folder, Settings(max_messages_per_session=size), cached=2)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)


@pytest.mark.slow
@pytest.mark.req("A-1", "A-9", "A-21", "B-14", "B-17", "B-20", "B-21")
@pytest.mark.parametrize(
    ("machine", "examples"), [(VolatileMachine, 120), (SQLiteMachine, 40)], ids=["volatile", "sqlite"]
)
def test_whatever_is_done_model_and_sessions_agree(machine: type[Machine], examples: int):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
