"""A long random walk over the public interface, with reopening and crashes between steps.

Holds, at every look: no orphan result and no open call but in the last group; the log is everything
ever acknowledged, in order; what is read equals what was written, unknown fields included; a chain's
index is the distance to its root, its walk visits each session once, its tokens count copies once.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.sessions.requests import Settings
from tests.property import random_messages
from tests.property.store_homes import Home, SQLiteHome, VolatileHome
from tests.property.world import Talk, World

WALKS = {"volatile": 17_500, "sqlite": 7_500}
SEEDS = (1, 2, 3, 4)
TALKS_MAX, SAID_MAX, PARTS_MAX = 8, 40, 6

# How often each step is taken, in a thousand.
STEPS = {
    "add": 469, "add_many": 120, "add_wrong": 90, "repeat": 30, "repeat_partly": 10, "add_keyed": 40, "repeat_key": 30,
    "reuse_key": 10, "stale": 20, "check": 60, "update": 30, "create": 20, "create_twice": 5,
    "go_on": 10, "close_calls": 15, "end": 6, "reset": 10, "delete": 8, "listing": 8, "log": 3,
    "expire": 1, "reopen": 3, "crash": 1, "rebuild": 1,
}  # fmt: skip


class Walker:
    """Takes steps by chance, the same ones for the same seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.taken: Counter[str] = Counter()
        self._names = list(STEPS)
        self._weights = list(STEPS.values())

    def step(self) -> None:
        if not self.world.talks:
            name = "create"
        else:
            (name,) = self.rng.choices(self._names, self._weights)
        self.taken[name] += 1
        getattr(self, name)()

    def _talk(self) -> Talk:
        talk = self.rng.choice(list(self.world.talks.values()))
        if len(talk.said) > SAID_MAX or talk.parts > PARTS_MAX:
            self.world.check(talk)
            self.world.delete(talk)
            talk = self.world.create(system="S", user_id="ada")
        return talk

    def create(self) -> None:
        if len(self.world.talks) >= TALKS_MAX:
            self.delete()
        system = "Be brief." if self.rng.random() < 0.7 else None
        self.world.create(system=system, user_id=self.rng.choice(["ada", "bob", None]))

    def create_twice(self) -> None:
        self.world.create_twice(self._talk())

    def add(self, key: str | None = None, count: int = 1) -> None:
        talk = self._talk()
        messages = random_messages.fitting(self.rng, talk, count)
        self.world.add(talk, messages, via=self.rng.choice([0, 0, 0, 1, 1, 2]), key=key)

    def add_many(self) -> None:
        self.add(count=self.rng.randint(2, 6))

    def add_keyed(self) -> None:
        self.add(key=self.world.new_id("key-"))

    def add_wrong(self) -> None:
        talk = self._talk()
        self.world.add(talk, random_messages.wrong(self.rng, talk), via=self.rng.randrange(2))

    def repeat(self) -> None:
        self.world.repeat(self._talk(), self.rng.randrange(1_000), self.rng.randint(1, 3))

    def repeat_partly(self) -> None:
        self.world.repeat_partly(self._talk(), random_messages.spoken(self.rng))

    def repeat_key(self) -> None:
        self.world.repeat_key(self.rng.randrange(1_000))

    def reuse_key(self) -> None:
        self.world.reuse_key(self.rng.randrange(1_000), random_messages.spoken(self.rng))

    def stale(self) -> None:
        self.world.add_stale(self._talk(), random_messages.spoken(self.rng))

    def check(self) -> None:
        self.world.check(self._talk())

    def update(self) -> None:
        setting, dropping = self.rng.sample(["k0", "k1", "k2", "k3"], 2)
        values = {setting: self.rng.choice([1, "x", None, [1, {"a": 2}]])}
        title = self.rng.choice([None, "T", "日本"])
        self.world.update(self._talk(), title, values, [dropping])

    def go_on(self) -> None:
        self.world.go_on(self._talk())

    def close_calls(self) -> None:
        self.world.close_calls(self._talk())

    def end(self) -> None:
        self.world.end(self._talk())

    def reset(self) -> None:
        self.world.reset(self._talk(), by_get_or_create=self.rng.random() < 0.5)

    def delete(self) -> None:
        longest = max(self.world.talks.values(), key=lambda talk: len(talk.said))
        self.world.delete(longest)

    def listing(self) -> None:
        self.world.check_listing(self.rng.choice([1, 3, 50]))

    def log(self) -> None:
        self.world.check_log()

    def expire(self) -> None:
        self.world.expire()

    def rebuild(self) -> None:
        self.world.rebuild()

    def reopen(self) -> None:
        self.world.reopen()

    def crash(self) -> None:
        self.world.crash()


@pytest.fixture
def folder() -> Iterator[Path]:
    """In RAM where that is possible: a walk asks about rules, the fault programmes about disks."""
    shm = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="limpet-walk-", dir=shm if shm.is_dir() else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def home_of(backend: str, folder: Path, seed: int) -> Home:
    size, cached = [(3, 200), (8, 200), (20, 10), (50, 200)][seed % 4]
    settings = Settings(max_messages_per_session=size, max_sessions_in_memory=3)
    if backend == "volatile":
        return VolatileHome(settings, cached)
    return SQLiteHome(folder, settings, cached)


def test_the_walks_are_long_enough():
    assert sum(WALKS.values()) * len(SEEDS) >= 100_000


@pytest.mark.slow
@pytest.mark.req("A-1", "A-2", "A-4", "A-9", "A-20", "A-21", "B-17", "B-20", "B-21")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("backend", WALKS)
def test_a_long_walk_keeps_the_invariants(backend: str, seed: int, folder: Path):
    home = home_of(backend, folder, seed)
    walker = Walker(World(home), seed)
    try:
        for number in range(WALKS[backend]):
            walk_on(walker, number, seed)
        walker.world.check_all()
    finally:
        home.close()
    assert min(walker.taken[name] for name in STEPS) > 0, walker.taken
    print(f"{backend} seed {seed}: {walker.taken.total():,} steps, {len(walker.world.log):,} messages")


def walk_on(walker: Walker, number: int, seed: int) -> None:
    try:
        walker.step()
    except BaseException as error:
        error.add_note(f"step {number:,} of the walk with seed {seed}")
        raise
