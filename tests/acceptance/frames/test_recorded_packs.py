"""Recorded packs are given back byte for byte, whatever has happened since. C-18, C-23."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import limpet
from limpet import CompactionLevel, ContextHandle, ContextPack, ContextPriority, Scope, TokenBudget
from limpet.frames import HandleType

PACKS = 500
LATER = 1_000


def test_500_packs_are_the_same_after_1000_events_a_compaction_and_a_rebuild(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        desk = Desk(lp, random.Random(7))
        recorded = [desk.pack(number) for number in range(PACKS)]
        assert len({pack.context_hash for _, pack in recorded}) == PACKS
        levels = {pack.token_summary.compaction_level for _, pack in recorded}
        assert levels == set(CompactionLevel)

        before = sum(1 for _ in lp.events.feed())
        desk.session.add_messages([next(desk.talk) for _ in range(LATER)])
        desk.session.trimmed(2_000)
        lp.index.compact_context(desk.frame_id, 500)
        assert sum(1 for _ in lp.events.feed()) - before >= LATER
        lp.admin.rebuild()
        _check(lp, desk.frame_id, recorded)
        lp.index.pop_frame(desk.frame_id, result_summary="done")
    with limpet.connect(tmp_path / "state.db") as lp:
        _check(lp, desk.frame_id, recorded)


def _messages(dice: random.Random) -> Iterator[dict[str, object]]:
    while True:
        yield {"role": "user", "content": f"What about day {dice.randrange(10**9)}?"}
        yield {"role": "assistant", "content": _words(dice)}


def _words(dice: random.Random) -> str:
    return " ".join(f"word{dice.randrange(500)}" for _ in range(dice.choice([5, 20, 80])))


class Desk:
    """A session and a frame that packs are made of, one step after another."""

    def __init__(self, lp: limpet.Limpet, dice: random.Random) -> None:
        self._lp, self._dice = lp, dice
        roomy = TokenBudget(total=10_000_000, timeout_ms=None)
        self.session = lp.sessions.create_session("talk", system="You plan trips.")
        self._scope = Scope("planner", session_id="talk")
        root = lp.index.push_frame(self._scope, goal="plan the trip", budget=roomy)
        part = TokenBudget(total=500_000, timeout_ms=None)
        self.frame_id = lp.index.push_frame(
            self._scope, goal="compare", budget=part, parent_frame_id=root.frame_id
        ).frame_id
        self.talk = _messages(dice)

    def pack(self, number: int) -> tuple[int, ContextPack]:
        self.session.add_messages([next(self.talk), next(self.talk)])
        if number % 5 == 0:
            priority = self._dice.choice([p for p in ContextPriority if p < ContextPriority.CRITICAL])
            handle = ContextHandle(
                handle_id=f"page-{number}",
                handle_type=HandleType.DOCUMENT,
                content=_words(self._dice),
                priority=priority if number % 50 else ContextPriority.CRITICAL,
            )
            self._lp.index.add_context_handle(self.frame_id, handle)
        pack = self._lp.index.assemble_context_pack(
            self._scope,
            frame_id=self.frame_id,
            role=f"planner {number}",
            budget_tokens=self._dice.choice([6_000, 8_000, 12_000]),
            min_compaction=self._dice.choice(list(CompactionLevel)),
        )
        return self._lp.index.get_tree(self.frame_id).version, pack


def _check(lp: limpet.Limpet, frame_id: str, recorded: list[tuple[int, ContextPack]]) -> None:
    for version, pack in recorded:
        again = lp.index.pack_of(frame_id, version=version)
        assert again.context_hash == pack.context_hash
        assert again.to_openai() == pack.to_openai()
        assert again.token_summary.used == pack.token_summary.used
