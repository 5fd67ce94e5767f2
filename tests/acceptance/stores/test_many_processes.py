"""Many processes on one file: nothing lost, doubled or out of order, and nobody waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import limpet
from limpet import errors, limits
from tests.acceptance.conversation_steps import feed, said, user

PROCESSES, THREADS, MESSAGES, SESSIONS = 8, 8, 200, 16

WORKER = """
import json, sys, threading, time
import limpet

path, process, threads, messages, sessions = sys.argv[1], *map(int, sys.argv[2:])
longest, failed = [], []

def write(thread):
    worst = 0.0
    try:
        handles = [lp.sessions.get_session(f"s{n}") for n in range(sessions)]
        for number in range(messages):
            begin = time.monotonic()
            handles[(number + thread) % sessions].add_message(
                {"role": "user", "content": f"{process}-{thread}-{number}"}
            )
            worst = max(worst, time.monotonic() - begin)
    except BaseException as error:
        failed.append(repr(error))
    longest.append(worst)

with limpet.connect(path) as lp:
    print("ready", flush=True)
    sys.stdin.readline()
    running = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
print(json.dumps({"longest": max(longest), "failed": failed}))
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.req("A-20", "A-18")
def test_eight_processes_of_eight_threads_append_to_the_same_sessions(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        for number in range(SESSIONS):
            lp.sessions.create_session(f"s{number}")
    workers = [start(WORKER, path, number, THREADS, MESSAGES, SESSIONS) for number in range(PROCESSES)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    reports = [json.loads(worker.communicate(timeout=300)[0]) for worker in workers]
    assert [report["failed"] for report in reports] == [[]] * PROCESSES
    # The one duration a test asserts: it is what was promised, and far from what is usual.
    assert max(report["longest"] for report in reports) < 5
    with limpet.connect(path) as lp:
        expected = Counter(
            f"{process}-{thread}-{number}"
            for process in range(PROCESSES)
            for thread in range(THREADS)
            for number in range(MESSAGES)
        )
        assert Counter(said(lp)) == expected
        for number in range(SESSIONS):
            in_order(lp, f"s{number}")
        assert lp.admin.verify().ok


def in_order(lp: limpet.Limpet, session_id: str) -> None:
    """What one thread wrote to a session stands there in the order it was written."""
    last: dict[str, int] = {}
    for message in lp.sessions.get_session(session_id).messages:
        process, thread, number = str(message.content).split("-")
        writer = f"{process}-{thread}"
        assert int(number) > last.get(writer, -1)
        last[writer] = int(number)


HOLDER = """
import sys
import limpet
lp = limpet.connect(sys.argv[1])
session = lp.sessions.get_session("s")
with lp._opened.engine.store.write_lock():
    print("mine", flush=True)
    sys.stdin.readline()
session.add_message({"role": "user", "content": "holder"})
lp.close()
print("done", flush=True)
"""


@pytest.mark.req("A-20")
def test_a_stopped_holder_is_named_and_all_goes_on_when_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        session = lp.sessions.create_session("s")
        holder = start(HOLDER, path)
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "mine\n"
        os.kill(holder.pid, signal.SIGSTOP)
        before = feed(lp)
        monkeypatch.setattr(limits, "WRITE_LOCK_WAIT_S", 0.2)
        for _ in range(3):
            with pytest.raises(errors.StoreBusy, match=str(holder.pid)) as caught:
                session.add_message(user("too early"), key="k")
            assert caught.value.facts["holder"] == str(holder.pid)
            assert "continue or end it" in str(caught.value)
        assert feed(lp) == before, "reading needs no turn"
        monkeypatch.setattr(limits, "WRITE_LOCK_WAIT_S", 30.0)
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.communicate("\n", timeout=300)[0] == "done\n"
        session.add_message(user("now"), key="k")
        assert said(lp) == ["holder", "now"]


@pytest.mark.req("A-20")
def test_a_killed_holder_blocks_nobody(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        session = lp.sessions.create_session("s")
        holder = start(HOLDER, path)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "mine\n"
        holder.kill()
        holder.communicate()
        session.add_message(user("at once"))
        assert said(lp) == ["at once"]


LEAVER = """
import os, sys
import limpet
lp = limpet.connect(sys.argv[1])
for number in range(20):
    lp.sessions.add_messages("s", [{"role": "user", "content": f"{sys.argv[2]}-{number}"}])
os._exit(0) if sys.argv[2] == "abrupt" else lp.close()
"""


@pytest.mark.req("A-20")
@pytest.mark.parametrize("way", ["abrupt", "closing"])
def test_what_another_process_wrote_and_left_is_seen_by_who_stays(tmp_path: Path, way: str):
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        session = lp.sessions.create_session("s")
        assert session.message_count == 0
        left = start(LEAVER, path, way)
        assert left.communicate(timeout=300) == ("", "") and left.returncode == 0
        assert [m.content for m in session.reload().messages] == [f"{way}-{n}" for n in range(20)]
        session.add_message(user("mine"))
        assert lp.admin.verify().ok
