"""An engine and a fork: the child is told, and can't hurt the parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import limpet
from tests.acceptance.conversation_steps import said

FORKING = """
import os, sys
import limpet
from limpet import errors
from tests.acceptance.api.test_error_texts import VERBS

lp = limpet.connect(sys.argv[1])
lp.sessions.create_session("open")
session = lp.sessions.create_session("s", system="S")
session.add_message({"role": "user", "content": "before"})
list(session.messages)
child = os.fork()
if child == 0:
    wrong = []
    for name, verb in VERBS.items():
        try:
            verb(lp, session)
            wrong.append(f"{name} worked")
        except errors.ForkedEngine as error:
            if "limpet.connect" not in str(error):
                wrong.append(f"{name}: {error}")
        except BaseException as error:
            wrong.append(f"{name}: {error!r}")
    lp.close()
    with limpet.connect(sys.argv[1]) as own:
        own.sessions.add_messages("s", [{"role": "user", "content": "child"}])
    print("\\n".join(wrong), file=sys.stderr)
    if sys.argv[2] == "exit":
        sys.exit(len(wrong))
    os._exit(len(wrong))
_, status = os.waitpid(child, 0)
session.add_message({"role": "user", "content": "after"})
assert lp.admin.verify().ok
lp.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""

POOL = """
import multiprocessing, sys
import limpet
from limpet import errors

lp = limpet.connect(sys.argv[1])
session = lp.sessions.create_session("s")

def work(number):
    try:
        session.add_message({"role": "user", "content": "never"})
        return "worked"
    except errors.ForkedEngine:
        with limpet.connect(sys.argv[1]) as own:
            own.sessions.add_messages("s", [{"role": "user", "content": str(number)}])
        return "told"

with multiprocessing.get_context("fork").Pool(3) as pool:
    answers = pool.map(work, range(12))
session.add_message({"role": "user", "content": "parent"})
assert lp.admin.verify().ok
lp.close()
assert answers == ["told"] * 12, answers
"""

ROOT = Path(__file__).resolve().parents[3]


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("way", ["exit", "_exit"])
def test_every_verb_of_a_forked_engine_says_so_and_the_parent_goes_on(tmp_path: Path, way: str):
    done = run(FORKING, tmp_path / "state.db", way)
    assert done.returncode == 0, done.stderr
    with limpet.connect(tmp_path / "state.db") as lp:
        assert said(lp) == ["S", "before", "child", "after"]


def test_a_volatile_engine_is_not_shared_by_a_fork_either(tmp_path: Path):
    program = FORKING.replace("limpet.connect(sys.argv[1])", 'limpet.connect("volatile:")', 1)
    done = run(
        program.replace("own.sessions.add", "own.sessions.create_session('s') and own.sessions.add"),
        tmp_path / "state.db",
        "exit",
    )
    assert done.returncode == 0, done.stderr


def test_workers_of_a_forking_pool_open_their_own(tmp_path: Path):
    done = run(POOL, tmp_path / "state.db")
    assert done.returncode == 0, done.stderr
    with limpet.connect(tmp_path / "state.db") as lp:
        found = said(lp)
        assert sorted(found[:-1], key=int) == [str(n) for n in range(12)]
        assert found[-1] == "parent"
