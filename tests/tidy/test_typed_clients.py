"""The example that sends requests to the providers' clients is accepted by two strict type checkers.

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


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_clients_take_their_own_request_and_no_other(tmp_path: Path, checker: str):
    pytest.importorskip(checker)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG_CALL)
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")]}))
    options = {
        "mypy": ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")],
        "basedpyright": ["--project", str(settings), "--pythonpath", sys.executable],
    }
    done = subprocess.run(
        [sys.executable, "-m", checker, *options[checker], str(PROGRAM), str(wrong)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    refused = [line for line in done.stdout.splitlines() if re.search(r":\d+.* error: ", line)]
    assert refused, done.stdout + done.stderr
    assert all("wrong.py:" in line for line in refused), done.stdout
