"""Forks and rewinds while other processes write to the same session, and while processes die."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import limpet
from limpet.core.values.events import MessageAddedEvent, SessionForkedEvent, SessionRewoundEvent
from tests.acceptance.conversation_steps import texts

APPENDERS, EACH = 3, 60

WORKER = """
import json, random, sys
import limpet
from limpet import errors

path, number, each, rewinds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1"
dice = random.Random(number)
with limpet.connect(path) as lp:
    print("ready", flush=True)
    sys.stdin.readline()
    session = lp.sessions.get_session("s")
    for step in range(each):
        if rewinds and step % 3 == 2:
            session.reload()
            fork = session.fork(new_id=f"f{number}-{step}")
            made = session.rewind(dice.randint(1, session.message_count))
        elif rewinds:
            made = session.add_message({"role": "user", "content": f"r{number}-{step}"})
        else:
            made = session.add_message({"role": "user", "content": f"{number}-{step}"})
            shown = [m.content for m in made.window(10**6, counter="estimate").messages]
            assert shown == [m.content for m in made.messages], (shown, made)
        print(json.dumps([made.id, made.version, made.message_count]), flush=True)
"""


def start(path: Path, number: int, each: int, *, rewinds: bool) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", WORKER, str(path), str(number), str(each), str(int(rewinds))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    return worker


def go(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()


def begun(path: Path) -> None:
    with limpet.connect(path) as lp:
        lp.sessions.create_session("s").add_message({"role": "user", "content": "first"})


def check(path: Path, acknowledged: list[tuple[str, int, int]]) -> None:
    """Everything that was acknowledged is there, as it was; every fork is what its source was."""
    with limpet.connect(path) as lp:
        session = lp.sessions.get_session("s")
        for _, version, count in acknowledged:
            past = session.at(version)
            assert past.message_count == count == len(list(past.messages))
        for event in lp.events.feed():
            if isinstance(event.event, SessionForkedEvent):
                source = session.at(event.event.version)
                fork = lp.sessions.get_session(event.session_id)
                assert texts(fork) == [message.content for message in source.messages]
        assert len(texts(session)) == session.message_count
        assert lp.admin.verify().ok


@pytest.mark.slow
def test_one_process_rewinds_while_others_append(tmp_path: Path):
    path = tmp_path / "state.db"
    begun(path)
    workers = [start(path, n, EACH, rewinds=n == 0) for n in range(APPENDERS + 1)]
    for worker in workers:
        go(worker)
    acknowledged: list[tuple[str, int, int]] = []
    for worker in workers:
        out, _ = worker.communicate(timeout=300)
        assert worker.returncode == 0
        acknowledged += [tuple(json.loads(line)) for line in out.splitlines()]
    assert len(acknowledged) == (APPENDERS + 1) * EACH
    check(path, acknowledged)
    with limpet.connect(path) as lp:
        events = [event.event for event in lp.events.feed()]
        said = Counter(str(e.message.content) for e in events if isinstance(e, MessageAddedEvent))
        wanted = {f"{n}-{step}" for n in range(1, APPENDERS + 1) for step in range(EACH)}
        assert wanted <= said.keys() and max(said.values()) == 1
        assert any(isinstance(event, SessionRewoundEvent) for event in events)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_killed_process_leaves_whole_forks_and_rewinds(tmp_path: Path, seed: int):
    path, dice = tmp_path / "state.db", random.Random(seed)
    begun(path)
    acknowledged: list[tuple[str, int, int]] = []
    for number in range(3):
        worker = start(path, 10 * seed + number, 10_000, rewinds=True)
        go(worker)
        assert worker.stdout is not None
        for _ in range(dice.randint(1, 40)):
            acknowledged.append(tuple(json.loads(worker.stdout.readline())))
        worker.send_signal(signal.SIGKILL)
        rest, _ = worker.communicate(timeout=300)
        lines = [line for line in rest.splitlines() if line.endswith("]")]
        acknowledged += [tuple(json.loads(line)) for line in lines]
    check(path, acknowledged)
