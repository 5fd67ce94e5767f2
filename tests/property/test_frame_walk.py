"""Long random walks over the state index, beside a model, with reopening between steps.

Each step draws from its own randomness, so a walk that fails is walked again with ever fewer steps; the
failure names those that are left.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from limpet import Scope, TokenBudget, errors, limits
from tests.property.frame_model import No, Pause
from tests.property.frame_steps import STEPS, Steps
from tests.property.frame_world import TENANT, FrameWorld

LENGTH = {"volatile": 2_000, "sqlite": 1_000}
WALKS = [("volatile", seed) for seed in range(1, 47)] + [("sqlite", seed) for seed in range(1, 9)]
"""Many walks of a length at which all of a store can be made again every hundred steps."""

EVERY = 100
SHRINKS_MAX = 150


class Walker(Steps):
    """Takes these steps too: what stands still, what is lost sight of, what is repeated."""

    # Suspensions.

    def _clock(self, frame_id: str) -> int:
        """The time in a frame's tree: no earlier than what happened last in it."""
        tree = self.world.engine.trees.open_tree(TENANT, frame_id)
        return max(self.model.now, tree.updated_us if tree else 0)

    def suspend(self) -> None:
        frame_id, rng = self.a_frame(), self.rng
        purpose, seconds = rng.choice(["", "approval"]), rng.choice([None, 3.0, 60.0, 86_400.0])
        payload = rng.choice([None, {"amount": 5}])
        expires = None if seconds is None else self._clock(frame_id) + int(seconds * 1_000_000)

        def act(key: str | None) -> Any:
            return self.index.suspend_frame(
                frame_id, reason="why", purpose=purpose, payload=payload, expires_in_s=seconds, key=key
            )  # fmt: skip

        key = self.key
        token = self.world.do(lambda: self.model.suspend(frame_id, purpose, payload, expires), lambda: act(key))
        if key is not None and token is not None:
            self.keyed_pauses.append((key, token.suspension_id, seconds, act))
            del self.keyed_pauses[:-5]

    def a_pause(self) -> Pause | None:
        standing = [work.pause for work in self.model.open.values() if work.pause]
        if standing and self.rng.random() < 0.8:
            return self.rng.choice(standing)
        ended = list(self.model.pauses.values())[-9:]
        return self.rng.choice(ended) if ended else None

    def resume(self) -> None:
        pause, rng = self.a_pause(), self.rng
        if pause is None:
            return
        others = [one.token for one in list(self.model.pauses.values())[-9:]]
        suspension_id, _, secret = pause.token.partition(".")
        forged = f"{suspension_id}.{rng.choice(others).partition('.')[2]}"
        token = rng.choice([pause.token, pause.token, pause.token, forged, f"{suspension_id}.x{secret}"])
        purpose = rng.choice([None, None, pause.purpose, "another"])
        self.do(
            lambda: self.model.resume(pause, token, purpose),
            lambda key: self.index.resume_frame(token, purpose=purpose, key=key),
        )

    def decide(self) -> None:
        pause, rng = self.a_pause(), self.rng
        if pause is None:
            return
        how, edits = rng.choice(["approve", "reject", "edit", "edit", "shrug"]), rng.random() < 0.4
        payload: dict[str, Any] = {"payload": {"amount": 6}} if edits else {}
        self.do(
            lambda: self.model.decide(pause, how, edits, "ann"),
            lambda key: self.index.decide_suspension(pause.id, how, by="ann", key=key, **payload),
        )

    def revoke(self) -> None:
        pause = self.a_pause()
        if pause is not None:
            self.do(
                lambda: self.model.revoke(pause, "bob"),
                lambda key: self.index.revoke_suspension(pause.id, by="bob", key=key),
            )

    # Tools.

    def a_tool(self, frame_id: str) -> str:
        work = self.model.open.get(frame_id)
        if work is None or not work.tools or self.rng.random() < 0.2:
            return f"t{self.rng.randrange(self.number + 1)}"
        return self.rng.choice(list(work.tools))

    def begin(self) -> None:
        frame_id, rng = self.a_frame(), self.rng
        named = rng.choice([None, f"t{self.number}", f"t{self.number}", self.a_tool(frame_id)])
        intent = rng.random() < 0.4
        self.do(
            lambda: self.model.begin(frame_id, named, intent),
            lambda key: self.index.begin_tool(frame_id, "mail", tool_id=named, intent=intent, key=key),
        )

    def end(self) -> None:
        frame_id = self.a_frame("tools")
        tool_id, output = self.a_tool(frame_id), self.rng.choice([None, "short", "long" * 3_000])
        self.do(
            lambda: self.model.end(frame_id, tool_id),
            lambda key: self.index.end_tool(frame_id, tool_id, output, key=key),
        )

    def resolve(self) -> None:
        frame_id = self.a_frame("tools")
        tool_id, how = self.a_tool(frame_id), self.rng.choice(["retry", "result", "abandon"])
        plan = self.model.retry if how == "retry" else self.model.end
        self.do(lambda: plan(frame_id, tool_id), lambda key: self.index.resolve_tool(frame_id, tool_id, how, key=key))

    # Actors, time, and coming again.

    def come_back(self) -> None:
        actor, session = self.rng.choice("abc"), self.rng.choice([None, "s1"])
        told = self.model.come_back(actor, session)
        state = self.index.resume_actor(Scope(actor, session))
        self.world.look(told, in_order=False)
        mine = self.model.mine(actor, session)
        stack = mine[0].above() if mine else []
        assert [frame.frame_id for frame in state.frame_stack] == [work.id for work in stack]
        assert (state.current_frame.frame_id if state.current_frame else None) == (mine[0].id if mine else None)
        others = sorted((w for w in mine if w not in stack), key=lambda w: (w.created, w.id))
        found = [(work.frame_id, str(work.work_type), work.description, work.ref_id) for work in state.pending_work]
        assert found == self.model.pending([*stack, *others])
        assert state.recovery_summary.frames_recovered == len(stack)
        assert state.recovery_summary.pending_work_items == len(found)

    def expire(self) -> None:
        self.model.now = max([self.model.now, *self.model.touched.values()])
        told = self.model.expire()
        found = self.index.expire()
        assert sorted(found) == sorted(frame_id for frame_id, _ in told)
        self.world.look(told, in_order=False)

    def tick(self) -> None:
        self.model.now += self.rng.choice([1, 1_000, 1_000_000, 4_000_000, 70_000_000, -2_000_000])

    def keyed(self) -> None:
        """Any step of one command, with a key."""
        self.key = f"k{self.number}"
        names = ["push", "use", "reserve", "pop", "add_handle", "suspend", "resume", "decide", "begin", "end", "update"]
        getattr(self, self.rng.choice(names))()

    def repeat(self) -> None:
        """A command that had its effect, again with its key: the same frame, and nothing new."""
        if self.keyed_pauses and self.rng.random() < 0.3:
            self.suspend_again()
        elif self.keyed_acts:
            key, frame_id, act = self.rng.choice(self.keyed_acts)
            try:
                answer = act(key)
            except errors.ToolNotFound:
                answer = None
            named = getattr(answer, "frame_id", None)
            assert not named or named == frame_id
            self.world.look([])

    def suspend_again(self) -> None:
        key, suspension_id, seconds, act = self.rng.choice(self.keyed_pauses)
        pause = self.model.pauses[suspension_id]
        now = self._clock(pause.frame)
        expires = None if seconds is None else now + int(seconds * 1_000_000)
        self.world.do(lambda: self.model.suspend_again(pause, expires), lambda: act(key))

    def reuse(self) -> None:
        """A key for another command than the one it was used for."""
        if self.keyed_acts:
            key, _, _ = self.rng.choice(self.keyed_acts)
            frame_id = next(iter(self.model.open))
            self._no(errors.KeyReused, lambda: self.index.reserve(frame_id, 1, purpose="reuse", key=key))

    def _no(self, error: type[errors.Error], act: Callable[[], Any]) -> None:
        self.world.refused(No(error), act)

    def bad(self) -> None:
        """What no frame can be asked, whatever its state."""
        index, frame_id, scope = self.index, next(iter(self.model.open)), Scope("a")
        wrong: list[Callable[[], Any]] = [
            lambda: index.reserve(frame_id, -1),
            lambda: index.record_usage(frame_id, True),
            lambda: index.record_usage(frame_id, limits.TOKENS_MAX + 1),
            lambda: index.release_reservation(frame_id, 1.5),  # type: ignore[arg-type]
            lambda: index.push_frame(scope, goal=" ", budget=1),
            lambda: index.push_frame(scope, goal="g", budget=-1),
            lambda: index.push_frame(scope, goal="g", budget=TokenBudget(total=5, used=1)),
            lambda: index.push_frame("a", goal="g", budget=1),  # type: ignore[arg-type]
            lambda: index.pop_frame(frame_id, "over"),  # type: ignore[arg-type]
            lambda: index.update_frame(frame_id, goal=""),
            lambda: index.suspend_frame(frame_id, reason=""),
            lambda: index.suspend_frame(frame_id, reason="r", expires_in_s=0),
            lambda: index.begin_tool(frame_id, "t", effect="odd"),  # type: ignore[arg-type]
            lambda: index.resolve_tool(frame_id, "t", "hope"),
            lambda: index.add_context_handle(frame_id, "h"),  # type: ignore[arg-type]
        ]
        self._no(errors.InvalidRequest, self.rng.choice(wrong))
        garbage = self.rng.choice(["", "x", "sus_1.", ".x", "é.x", "sus_0.secret", "x" * 5_000])
        self._no(errors.InvalidSuspensionToken, lambda: index.resume_frame(garbage))

    def stranger(self) -> None:
        """Another tenant finds nothing of ours, and its errors are those of what never was."""
        theirs, frame_id = self.world.stranger, next(iter(self.model.open))
        acts: list[Callable[[], Any]] = [
            lambda: theirs.get_frame(frame_id),
            lambda: theirs.pop_frame(frame_id, cascade=True),
            lambda: theirs.record_usage(frame_id, 1),
            lambda: theirs.suspend_frame(frame_id, reason="r"),
        ]
        self._no(errors.FrameNotFound, self.rng.choice(acts))
        self._no(
            errors.ParentFrameNotFound,
            lambda: theirs.push_frame(Scope("a"), goal="g", budget=0, parent_frame_id=frame_id),
        )
        pause = self.a_pause()
        if pause is not None:
            self._no(errors.InvalidSuspensionToken, lambda: theirs.resume_frame(pause.token))
            self._no(errors.SuspensionNotFound, lambda: theirs.decide_suspension(pause.id, "approve", by="eve"))

    def lists(self) -> None:
        self.world.check_lists(self.rng.choice("abc"), self.rng.choice([None, "s1", "s2"]))

    def reopen(self) -> None:
        self.world.reopen()


@pytest.fixture
def folder() -> Iterator[Path]:
    """In RAM where that is possible: a walk asks about rules, the fault programmes about disks."""
    shm = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="limpet-frames-", dir=shm if shm.is_dir() else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def walk(seed: int, numbers: Sequence[int], path: Path | None, *, every: int = EVERY) -> Walker:
    """Take the steps of these numbers; what fails has a note with the seed and the number."""
    world = FrameWorld(seed, path, cached_trees=(1, 3, 100)[seed % 3])
    walker = Walker(world, seed)
    number = -1
    try:
        for count, number in enumerate(numbers, 1):
            walker.step(number)
            if count % every == 0:
                world.check_rebuilt()
        world.check_derived(whole=True)
        world.check_rebuilt()
    except BaseException as error:
        error.add_note(f"step {number:,} of the walk with seed {seed}")
        raise
    finally:
        world.close()
    return walker


def shrunk(seed: int, numbers: Sequence[int], fault: type[BaseException]) -> Sequence[int]:
    """Return ever fewer steps that fail in the same way, found by leaving pieces out."""
    tries, piece = 0, len(numbers) // 2
    while piece and tries < SHRINKS_MAX:
        at = 0
        while at < len(numbers) and tries < SHRINKS_MAX:
            fewer = [*numbers[:at], *numbers[at + piece :]]
            tries += 1
            if fails(seed, fewer, fault):
                numbers = fewer
            else:
                at += piece
        piece //= 2
    return numbers


def fails(seed: int, numbers: Sequence[int], fault: type[BaseException]) -> bool:
    try:
        walk(seed, numbers, None, every=1 if len(numbers) < 50 else EVERY)
    except fault:
        return True
    except Exception:
        return False
    return False


def walked(seed: int, length: int, path: Path | None) -> Walker:
    """Walk; a walk in RAM that fails is told with the fewest steps that fail."""
    try:
        return walk(seed, range(length), path)
    except Exception as error:
        if path is None:
            failed = int(error.__notes__[-1].split()[1].replace(",", ""))
            left = shrunk(seed, range(failed + 1), type(error))
            error.add_note(f"walk({seed}, {list(left)}, None, every=1) fails too")
        raise


def test_the_walks_are_long_enough():
    assert sum(LENGTH[backend] for backend, _ in WALKS) >= 100_000


@pytest.mark.slow
@pytest.mark.req(
    "C-1", "C-2", "C-3", "C-4", "C-6", "C-8", "C-15", "C-16", "C-18", "C-22", "C-24", "C-25", "C-27", "C-28"
)
@pytest.mark.parametrize(("backend", "seed"), WALKS)
def test_a_long_walk_agrees_with_the_model(backend: str, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "SNAPSHOT_EVERY", 16)
    path = folder / "state.db" if backend == "sqlite" else None
    walker = walked(seed, LENGTH[backend], path)
    assert min(walker.taken[name] for name in STEPS) > 0, walker.taken
    assert walker.world.packs > LENGTH[backend] // 5
    assert walker.world.refusals.total() > LENGTH[backend] // 20
    print(
        f"{backend} seed {seed}: {walker.taken.total():,} steps, {walker.world.fed:,} events,"
        f" {walker.world.refusals.total():,} refusals, {walker.world.packs:,} packs, {len(walker.model.closed):,} frames closed"
    )
