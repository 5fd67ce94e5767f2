"""What several need is written once: two copies drift apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.stores import split_statements

SOURCE = Path(__file__).resolve().parents[2] / "src" / "limpet"


@pytest.mark.parametrize(
    ("written", "where"),
    [
        ('"process-crash", ', ["stores/port.py"]),
        ('split("-- name: ")', ["stores/__init__.py"]),
        ("\nProgress = ", ["admin/log.py"]),
    ],
)
def test_it_stands_in_one_file(written: str, where: list[str]) -> None:
    found = (path for path in SOURCE.rglob("*.py") if written in path.read_text())
    assert [str(path.relative_to(SOURCE)) for path in found] == where


def test_statements_have_the_names_that_stand_above_them() -> None:
    text = "-- For people.\n\n-- name: one\nSELECT 1;\n-- name: two\n-- Why.\nDELETE FROM a; DELETE FROM b;\n"
    assert split_statements(text) == {"one": "SELECT 1", "two": "-- Why.\nDELETE FROM a; DELETE FROM b"}
