"""Walks of appends, summaries, failures and reopenings: nothing goes missing, nothing is parted."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import limpet
from limpet import Message, Session, WindowPolicy, errors
from limpet.core.windows.summary import SUMMARY_PREFIXES
from limpet.testing import providers

STEPS = 120
POLICIES = (
    WindowPolicy(budget=900, summary="en"),
    WindowPolicy(budget=900),
    WindowPolicy(budget=1_500, summary="ja", recall=0.3),
    WindowPolicy(budget=1_500, summary="zh", high=0.9, low=0.4),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In RAM where that is possible: a walk asks about rules, not about disks."""
    shm = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="limpet-", dir=shm if shm.is_dir() else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


class Away(Exception):
    """What a model raises that can't be reached."""


class Walk:
    """One session and what is done with it, by a seed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.lp = limpet.connect(path)
        self.number = 0
        policy = POLICIES[seed % len(POLICIES)]
        self.id = self.lp.sessions.create_session(system="You book flights.", policy=policy).id

    @property
    def session(self) -> Session:
        return self.lp.sessions.get_session(self.id)

    def talk(self) -> None:
        session = self.session
        for _ in range(self.rng.randint(1, 6)):
            self.number += 1
            session.add_message(
                {"role": "user", "content": f"Book SK{self.number} for Ada. " + "x " * self.rng.randint(0, 60)}
            )
            if self.rng.random() < 0.5:
                self.call(session)
            session.add_message({"role": "assistant", "content": f"REF-{self.number:05d} is booked."})

    def call(self, session: Session) -> None:
        ids = [f"call_{self.number}_{at}" for at in range(self.rng.randint(1, 3))]
        calls = [
            {"id": id_, "type": "function", "function": {"name": "book", "arguments": f'{{"flight": "SK{self.number}"}}'}}
            for id_ in ids
        ]  # fmt: skip
        session.add_message({"role": "assistant", "content": None, "tool_calls": calls})
        for id_ in ids:
            session.add_message({"role": "tool", "tool_call_id": id_, "content": "seat 1A " * self.rng.randint(1, 40)})

    def write(self) -> None:
        """Have a summary written, by a model that may do anything."""
        how = self.rng.choice(["well", "well", "badly", "away", "overtaken", "meanwhile", "cancelled"])

        def model(messages: Sequence[Message], before: str | None) -> str:
            if how == "away":
                raise Away
            if how == "cancelled":
                raise asyncio.CancelledError
            if how == "overtaken":
                self.session.summarize(well)
            if how == "meanwhile":
                self.talk()
            return "something about flights" if how == "badly" else well(messages, before)

        before = self.session.state
        try:
            self.session.summarize(model)
        except (Away, asyncio.CancelledError, errors.SummaryRefused):
            assert self.session.state == before
        except errors.Conflict:
            assert how in ("overtaken", "meanwhile")

    def extract(self) -> None:
        self.session.summarize(language=self.rng.choice(list(SUMMARY_PREFIXES)))

    def reopen(self) -> None:
        """As after a crash: what is not in the log is gone."""
        self.lp.close()
        self.lp = limpet.connect(self.path)

    def reset(self) -> None:
        self.lp.sessions.reset_session(self.id, system="You book trains.")

    def check(self) -> None:
        session = self.session
        state, window = session.state, session.window()
        numbers = [n for entry in window.ledger for n in range(entry.first, entry.last + 1)]
        assert sorted(numbers) == list(range(1, state.message_count + 1))
        told = [m for m in window.messages if str(m.content).startswith(tuple(SUMMARY_PREFIXES.values()))]
        assert len(told) <= 1 and window.tokens <= window.budget
        assert providers.check_openai_chat(window.to_openai()) == []
        summary = state.summary
        if summary is not None:
            assert summary.last < (state.cut.first if state.cut else 1)
            said = [*session.messages][summary.first - 1 : summary.last]
            assert len(said) == summary.last - summary.first + 1, "its range can be read again"


def well(messages: Sequence[Message], before: str | None) -> str:
    marks = [word for m in messages for word in str(m.content).split() if word.startswith(("SK", "REF"))]
    return " ".join(["Ada", *(before or "").split()[-40:], *marks])[:900]


@pytest.mark.req("A-13")
@pytest.mark.parametrize("seed", range(8))
def test_no_sequence_loses_a_message_or_parts_a_pair(folder: Path, seed: int):
    walk = Walk(folder / "a.db", seed)
    steps = [walk.talk] * 6 + [walk.write] * 4 + [walk.extract, walk.reopen] + [walk.reset] * (seed % 2)
    try:
        for _ in range(STEPS):
            walk.rng.choice(steps)()
            walk.check()
    finally:
        walk.lp.close()
