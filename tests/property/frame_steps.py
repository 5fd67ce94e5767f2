"""Steps of a walk over frames: what is pushed, changed, spent and popped, right and wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from limpet import ContextHandle, ContextPriority, FrameStatus, Scope, StateIndex, TokenBudget
from limpet.frames import HandleType, ResultRef
from tests.property.frame_world import FrameWorld

TREES_MAX, FRAMES_MAX, TREE_EVENTS_MAX = 5, 24, 90

# How often each step is taken, in a thousand.
STEPS = {
    "push_root": 35, "push": 120, "push_again": 20, "push_wrong": 10, "update": 45, "reserve": 60, "release": 40,
    "use": 70, "pop": 75, "add_handle": 50, "remove_handle": 25, "add_result": 25, "suspend": 60,
    "resume": 45, "decide": 40, "revoke": 15, "begin": 60, "end": 35, "resolve": 25, "come_back": 25,
    "expire": 15, "tick": 40, "keyed": 25, "repeat": 25, "reuse": 10, "bad": 25, "stranger": 10,
    "lists": 10, "reopen": 5, "pack": 15, "compact": 15,
}  # fmt: skip


class Steps:
    """Takes steps by chance, the same ones for the same seed and numbers."""

    def __init__(self, world: FrameWorld, seed: int) -> None:
        self.world = world
        self.model = world.model
        self.seed = seed
        self.rng = random.Random(seed)
        self.taken: Counter[str] = Counter()
        self.key: str | None = None
        self.keyed_acts: list[tuple[str, str, Callable[[str], Any]]] = []
        self.keyed_pauses: list[tuple[str, str, float | None, Callable[[str], Any]]] = []
        self._names, self._weights = list(STEPS), list(STEPS.values())

    @property
    def index(self) -> StateIndex:
        return self.world.index

    def step(self, number: int) -> None:
        self.rng = random.Random(self.seed << 32 | number)
        self.key = None
        (name,) = self.rng.choices(self._names, self._weights)
        if not self.model.open:
            name = "push_root"
        self.taken[name] += 1
        self.number = number
        getattr(self, name)()

    def do(self, plan: Callable[[], Any], act: Callable[[str | None], Any]) -> Any:
        """Do it, with a key if one is wanted; a key that was used is kept for later."""
        key, before = self.key, self.world.fed
        answer = self.world.do(plan, lambda: act(key))
        if key is not None and self.world.fed > before:
            named = getattr(answer, "frame_id", None)
            self.keyed_acts.append((key, named or "", act))
            del self.keyed_acts[:-20]
        return answer

    def a_frame(self, having: str = "") -> str:
        """Mostly an open one, and of those mostly one that has some of that."""
        chance = self.rng.random()
        if having and chance < 0.7:
            found = [work.id for work in self.model.open.values() if getattr(work, having)]
            if found:
                return self.rng.choice(found)
        if chance < 0.94 or not self.model.closed:
            return self.rng.choice(list(self.model.open))
        return self.rng.choice([*list(self.model.closed)[-9:], "nobody's"])

    def amount(self, free: int) -> int:
        return self.rng.choice([0, 1, free, free + 1, free // 2, free // 3, free // 3])

    def free(self, frame_id: str) -> int:
        return self.model.open[frame_id].free if frame_id in self.model.open else 10

    # Frames.

    def push_root(self) -> None:
        roots = [work for work in self.model.open.values() if work.parent is None]
        if len(roots) >= TREES_MAX:
            self._pop(self.rng.choice(roots).id, "cancelled", cascade=True)
        self._push(None, self.rng.choice([0, 800, 8_000, 8_000]))

    def push(self) -> None:
        parent = self.a_frame()
        work = self.model.open.get(parent)
        if work is not None:
            # A tree that has grown old or large is cut down, so that looking at it stays cheap.
            version = self.index.get_tree(parent).version
            if version > TREE_EVENTS_MAX or len(self.model.open) > FRAMES_MAX:
                self._pop(work.root.id, "failed", cascade=True)
                return
        self._push(parent, self.amount(self.free(parent)))

    def _push(self, parent: str | None, total: int) -> None:
        rng = self.rng
        made = (
            rng.choice("abc"), rng.choice([None, "s1", "s2"]), f"goal {self.number}", rng.choice([None, {"n": 1}]),
            total, rng.choice([None, 1, 3, 3, 6]), rng.choice([None, 0, 2, 10]),
            rng.choice([None, None, 5_000, 120_000]), rng.random() < 0.8,
        )  # fmt: skip
        # Named ones may look as if they belonged to a tree.
        above = rng.choice(list(self.model.open.values())).root.id if self.model.open else "none"
        names = (f"f{self.number}", f"f{self.number}", None, None, f"{above}.x{self.number}")
        frame_id = rng.choice(names)
        self._push_made(frame_id, parent, made)

    def _push_made(self, frame_id: str | None, parent: str | None, made: tuple[Any, ...]) -> None:
        actor, session, goal, inputs, total, depth, calls, timeout, waits = made
        budget = TokenBudget(total=total, max_subframe_depth=depth, max_tool_calls=calls, timeout_ms=timeout)
        self.do(
            lambda: self.model.push(frame_id, parent, made),
            lambda key: self.index.push_frame(
                Scope(actor, session), goal=goal, budget=budget, inputs=inputs,
                parent_frame_id=parent, frame_id=frame_id, parent_waits=waits, key=key,
            ),
        )  # fmt: skip

    def push_again(self) -> None:
        """The same frame once more, open or closed, or another one under its id."""
        frame_id = self.a_frame()
        work = self.model.open.get(frame_id) or self.model.closed.get(frame_id)
        if work is not None:
            _, parent, *made = work.made
            if self.rng.random() < 0.4:
                made[4] += 1
            self._push_made(frame_id, parent, tuple(made))

    def push_wrong(self) -> None:
        self._push(self.rng.choice(["nobody's", *list(self.model.closed)[-3:]]), 1)

    def update(self) -> None:
        frame_id, rng = self.a_frame(), self.rng
        work = self.model.open.get(frame_id)
        goal = rng.choice([None, f"goal {self.number}", work.goal if work else "g"])
        inputs = rng.choice([None, {"n": self.number}])
        status = rng.choice([None, *FrameStatus])
        handled = list(work.failures[:1]) if work and rng.random() < 0.5 else []
        given: dict[str, Any] = {} if goal is None else {"goal": goal}
        if inputs is not None:
            given["inputs"] = inputs
        self.do(
            lambda: self.model.update(frame_id, goal, inputs, status, handled),
            lambda key: self.index.update_frame(frame_id, status=status, handled=handled, key=key, **given),
        )

    def pop(self) -> None:
        frame_id = self.a_frame()
        status = self.rng.choice([*FrameStatus, "completed", "completed", "failed"])
        self._pop(frame_id, status, cascade=self.rng.random() < 0.15)

    def _pop(self, frame_id: str, status: Any, *, cascade: bool) -> None:
        self.do(
            lambda: self.model.pop(frame_id, status, cascade),
            lambda key: self.index.pop_frame(frame_id, status, result_summary="done", cascade=cascade, key=key),
        )

    # Accounts.

    def reserve(self) -> None:
        frame_id, purpose = self.a_frame(), self.rng.choice(["", "brief", "tools"])
        amount = self.amount(self.free(frame_id))
        self.do(
            lambda: self.model.reserve(frame_id, amount, purpose),
            lambda key: self.index.reserve(frame_id, amount, purpose=purpose, key=key),
        )

    def _aside(self, frame_id: str) -> tuple[str, int]:
        work = self.model.open.get(frame_id)
        if work is None or not work.aside or self.rng.random() < 0.2:
            return "none", 0
        return self.rng.choice(list(work.aside.items()))

    def release(self) -> None:
        frame_id = self.a_frame("aside")
        purpose, aside = self._aside(frame_id)
        amount = self.rng.choice([None, aside, aside + 1, aside // 2])
        self.do(
            lambda: self.model.release(frame_id, amount, purpose),
            lambda key: self.index.release_reservation(frame_id, amount, purpose=purpose, key=key),
        )

    def use(self) -> None:
        frame_id = self.a_frame()
        settles = self.rng.choice([None, None, self._aside(frame_id)[0]])
        free = self.free(frame_id)
        amount = self.rng.choice([0, 1, free // 4, free // 4, free, free + 50])
        self.do(
            lambda: self.model.use(frame_id, amount, settles),
            lambda key: self.index.record_usage(frame_id, amount, settles=settles, key=key),
        )

    # Handles and results.

    def add_handle(self) -> None:
        frame_id, rng = self.a_frame(), self.rng
        handle = ContextHandle(
            handle_id=f"h{rng.randrange(8)}",
            handle_type=rng.choice([HandleType.URL, HandleType.DOCUMENT]),
            priority=rng.choice([*ContextPriority]),
            content=f"text {rng.randrange(3)} " * rng.choice([1, 1, 40]),
        )
        self.do(
            lambda: self.model.add_handle(frame_id, handle),
            lambda key: self.index.add_context_handle(frame_id, handle, key=key),
        )

    def remove_handle(self) -> None:
        frame_id = self.a_frame("handles")
        work = self.model.open.get(frame_id)
        handle_id = self.rng.choice([*(work.handles if work else ()), "h0"])
        self.do(
            lambda: self.model.remove_handle(frame_id, handle_id),
            lambda key: self.index.remove_handle(frame_id, handle_id, key=key),
        )

    def pack(self) -> None:
        """A pack is recorded unless it is the one that was recorded last, and comes back as it was."""
        frame_id = self.rng.choice(list(self.model.open))
        work, budget = self.model.open[frame_id], self.rng.choice([500, 700, 4_000])
        made = self.index.assemble_context_pack(Scope(work.actor), frame_id=frame_id, budget_tokens=budget)
        self.world.look(self.model.packed(work, made.context_hash))
        assert self.index.get_frame(frame_id).context_hash == made.context_hash
        again = self.index.pack_of(frame_id)
        assert (again.messages, again.sizes) == (made.messages, made.sizes)
        assert again.segments == made.segments
        assert again.token_summary.used == made.token_summary.used

    def compact(self) -> None:
        frame_id, target = self.a_frame("handles"), self.rng.choice([0, 10, 50, 100_000])
        work = self.model.open.get(frame_id)
        if work is None:
            return
        result = self.index.compact_context(frame_id, target)
        kept = self.index.get_frame(frame_id).context_handles
        self.world.look(self.model.compacted(work, [one.handle_id for one in kept]))
        assert result.target_met is (sum(one.size for one in kept) <= target)

    def add_result(self) -> None:
        frame_id, ref = self.a_frame(), f"r{self.number}"
        self.do(
            lambda: self.model.add_result(frame_id, ref),
            lambda key: self.index.add_result(frame_id, ResultRef("note", ref), key=key),
        )
