"""Thirty-two callers of one store, each with its own session: as threads and as asyncio tasks.

And as threads that do nothing but hand rows over, for what has to be beside that.
"""

import asyncio
import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import limpet
from benchmarks import harness, ours, raw
from benchmarks.harness import Bench, Figure
from benchmarks.loads import Load
from tests.corpus import ChatMessage

CALLERS = 32


def run(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for load in (bench.loads[0], bench.loads[-1]):
        measured = harness.rates(
            bench,
            {
                "raw": raw.appender(bench.disk / f"raw-{load.name}.db", load, bench.closing),
                "threads": threads(bench.disk / f"threads-{load.name}.db", load, bench.closing),
                "tasks": tasks(bench.disk / f"tasks-{load.name}.db", load, bench.closing),
            },
        )
        for kind in ("threads", "tasks"):
            rounds = harness.ratio(measured[kind], measured["raw"])
            figures.append(
                Figure(
                    name=f"append, {CALLERS} {kind} together, disk, {load.name}: of raw",
                    value=statistics.median(rounds),
                    unit="x",
                    at_least=1.3,
                    rounds=rounds,
                    beside=harness.medians({name: measured[name] for name in ("raw", kind)}),
                )
            )
    return figures


def _own_messages(load: Load) -> list[Iterator[ChatMessage]]:
    return [load.laid_end_to_end(3 * number) for number in range(CALLERS)]


def threads(path: Path | str, load: Load, closing: contextlib.ExitStack) -> harness.Slice:
    store = closing.enter_context(ours.connect(path))
    callers: list[Callable[[], object]] = [
        _thread_step(store.sessions.create_session(user_id=f"user-{number}"), messages)
        for number, messages in enumerate(_own_messages(load))
    ]

    def measure(seconds: float) -> tuple[int, float]:
        done: list[int] = []
        ready = threading.Barrier(CALLERS + 1)

        def work(step: Callable[[], object]) -> None:
            ready.wait()
            done.append(harness.repeat_for(seconds, step)[0])

        workers = [threading.Thread(target=work, args=(step,)) for step in callers]
        for worker in workers:
            worker.start()
        ready.wait()
        began = time.perf_counter()
        for worker in workers:
            worker.join()
        assert len(done) == CALLERS
        return sum(done), time.perf_counter() - began

    return measure


def handed_over(put: Callable[[list[bytes]], object], load: Load) -> harness.Slice:
    """Have threads hand over a row each; the last to come puts all of them together and tells the others, and so on."""
    each = [itertools.islice(raw.encoded(load), 100 * at, None) for at in range(CALLERS)]

    def measure(seconds: float) -> tuple[int, float]:
        mutex, ready = threading.Lock(), threading.Barrier(CALLERS + 1)
        told = [threading.Lock() for _ in range(CALLERS)]
        rows, here, done, ended = [b""] * CALLERS, 0, 0, False
        failed: list[BaseException] = []

        def call(at: int) -> None:
            nonlocal here, done, ended
            told[at].acquire()
            ready.wait()
            while not ended:
                rows[at] = next(each[at])
                with mutex:
                    here += 1
                    last = here == CALLERS
                if not last:
                    told[at].acquire()
                    continue
                here, ended = 0, True
                try:
                    put(list(rows))
                    done += CALLERS
                    ended = time.perf_counter() - began > seconds
                except BaseException as error:
                    failed.append(error)
                finally:
                    for other in (*told[:at], *told[at + 1 :]):
                        other.release()

        workers = [threading.Thread(target=call, args=(at,)) for at in range(CALLERS)]
        for worker in workers:
            worker.start()
        began = time.perf_counter()
        ready.wait()
        for worker in workers:
            worker.join()
        if failed:
            raise failed[0]
        return done, time.perf_counter() - began

    return measure


def _thread_step(session: limpet.Session, messages: Iterator[ChatMessage]) -> Callable[[], object]:
    return lambda: session.add_message(next(messages))


def tasks(path: Path | str, load: Load, closing: contextlib.ExitStack) -> harness.Slice:
    loop = asyncio.new_event_loop()
    closing.callback(loop.close)
    store = loop.run_until_complete(_connect(path))
    closing.callback(lambda: loop.run_until_complete(store.close()))
    callers = loop.run_until_complete(_open_sessions(store, load))

    async def work(caller: tuple[limpet.AsyncSession, Iterator[ChatMessage]], until: float) -> int:
        session, messages = caller
        done = 0
        while time.perf_counter() < until:
            await session.add_message(next(messages))
            done += 1
        return done

    async def all_together(seconds: float) -> tuple[int, float]:
        began = time.perf_counter()
        done = await asyncio.gather(*(work(caller, began + seconds) for caller in callers))
        return sum(done), time.perf_counter() - began

    return lambda seconds: loop.run_until_complete(all_together(seconds))


async def _connect(path: Path | str) -> limpet.AsyncLimpet:
    return await limpet.connect_async(path, max_messages_per_session=ours.SESSION_MAX)


async def _open_sessions(
    store: limpet.AsyncLimpet, load: Load
) -> list[tuple[limpet.AsyncSession, Iterator[ChatMessage]]]:
    return [
        (await store.sessions.create_session(user_id=f"user-{number}"), messages)
        for number, messages in enumerate(_own_messages(load))
    ]
