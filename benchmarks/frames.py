"""Frames: a step of one against a raw commit of the same bytes, a pack of many handles, and old tenants."""

import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw

import limpet
from benchmarks import fresh, harness
from benchmarks.harness import Bench, Figure
from limpet import ContextHandle, Scope, TokenBudget
from limpet.frames import HandleType

CLOSED = 100_000
TREES = 500
"""Closed frames are spread over so many trees, as years of work would be."""

WRITERS = 8
HANDLES = 10_000
BUDGET = 4_000
NO_LIMITS = TokenBudget(total=2**50, timeout_ms=None, max_tool_calls=None)
PART = TokenBudget(total=1_000, timeout_ms=None)
SCOPE = Scope("planner", session_id="trip", thread_id="main")
INPUTS = {"from": "HAM", "to": "OSL", "when": "2026-11-20", "seats": 2, "flexible": True}

PROGRAM = """
import json, sys, time
import limpet
from limpet import Scope

store = limpet.connect(sys.argv[1])
began = time.perf_counter()
state = store.index.resume_actor(Scope(sys.argv[2]))
spent = time.perf_counter() - began
store.close()
print(json.dumps({"ms": spent * 1000, "frames": len(state.frame_stack)}))
"""


def run(bench: Bench) -> list[Figure]:
    return [*_against_raw(bench), *_pack(bench), *_old_tenant(bench)]


class Work:
    """A root that children are pushed under and popped from, one at a time."""

    def __init__(self, store: limpet.Limpet) -> None:
        self._index = store.index
        self.root = self.last = self._index.push_frame(SCOPE, goal="plan the trip", budget=NO_LIMITS)

    def push(self) -> limpet.Frame:
        self.last = self._index.push_frame(
            SCOPE, goal="compare flights of three airlines and report the cheapest", inputs=INPUTS,
            budget=PART, parent_frame_id=self.root.frame_id,
        )  # fmt: skip
        return self.last

    def pop(self, frame: limpet.Frame) -> None:
        self._index.pop_frame(frame.frame_id, result_summary="SK 4718, direct, 214.00 EUR, two seats")

    def pop_last(self) -> None:
        self.pop(self.last)

    def both(self, seconds: float) -> tuple[int, float]:
        return harness.repeat_for(seconds, lambda: self.pop(self.push()))


def handle(number: int) -> ContextHandle:
    return ContextHandle(
        handle_id=f"page-{number}", handle_type=HandleType.DOCUMENT, estimated_tokens=400,
        description="what the airline says about luggage", target={"path": f"docs/{number}.md"},
    )  # fmt: skip


def _against_raw(bench: Bench) -> list[Figure]:
    """Take a step and a raw commit of the same bytes by turns, one operation at a time.

    Work on frames lies between other work, never in a loop of its own: so neither side finds the
    processor's caches as it left them. Raw commits one after another are measured too, for information.
    """
    store = bench.closing.enter_context(limpet.connect(bench.disk / "frames.db"))
    sizes = _payload_sizes(store)
    raw = {name: _raw(bench, name, size) for name, size in sizes.items()}
    work, page = Work(store), itertools.count()
    steps: dict[str, Callable[[], object]] = {
        "push": work.push,
        "pop": work.pop_last,
        "handle": lambda: store.index.add_context_handle(work.root.frame_id, handle(next(page))),
    }
    pairs = {name: (step, raw[name]) for name, step in steps.items()}
    measured = harness.by_turns(bench, pairs)
    alone = harness.rates(
        bench, {name: lambda seconds, step=step: harness.repeat_for(seconds, step) for name, step in raw.items()}
    )
    figures: list[Figure] = []
    for name, size in sizes.items():
        ours, other = measured[name]
        rounds = harness.ratio(other, ours)
        figures.append(
            Figure(
                name=f"{name} of a frame, disk: time of a raw commit of its {size} bytes",
                value=statistics.median(rounds), unit="x", at_most=2.0, rounds=rounds,
                beside={
                    f"{name} /s": round(statistics.median(ours.per_s), 1),
                    "raw /s": round(statistics.median(other.per_s), 1),
                    "raw in a loop of its own /s": round(statistics.median(alone[name].per_s), 1),
                },
            )
        )  # fmt: skip
    return figures


def _payload_sizes(store: limpet.Limpet) -> dict[str, int]:
    """Make one of each and see how many bytes its event has."""
    work = Work(store)
    work.pop(work.push())
    store.index.add_context_handle(work.root.frame_id, handle(0))
    from limpet.core.formats.codec import encode_frame_event

    kinds = {"frame.pushed": "push", "frame.popped": "pop", "frame.handle_added": "handle"}
    sizes: dict[str, int] = {}
    for fact in store.events.feed():
        if fact.kind in kinds:
            sizes[kinds[fact.kind]] = len(encode_frame_event(fact.event))  # pyright: ignore[reportArgumentType]
    return sizes


def _raw(bench: Bench, name: str, size: int) -> Callable[[], object]:
    connection = apsw.Connection(str(bench.disk / f"raw-{name}.db"), vfs="unix")
    bench.closing.callback(connection.close)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    body = b"x" * size

    def insert() -> None:
        connection.execute("INSERT INTO events (body) VALUES (?)", (body,))

    return insert


def _pack(bench: Bench) -> list[Figure]:
    """Assemble and record packs of a frame with many handles, each with content of its own."""
    store = bench.closing.enter_context(limpet.connect(bench.ram / "pack.db"))
    frame = store.index.push_frame(SCOPE, goal="answer from the pages", budget=NO_LIMITS)
    for number in range(bench.scaled(HANDLES)):
        store.index.add_context_handle(frame.frame_id, _page(number))
    harness.progress("handles added")
    spent: list[float] = []
    for number in range(bench.rounds * 20):
        began = time.perf_counter()
        # Another role each time, or the pack would be the one that was recorded last.
        pack = store.index.assemble_context_pack(SCOPE, budget_tokens=BUDGET, role=f"reader {number}")
        spent.append((time.perf_counter() - began) * 1000)
        assert pack.token_summary.used <= BUDGET
    rounds = tuple(statistics.median(spent[at : at + 20]) for at in range(0, len(spent), 20))
    return [
        Figure(
            name=f"a pack of {BUDGET:,} tokens out of {HANDLES:,} handles, recorded, RAM disk",
            value=statistics.median(rounds), unit="ms", at_most=10, rounds=rounds,
        )
    ]  # fmt: skip


def _page(number: int) -> ContextHandle:
    text = f"Page {number}. " + "Luggage up to 23 kg goes free on flights within the region. " * 12
    return ContextHandle(
        handle_id=f"page-{number}", handle_type=HandleType.DOCUMENT, content=text,
        description="what the airline says about luggage",
    )  # fmt: skip


def _old_tenant(bench: Bench) -> list[Figure]:
    path = bench.ram / "old.db"
    closed = bench.scaled(CLOSED)
    with limpet.connect(path) as old, limpet.connect(bench.ram / "new.db") as new:
        _years_of_work(old, closed)
        working = {"old": Work(old), "new": Work(new)}
        measured = harness.rates(bench, {name: work.both for name, work in working.items()})
    rounds = harness.ratio(measured["new"], measured["old"])
    shown = measured
    cold = tuple(_resumed(path) for _ in range(bench.rounds))
    return [
        Figure(
            name=f"push and pop after {CLOSED:,} frames of the actor, RAM disk: time of that in a new store",
            value=statistics.median(rounds), unit="x", at_most=1.2, rounds=rounds,
            beside=harness.medians(shown),
        ),
        Figure(
            name=f"resume_actor in a fresh process, {CLOSED:,} closed frames in the tenant",
            value=statistics.median(cold), unit="ms", at_most=10, rounds=cold,
        ),
    ]  # fmt: skip


def _years_of_work(store: limpet.Limpet, frames: int) -> None:
    """Push and pop so many frames, most of them children, by several threads at once."""
    each = frames // WRITERS

    def work() -> None:
        done = 0
        while done < each:
            parent = Work(store)
            for _ in range(min(CLOSED // TREES, each - done) - 1):
                parent.pop(parent.push())
                done += 1
            parent.pop(parent.root)
            done += 1

    _together(work)
    harness.progress(f"{frames:,} frames pushed and popped")


def _together(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _resumed(path: Path) -> float:
    found = json.loads(fresh.output_of(PROGRAM, path, "planner", compiled=path.parent / "compiled"))
    assert found["frames"] == 1
    return found["ms"]
