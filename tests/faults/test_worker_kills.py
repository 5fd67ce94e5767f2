"""Background work, killed at every step it takes: another worker takes it up, and ends where it would have.

A step is a commit, a note, a call of the memory engine or of the summariser; a real process dies of SIGKILL just before
or just after it. Judged is what is in the log, in the notes, and in the engine's own file.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import limpet
from limpet import Limpet, Message
from limpet.core.rules.session_rules import ALWAYS_VISIBLE_CATEGORIES, is_fully_offloaded
from limpet.core.values.events import SessionOffloadedEvent, SessionSummarizedEvent
from limpet.jobs.summaries import SUMMARY_PREFIX
from tests.faults import results, worker_processes
from tests.faults.step_kills import Kill
from tests.faults.worker_processes import Server
from tests.full_memory_store import Ledger

SEED = 20_260_801
PARTS = 4
AGAIN = 70
PAIRS = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with conversations that ended in every way, and one that has outgrown its windows."""
    folder = tmp_path_factory.mktemp("prepared")
    with limpet.connect(folder / "state.db", max_messages_per_session=6) as lp:
        for name, user_id in (("ended", "ada"), ("reset", "bob"), ("nobody", None)):
            session = lp.sessions.create_session(name, user_id=user_id)
            session.add_messages([Message("user", f"{name} {n}") for n in range(3)])
        lp.sessions.end_session("ended")
        lp.sessions.reset_session("reset")
        lp.sessions.add_messages("reset", [Message("user", "of the next generation")])
        lp.sessions.end_session("reset")
        lp.sessions.end_session("nobody")
        chain = lp.sessions.create_session("chain", user_id="ada")
        for number in range(8):
            chain.add_message(Message("user", f"chain {number}"))
        lp.sessions.end_session("chain")
    with limpet.connect(folder / "state.db", policy=worker_processes.POLICY) as lp:
        lp.sessions.create_session("long", user_id="bob")
        worker_processes.filled(lp.sessions, "long", "long")
        assert lp.sessions.get_session("long").state.cut is not None
    return folder


def copied(prepared: Path, folder: Path) -> Path:
    shutil.copytree(prepared, folder)
    return folder


def killed(server: Server, folder: Path, kills: Sequence[Kill]) -> None:
    """Work with a kill for each of the first runs, then once more to the end."""
    for number, kill in enumerate(kills):
        assert server.run(folder, kill, number) in (-9, 0), kills
    assert server.run(folder, None, len(kills)) == 0, kills


def steps_of(server: Server, folder: Path) -> list[str]:
    killed(server, folder, ())
    steps: list[str] = json.loads((folder / "steps.json").read_text())
    return steps


def judge(folder: Path) -> list[str]:
    """Return what is wrong with the outcome: nothing, it is hoped."""
    with limpet.connect(folder / "state.db") as lp:
        found = [*_memory(lp, folder), *_summaries(lp)]
        if lp.memory.queue():
            found.append(f"still waiting: {lp.memory.queue()}")
        if lp.events._engine.store.notes("default", SUMMARY_PREFIX):
            found.append("a summary is still wanted")
        return [*found, *lp.admin.verify().faults]


def _memory(lp: Limpet, folder: Path) -> Iterator[str]:
    """Each conversation is in memory once and whole, and the log says so once."""
    lines = Ledger(folder / "memory.jsonl").lines()
    chain = [part.id for part in lp.sessions.session_chain("chain")]
    expected = {"ended#0": ["ended 0", "ended 1", "ended 2"], "reset#1": ["of the next generation"]}
    expected["reset#0"] = ["reset 0", "reset 1", "reset 2"]
    found = {str(line["key"]).partition("@")[0]: line["texts"] for line in lines}
    if len(found) != len(lines):
        yield "memory has a conversation twice"
    for key, texts in expected.items():
        if found.pop(key, None) != texts:
            yield f"memory has something else of {key}"
    if set(found) != {f"{part}#0" for part in chain}:
        yield f"memory has {sorted(found)} of the chain {chain}"
    said = [str(text) for part in chain for text in _texts(found, f"{part}#0")]
    if [text for text in said if text.startswith("chain")] != [f"chain {n}" for n in range(8)]:
        yield f"of the chain memory has {said}"
    noted = Counter(
        f"{event.session_id}#{event.event.generation}"
        for event in lp.events.feed()
        if isinstance(event.event, SessionOffloadedEvent)
    )
    if noted != Counter([*expected, *(f"{part}#0" for part in chain)]):
        yield f"the log says that memory took {noted}"
    owned = ("ended", "reset", *chain)
    if not all(is_fully_offloaded(lp.sessions.get_session(one).state) for one in owned):
        yield "something is not handed over"


def _texts(found: dict[str, object], key: str) -> list[object]:
    texts = found.get(key, [])
    return list(texts) if isinstance(texts, list) else []


def _summaries(lp: Limpet) -> Iterator[str]:
    """What was written stands for exactly what its writer was given, and nothing is without one."""
    session = lp.sessions.get_session("long")
    state, made = session.state, 0
    if state.written is None or state.cut is None or state.written.last != state.cut.first - 1:
        yield f"cut at {state.cut}, written {state.written}"
    last = 0
    for event in lp.events.feed():
        fact = event.event
        if not isinstance(fact, SessionSummarizedEvent) or not fact.summary.author:
            continue
        made += 1
        given = [m for m in session.expand(last + 1, fact.summary.last) if m.category not in ALWAYS_VISIBLE_CATEGORIES]
        if worker_processes.told(given) not in fact.summary.text:
            yield f"the summary of {last + 1} to {fact.summary.last} was made of something else"
        last = fact.summary.last
    if made > 2:
        yield f"{made} summaries for two windows"


@pytest.mark.slow
@pytest.mark.req("A-13", "A-15")
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_step(server: Server, prepared: Path, scratch: Path, part: int):
    """Before and after each commit, note, and call: taken once, summarised rightly."""
    steps = steps_of(server, copied(prepared, scratch / "whole"))
    assert judge(scratch / "whole") == []
    assert {"commit", "put_note", "ingest", "summarize"} <= set(steps)
    kills = [Kill(step, after) for step in range(1, len(steps) + 1) for after in (False, True)]
    for number, kill in enumerate(kills[part::PARTS]):
        folder = copied(prepared, scratch / str(number))
        killed(server, folder, [kill])
        assert judge(folder) == [], f"killed {kill} ({steps[kill.step - 1]})"
    results.keep(f"worker-kills-{part}", kills=len(kills[part::PARTS]), steps=len(steps))


@pytest.mark.slow
@pytest.mark.req("A-15")
def test_killed_again_and_again(server: Server, prepared: Path, scratch: Path):
    """Whoever takes the work up is killed too, and the one after it."""
    steps = len(steps_of(server, copied(prepared, scratch / "whole")))
    draw, dead = random.Random(SEED), 0
    for number in range(AGAIN):
        kills = [Kill(draw.randint(1, steps), draw.random() < 0.5) for _ in range(draw.randint(2, 4))]
        dead += len(kills)
        folder = copied(prepared, scratch / str(number))
        killed(server, folder, kills)
        assert judge(folder) == [], f"killed {kills}, seed {SEED}"
    results.keep("worker-kills-again", kills=dead, seed=SEED)


@pytest.mark.slow
@pytest.mark.req("A-15")
def test_two_at_once_and_one_of_them_is_killed(server: Server, prepared: Path, scratch: Path):
    """What one has in hand the other leaves alone, or takes over; each history counts once."""
    draw = random.Random(SEED)
    with Server() as other, ThreadPoolExecutor(1) as pool:
        for number in range(PAIRS):
            folder = copied(prepared, scratch / str(number))
            kill = Kill(draw.randint(1, 30), draw.random() < 0.5)
            beside = pool.submit(other.run, folder, kill, 0)
            assert server.run(folder, None, 0) == 0
            assert beside.result() in (-9, 0)
            assert server.run(folder, None, 1) == 0
            assert judge(folder) == [], f"killed {kill}, seed {SEED}"
