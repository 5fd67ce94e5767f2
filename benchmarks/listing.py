"""The first page of one user's sessions, in a store of 100,000."""

import asyncio
import json
import statistics
from pathlib import Path

import limpet
from benchmarks import fresh, harness
from benchmarks.harness import Bench, Figure

SESSIONS = 100_000
USERS = 50
PAGE = 100
TOGETHER = 500

PROGRAM = """
import json, sys, time
import limpet

path, user, limit, users = sys.argv[1:]
store = limpet.connect(path)
spent = []
for other in [user, *(f"user-{number}" for number in range(int(users)))]:
    began = time.perf_counter()
    page = store.sessions.list_sessions(user_id=other, limit=int(limit))
    spent.append((time.perf_counter() - began) * 1000)
    assert len(page) == int(limit)
store.close()
print(json.dumps(spent))
"""


def run(bench: Bench) -> list[Figure]:
    path = bench.ram / "listing.db"
    sessions = max(bench.scaled(SESSIONS), USERS * PAGE)
    asyncio.run(_create(path, sessions))
    measured = [_pages_in_fresh_process(path) for _ in range(bench.rounds)]
    first = tuple(one[0] for one in measured)
    later = tuple(statistics.median(one[1:]) for one in measured)
    name = f"first page ({PAGE}) of a user's sessions, of {SESSIONS:,}"
    return [
        Figure(
            name=f"{name}: first query of a process",
            value=statistics.median(first),
            unit="ms",
            at_most=10,
            rounds=first,
        ),
        Figure(name=f"{name}: later ones", value=statistics.median(later), unit="ms", at_most=10, rounds=later),
    ]


async def _create(path: Path, sessions: int) -> None:
    async with limpet.connect_async(str(path)) as store:
        for start in range(0, sessions, TOGETHER):
            await asyncio.gather(
                *(
                    store.sessions.create_session(user_id=f"user-{number % USERS}", title="A trip")
                    for number in range(start, min(start + TOGETHER, sessions))
                )
            )
            if start % (20 * TOGETHER) == 0:
                harness.progress(f"{start:,} of {sessions:,} sessions created")


def _pages_in_fresh_process(path: Path) -> list[float]:
    arguments = (path, "user-7", PAGE, USERS)
    return json.loads(fresh.output_of(PROGRAM, *arguments, compiled=path.parent / "compiled"))
