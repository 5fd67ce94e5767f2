"""What every backend needs is written once: two copies drift apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.store import statements

STORE = Path(__file__).resolve().parents[2] / "src" / "holdfast" / "store"


@pytest.mark.parametrize(
    ("written", "where"),
    [
        ('"process-crash", ', ["levels.py"]),
        ('split("-- name: ")', ["statements.py"]),
    ],
)
def test_it_stands_in_one_file(written: str, where: list[str]) -> None:
    found = (path for path in STORE.rglob("*.py") if written in path.read_text())
    assert [str(path.relative_to(STORE)) for path in found] == where


def test_statements_have_the_names_that_stand_above_them() -> None:
    text = "-- For people.\n\n-- name: one\nSELECT 1;\n-- name: two\n-- Why.\nDELETE FROM a; DELETE FROM b;\n"
    assert statements.named(text) == {
        "one": "SELECT 1",
        "two": "-- Why.\nDELETE FROM a; DELETE FROM b",
    }
