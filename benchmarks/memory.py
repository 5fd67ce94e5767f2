"""Resident memory while much more is stored than the caches may hold.

A fresh process fills the caches, then stores and reads several times as much: many sessions,
and one long one. What it grew by in the second part is not bounded by any cache, so it must be
next to nothing.
"""

import json

from benchmarks import fresh
from benchmarks.harness import Bench, Figure

SESSIONS_WARM = 1_200
TIMES = 6
GROWTH_AT_MOST_MIB = 8

PROGRAM = """
import gc, json, sys
from pathlib import Path
import limpet
from tests import corpus

path, warm, whole = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
conversation = next(corpus.conversations(5, 1))

def resident_mib():
    gc.collect()
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024

def write(store, first, last):
    for number in range(first, last):
        session = store.sessions.create_session(session_id=f"s{number}", user_id="ada")
        session.add_messages(conversation)

def read(store, first, last):
    for number in range(first, last, 2):
        session = store.sessions.get_session(f"s{number}")
        assert sum(1 for _ in session.messages) == len(conversation)

store = limpet.connect(path, max_messages_per_session=10**8)
idle = resident_mib()
write(store, 0, warm)
read(store, 0, warm)
before = resident_mib()
write(store, warm, whole)
written = resident_mib()
read(store, warm, whole)
many = resident_mib()
session = store.sessions.create_session(user_id="ada")
for _ in range(warm // 100):
    session.add_messages(conversation * 50)
assert sum(1 for _ in session.messages) == session.message_count
after = resident_mib()
store.close()
print(json.dumps({"idle": idle, "before": before, "written": written, "many": many, "after": after}))
"""


def run(bench: Bench) -> list[Figure]:
    path = bench.ram / "memory.db"
    whole = SESSIONS_WARM + bench.scaled((TIMES - 1) * SESSIONS_WARM)
    seen: dict[str, float] = json.loads(fresh.output_of(PROGRAM, path, SESSIONS_WARM, whole, compiled=bench.disk))
    stored = path.stat().st_size / 2**20
    return [
        Figure(
            name=f"resident growth while {TIMES} times as much is stored and read",
            value=max(seen["written"], seen["many"], seen["after"]) - seen["before"],
            unit="MiB",
            at_most=GROWTH_AT_MOST_MIB,
            beside={
                "stored MiB": round(stored),
                "idle MiB": round(seen["idle"], 1),
                "caches full MiB": round(seen["before"], 1),
                "at the end MiB": round(seen["after"], 1),
            },
        )
    ]
