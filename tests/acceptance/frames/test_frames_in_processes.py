"""Sixteen processes share one parent's tokens: none is promised twice, and every refusal tells the truth."""

from __future__ import annotations

import multiprocessing
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import FrameStatus, Scope, TokenBudget
from limpet.core.values import events as e
from limpet.runtime.state_cache import TreeEvent
from tests.acceptance import frame_workers

PROCESSES, TOTAL = 16, 12_000
KILLED = 4
WAIT_S = 300.0


@pytest.mark.slow
@pytest.mark.req("C-3", "C-8", "C-16")
@pytest.mark.parametrize("way", ["pushes", "pops", "kills"])
def test_sixteen_processes_never_promise_a_token_twice(fast_dir: Path, way: str):
    path = fast_dir / "state.db"
    unlimited = TokenBudget(total=TOTAL, max_subframe_depth=None, timeout_ms=None)
    with limpet.connect(path) as lp:
        root = lp.index.push_frame(Scope("root"), goal="all", budget=unlimited)
        parent = lp.index.push_frame(
            Scope("root"), goal="share", budget=unlimited, parent_frame_id=root.frame_id
        ).frame_id
    noted = run(fast_dir, path, parent, way)
    with limpet.connect(path) as lp:
        events = [fact for fact in lp.events.feed() if isinstance(fact, TreeEvent)]
        free, pushed, spent = history(events, parent)
        account = lp.index.get_frame(parent).budget
        children = lp.index.get_tree(parent).frames.keys() - {root.frame_id, parent}
        assert account.used == sum(spent.values())
        assert account.subcall_allocation == sum(pushed[child] for child in children)
        assert account.available() == max(0, free[-1]) == 0
        check_notes(noted, free, pushed, spent, pops=way != "pushes")
        if way == "pushes":
            assert sum(pushed.values()) == TOTAL, "to the last token"
        # Whoever was killed may have spent something before it could pop.
        rest = sum(lp.index.pop_frame(child).budget.used for child in children)
        closed = lp.index.pop_frame(parent, FrameStatus.COMPLETED)
        assert closed.budget.used == sum(spent.values()) + rest
        assert lp.admin.verify().ok
    refusals = sum("refused" in one for notes in noted for one in notes)
    print(f"{way}: {len(pushed):,} children, {len(spent):,} popped, {refusals:,} refusals")


def run(folder: Path, path: Path, parent: str, way: str) -> list[list[dict[str, Any]]]:
    """Let them all at it at once; kill some in the middle. Return what each noted."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([frame_workers.__name__])
    barrier = context.Barrier(PROCESSES)
    files = [folder / f"notes-{number}" for number in range(PROCESSES)]
    workers = [
        context.Process(
            target=frame_workers.push_until_refused,
            args=(str(path), parent, f"w{number}", way != "pushes", str(file), barrier),
        )
        for number, file in enumerate(files)
    ]
    for worker in workers:
        worker.start()
    if way == "kills":
        for worker, file in list(zip(workers, files, strict=True))[:KILLED]:
            until = time.monotonic() + WAIT_S
            while len(frame_workers.read(file)) < 5 and time.monotonic() < until:
                time.sleep(0.001)
            worker.kill()
    for worker in workers:
        worker.join(WAIT_S)
        assert not worker.is_alive()
    if way == "kills":
        assert [worker.exitcode for worker in workers].count(-signal.SIGKILL) == KILLED
    noted = list(map(frame_workers.read, files))
    survivors = noted[KILLED:] if way == "kills" else noted
    faults = [one["fault"] for notes in noted for one in notes if "fault" in one]
    assert faults == []
    assert all(notes[-1] == {"end": True} for notes in survivors)
    return noted


def history(events: list[TreeEvent], parent: str) -> tuple[list[int], dict[str, int], dict[str, int]]:
    """From the log alone: what was free in the parent after each event, and the children's sizes and spending."""
    free, pushed, spent, closed = [0], dict[str, int](), dict[str, int](), set[str]()
    left = TOTAL
    for number, fact in enumerate(events, 1):
        event = fact.event
        assert fact.version == number
        match event:
            case e.FramePushedEvent(parent_frame_id=above) if above == parent:
                pushed[event.frame_id] = event.budget.total
                assert event.budget.total <= left, f"promised twice at version {number}"
                left -= event.budget.total
            case e.FrameUpdatedEvent():
                spent[event.frame_id] = spent.get(event.frame_id, 0) + event.used
            case e.FramePoppedEvent():
                left += pushed[event.frame_id] - spent.setdefault(event.frame_id, 0)
                closed.add(event.frame_id)
            case _:
                pass
        free.append(left)
    return free, pushed, {child: used for child, used in spent.items() if child in closed}


def check_notes(
    noted: list[list[dict[str, Any]]], free: list[int], pushed: dict[str, int], spent: dict[str, int], *, pops: bool
) -> None:
    """What each process was told is so: pushes and pops are in the log, numbers of refusals were true."""
    for notes in noted:
        for one in notes:
            if "pushed" in one:
                assert pushed[one["pushed"]] == one["total"]
            elif "popped" in one:
                assert spent[one["popped"]] == one["used"]
            elif "refused" in one:
                facts = one["refused"]
                assert facts["requested"] == one["asked"] > facts["available"]
                # It was decided somewhere between these two looks at the tree.
                then = free[one["before"] : one["after"] + 1]
                assert facts["available"] in {max(0, left) for left in then}
        assert any("refused" in one for one in notes) or "end" not in notes[-1]
    asked = {one["asks"] for notes in noted for one in notes if "asks" in one}
    assert pushed.keys() <= asked
    assert bool(spent) is pops
