"""Programs that send requests to the providers' clients, or await verbs, are judged by two strict type checkers.

The checkers read the clients' own parameter types, so a rendered request that a client would not take is an
error here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples" / "typed_clients.py"
WRONG_CALL = """
from limpet import Window
from openai import OpenAI

def ask(window: Window) -> object:
    return OpenAI().responses.create(model="gpt-5-mini", input=window.to_openai())
"""

AWAITED_CALLS = """
from limpet import AsyncLimpet, AsyncSession, Frame, Scope, Window

async def use(lp: AsyncLimpet) -> tuple[AsyncSession, AsyncSession | None, Window, Frame]:
    session = await lp.sessions.create_session("s", user_id="ada")
    loaded = await lp.sessions.load_session("s")
    window = await session.window(1_000)
    return session, loaded, window, await lp.index.push_frame(Scope("actor"), goal="goal", budget=10)
"""
WRONG_AWAITED_CALL = """
from limpet import AsyncLimpet

async def use(lp: AsyncLimpet) -> None:
    await lp.sessions.create_session(user=3)
"""


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_clients_take_their_own_request_and_no_other(tmp_path: Path, checker: str):
    pytest.importorskip(checker)
    programs = {"wrong.py": WRONG_CALL, "wrong_awaited.py": WRONG_AWAITED_CALL, "awaited.py": AWAITED_CALLS}
    for name, program in programs.items():
        (tmp_path / name).write_text(program)
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")]}))
    options = {
        "mypy": ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")],
        "basedpyright": ["--project", str(settings), "--pythonpath", sys.executable],
    }
    done = subprocess.run(
        [sys.executable, "-m", checker, *options[checker], str(PROGRAM), *programs],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    refused = [line for line in done.stdout.splitlines() if re.search(r":\d+.* error: ", line)]
    refusing = {Path(line.strip().partition(":")[0]).name for line in refused}
    assert refusing == {"wrong.py", "wrong_awaited.py"}, done.stdout + done.stderr
