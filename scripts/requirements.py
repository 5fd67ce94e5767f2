"""Prints which requirement is proved by which tests.

Tests name requirements with `@pytest.mark.req("A-9")`; docs/internals/requirements.md lists the
numbers. Exit 1 if a test names a number that is not listed, or if an expected one is unproved.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LISTING = ROOT / "docs" / "internals" / "requirements.md"
ROW = re.compile(r"^\| ([A-Z]-\d+) \| (\w+) \|", re.MULTILINE)


class Proofs:
    """A pytest plugin that keeps, for each number, the tests that name it."""

    def __init__(self) -> None:
        self.by_number: dict[str, Counter[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            test = item.nodeid.partition("[")[0]
            numbers = {number for mark in item.iter_markers("req") for number in mark.args}
            for number in numbers:
                self.by_number.setdefault(number, Counter())[test] += 1


def collect() -> dict[str, Counter[str]]:
    proofs = Proofs()
    output = io.StringIO()
    options = ["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    with contextlib.redirect_stdout(output):
        code = pytest.main([*options, str(ROOT / "tests")], plugins=[proofs])
    if code != pytest.ExitCode.OK:
        sys.exit(f"{output.getvalue()}\nThe tests could not be collected (pytest exit {int(code)}).")
    return proofs.by_number


def stages() -> dict[str, str]:
    return dict(ROW.findall(LISTING.read_text(encoding="utf-8")))


def expand(text: str) -> list[str]:
    """`A-1..A-3,B-2` as a list of numbers."""
    numbers: list[str] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, _, last = part.partition("..")
        letter, start = first.split("-")
        stop = (last or first).rpartition("-")[2]
        numbers += [f"{letter}-{n}" for n in range(int(start), int(stop) + 1)]
    return numbers


def report(stage_of: dict[str, str], proofs: dict[str, Counter[str]]) -> None:
    for number, stage in stage_of.items():
        tests = proofs.get(number, Counter())
        state = f"{len(tests)} tests" if tests else ("later" if stage == "later" else "UNPROVED")
        print(f"{number:5} {state}")
        for test, cases in sorted(tests.items()):
            print(f"      {test}" + (f"  ({cases} cases)" if cases > 1 else ""))


def verdict(stage_of: dict[str, str], proofs: dict[str, Counter[str]], expected: list[str]) -> list[str]:
    """What is wrong: numbers that are named but not listed, and expected ones without a proof."""
    unknown = sorted((set(proofs) | set(expected)) - set(stage_of))
    unproved = [number for number in dict.fromkeys(expected) if number not in proofs]
    return [
        f"{what}: {', '.join(numbers)}"
        for what, numbers in (
            (f"Not in {LISTING.relative_to(ROOT)}", unknown),
            ("Expected, but named by no test", unproved),
        )
        if numbers
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--expect", default="", help="numbers that must be proved: A-1..A-9,B-1")
    parser.add_argument("--expect-now", action="store_true", help="all of stage `now` must be proved")
    options = parser.parse_args()

    stage_of, proofs = stages(), collect()
    report(stage_of, proofs)

    expected = expand(options.expect)
    if options.expect_now:
        expected += [number for number, stage in stage_of.items() if stage == "now"]
    proved = sum(number in proofs for number in stage_of)
    print(f"\n{proved} of {len(stage_of)} requirements are proved by a test.")
    complaints = verdict(stage_of, proofs, expected)
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
