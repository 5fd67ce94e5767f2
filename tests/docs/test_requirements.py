"""Every requirement that tests name is listed, and everything due now is proved by a test."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts import requirements

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {"A": 21, "B": 25, "C": 29}


def test_listing_is_complete():
    numbers = [f"{letter}-{n}" for letter, count in COUNTS.items() for n in range(1, count + 1)]
    assert list(requirements.stages()) == numbers
    assert set(requirements.stages().values()) == {"now"}


def test_all_that_is_due_is_proved():
    done = subprocess.run(
        [sys.executable, "scripts/requirements.py", "--expect-now"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-20:]) + done.stderr


@pytest.mark.parametrize("numbers", ["Z-1", "C-28..C-30"])
def test_unknown_number_is_caught(numbers: str):
    stages = requirements.stages()
    proofs = {number: Counter({"test": 1}) for number in stages}
    assert requirements.verdict(stages, proofs, []) == []
    wrong = requirements.expand(numbers)[-1]
    (expected,) = requirements.verdict(stages, proofs, requirements.expand(numbers))[:1]
    assert "Not in" in expected and wrong in expected
    (named,) = requirements.verdict(stages, {**proofs, wrong: Counter({"test": 1})}, [])
    assert "Not in" in named and wrong in named


def test_unproved_number_is_caught():
    stages = {"A-1": "now", "A-2": "later"}
    (told,) = requirements.verdict(stages, {}, ["A-1"])
    assert "named by no test: A-1" in told


def test_ranges():
    assert requirements.expand("A-1..A-3, B-2") == ["A-1", "A-2", "A-3", "B-2"]
