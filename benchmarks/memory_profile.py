"""Long-term memory: what a new session waits for, and a long conversation that is taken.

A profile is asked for of users of whom a thousand facts are known, and ten thousand. Then a fresh process takes
a conversation of 10,000 messages, made as it is read, after a shorter one has warmed it up: what it grows by in
the second is not bounded by any cache.
"""

import json
import statistics
import time

from benchmarks import fresh
from benchmarks.harness import Bench, Figure
from limpet import tokens
from limpet.core.values.memory_records import ArchivedMessage, Fact, FactKind, History, Source, TenantUser
from limpet.core.values.messages import Message
from limpet.memory.builtin import BuiltInMemory
from limpet.stores.sqlite.index_store import SQLiteIndexStore

BUDGET = 1_000
FEW, MANY = 1_000, 10_000
MESSAGES = 10_000
PROFILE_AT_MOST_MS = 20
SEARCH_AT_MOST_MS = 50
GROWTH_AT_MOST_MIB = 8

PROGRAM = """
import gc, json, sys, time
from pathlib import Path
from limpet import tokens
from limpet.memory.builtin import BuiltInMemory
from limpet.stores.sqlite.index_store import SQLiteIndexStore
from limpet.core.values.memory_records import History, ArchivedMessage, TenantUser
from limpet.core.values.messages import Message

path, warm, whole = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
user = TenantUser("default", "ada")
memory = BuiltInMemory(SQLiteIndexStore(Path(path)), count=tokens.named("o200k_base").text)

def resident_mib():
    gc.collect()
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024

def said(session, number):
    fact = f"My booking reference is KX{number}-{session}. I prefer song{number % 50}."
    text = fact if number % 10 == 0 else "The ferry leaves at noon, and nobody knows from which pier. " * 8
    message = Message(role="user" if number % 2 == 0 else "assistant", content=text)
    return ArchivedMessage(
        position=session * 100_000 + number, session_id=f"s{session}", generation=1,
        number=number, time_us=number, message=message,
    )

def take(session, count):
    chunks = (
        [said(session, number) for number in range(at, min(at + 256, count))]
        for at in range(0, count, 256)
    )
    history = History(
        key=f"s{session}/1", user=user, session_id=f"s{session}", generation=1, messages=count, ended_us=count
    )
    memory.ingest(history, chunks)

take(1, warm)
before = resident_mib()
began = time.perf_counter()
take(2, whole)
took = time.perf_counter() - began
print(json.dumps({"grown": resident_mib() - before, "took": took, "facts": len(memory.facts(user))}))
"""


def run(bench: Bench) -> list[Figure]:
    few, many = bench.scaled(FEW), bench.scaled(MANY)
    path = bench.disk / "taken.db-memory"
    seen: dict[str, float] = json.loads(
        fresh.output_of(PROGRAM, path, 2_000, bench.scaled(MESSAGES), compiled=bench.disk)
    )
    small, large = _known(bench, few), _known(bench, many)
    times = {n: _times(bench, memory) for n, memory in ((few, small), (many, large))}
    return [
        Figure(
            name=f"profile of {BUDGET:,} tokens out of {many:,} facts",
            value=times[many][0],
            unit="ms",
            at_most=PROFILE_AT_MOST_MS,
            beside={f"out of {few:,} ms": times[few][0]},
        ),
        Figure(
            name=f"the same: time of that out of {few:,}",
            value=times[many][0] / times[few][0],
            unit="times",
            at_most=1.5,
        ),
        Figure(
            name=f"search in {many:,} facts for a rare word and a common one",
            value=times[many][1],
            unit="ms",
            at_most=SEARCH_AT_MOST_MS,
        ),
        Figure(
            name=f"resident growth while {bench.scaled(MESSAGES):,} messages are taken",
            value=seen["grown"],
            unit="MiB",
            at_most=GROWTH_AT_MOST_MIB,
            beside={"messages /s": bench.scaled(MESSAGES) / seen["took"], "facts": seen["facts"]},
        ),
    ]


def _known(bench: Bench, count: int) -> BuiltInMemory:
    """Return a memory that knows a number of facts, of all kinds, some of them replaced."""
    shelf = SQLiteIndexStore(bench.disk / f"{count}.db-memory")
    bench.closing.callback(shelf.close)

    def found(said: list[ArchivedMessage]) -> list[Fact]:
        return [_fact(one.position) for one in said]

    memory = BuiltInMemory(shelf, count=tokens.named("o200k_base").text, fallback=found)  # pyright: ignore[reportArgumentType]
    history = History(key="k", user=_USER, session_id="s", generation=1, messages=count, ended_us=count)
    memory.ingest(history, ([_said(n) for n in range(at, min(at + 256, count))] for at in range(0, count, 256)))
    return memory


_USER = TenantUser("default", "ada")


def _said(number: int) -> ArchivedMessage:
    return ArchivedMessage(
        position=number, session_id="s", generation=1, number=number, time_us=number,
        message=Message(role="user", content="x"),
    )  # fmt: skip


def _fact(number: int) -> Fact:
    kind = list(FactKind)[number % 3]
    text = f"The booking of trip{number} to place{number % 97} has the reference KX{number}."
    about = f"trip:{number % 700}" if number % 5 == 0 else ""
    return Fact(id="", kind=kind, text=text, source=Source("s", "m", number), since_us=number, about=about)


def _times(bench: Bench, memory: BuiltInMemory) -> tuple[float, float]:
    asked, searched = list[float](), list[float]()
    for number in range(bench.rounds * 20):
        began = time.perf_counter()
        profile = memory.profile(_USER, BUDGET)
        asked.append(time.perf_counter() - began)
        assert 0 < profile.tokens <= BUDGET
        began = time.perf_counter()
        assert memory.search(_USER, f"booking trip{number + 7}", 5)
        searched.append(time.perf_counter() - began)
    return statistics.median(asked) * 1000, statistics.median(searched) * 1000
