"""Plants known bugs, one at a time, and demands that a named test dies of each.

tests/planted/*.patch are small patches to src/ (or examples/), each with the header lines `Bug:` and `Test:` (see
tests/planted/README.md). Every patch is applied to its own copy of the tree, so the checkout is
never touched. Exit 1 if a bug survives, if a test fails without its bug, or if a patch no longer
applies.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLANTED = ROOT / "tests" / "planted"
FAILED = 1  # pytest: tests ran and at least one failed; anything higher is not a verdict
NO_VERDICT = {2: "the tests could not be run", 4: "no such test", 5: "no such test"}


class Malformed(Exception):
    """A patch file does not say what it must say."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bug:
    """One planted bug: what is wrong with it, and the test that must notice."""

    patch: Path
    what: str
    test: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a bug. Only `killed` is good."""

    patch: str
    bug: str
    test: str
    outcome: str
    seconds: float
    detail: str

    @classmethod
    def of(cls, bug: Bug, outcome: str, *, seconds: float = 0.0, detail: str = "") -> Verdict:
        return cls(
            patch=bug.patch.name, bug=bug.what, test=bug.test, outcome=outcome, seconds=round(seconds, 1), detail=detail
        )


def read(patch: Path) -> Bug:
    text = patch.read_text(encoding="utf-8")
    header = text.partition("\n--- ")[0]
    fields = dict(re.findall(r"^(Bug|Test): (.+)$", header, re.MULTILINE))
    touched = re.findall(r"^(?:---|\+\+\+) [ab]/(\S+)", text, re.MULTILINE)
    if fields.keys() != {"Bug", "Test"}:
        raise Malformed(f"{patch.name} must start with the lines 'Bug: …' and 'Test: …'")
    if not touched or not all(path.startswith(("src/", "examples/")) for path in touched):
        raise Malformed(f"{patch.name} must change files in src/ or examples/, and nothing else")
    return Bug(patch=patch, what=fields["Bug"].strip(), test=fields["Test"].strip())


def check_list() -> None:
    """The README's list and the folder must name the same patches."""
    text = (PLANTED / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([\w-]+\.patch)\)", text))
    present = {patch.name for patch in PLANTED.glob("*.patch")}
    if listed != present:
        names = ", ".join(sorted(listed ^ present))
        raise Malformed(f"tests/planted/README.md and its folder differ in {names}")


def copy_checkout(target: Path) -> None:
    """Everything that is or could be committed; no environments, no caches."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def environment(tree: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CEILING_DIRECTORIES": str(tree.parent),
    }


def check_import(tree: Path) -> None:
    """The copy must be what the tests import, not the checkout behind the editable install."""
    seen = subprocess.run(
        [sys.executable, "-c", "import limpet.limits; print(limpet.limits.__file__)"],
        cwd=tree, env=environment(tree), check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    if not Path(seen.strip()).resolve().is_relative_to(tree.resolve()):
        sys.exit(f"The copy of the tree is not what is imported, but {seen.strip()}")


def run_test(tree: Path, test: str, *, timeout_s: float) -> tuple[int | None, str]:
    """Pytest's exit code, None for a run that did not end, and the last lines it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", "-p", "no:cacheprovider", test]
    process = subprocess.Popen(
        command, cwd=tree, env=environment(tree), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        # A test that dies may leave processes of its own behind, stopped ones among them.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return process.returncode, "\n".join(output.strip().splitlines()[-15:])


def judge(bug: Bug, clean: Path, workplace: Path, *, timeout_s: float) -> Verdict:
    started = time.monotonic()
    tree = workplace / bug.patch.stem
    shutil.copytree(clean, tree)
    try:
        applied = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", str(bug.patch)],
            cwd=tree, env=environment(tree), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if applied.returncode:
            return Verdict.of(bug, "does not apply", detail=applied.stderr.strip())
        code, output = run_test(tree, bug.test, timeout_s=timeout_s)
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    seconds = time.monotonic() - started
    if code == FAILED:
        return Verdict.of(bug, "killed", seconds=seconds)
    if code == 0:
        return Verdict.of(bug, "SURVIVED", seconds=seconds)
    outcome = "hung" if code is None else NO_VERDICT.get(code, f"pytest exit {code}")
    return Verdict.of(bug, outcome, seconds=seconds, detail=output)


def run(bugs: list[Bug], *, workers: int, timeout_s: float) -> list[Verdict]:
    with tempfile.TemporaryDirectory(prefix="limpet-planted-") as folder:
        workplace = Path(folder)
        clean = workplace / "clean"
        copy_checkout(clean)
        check_import(clean)

        def without_bug(test: str) -> tuple[int | None, str]:
            return run_test(clean, test, timeout_s=timeout_s)

        def with_bug(bug: Bug) -> Verdict:
            code, output = healthy[bug.test]
            if code == 0:
                return judge(bug, clean, workplace, timeout_s=timeout_s)
            outcome = f"test fails without the bug (pytest exit {code})"
            return Verdict.of(bug, outcome, detail=output)

        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            tests = sorted({bug.test for bug in bugs})
            healthy = dict(zip(tests, pool.map(without_bug, tests), strict=True))
            return list(pool.map(with_bug, bugs))


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def write_json(path: Path, verdicts: list[Verdict]) -> None:
    result = {
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_source": bool(git("status", "--porcelain", "--", "src", "tests", ":!tests/results")),
        "python": platform.python_version(),
        "bugs": [dataclasses.asdict(verdict) for verdict in verdicts],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def show(verdicts: list[Verdict]) -> None:
    width = max((len(verdict.patch) for verdict in verdicts), default=0)
    for verdict in verdicts:
        print(f"{verdict.patch:{width}}  {verdict.outcome:10}  {verdict.seconds:5.1f} s  {verdict.test}")
        if verdict.detail:
            print("    " + verdict.detail.replace("\n", "\n    "))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patches", nargs="*", type=Path, help="default: all in tests/planted")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one test")
    options = parser.parse_args()

    patches = [patch.resolve() for patch in options.patches] or sorted(PLANTED.glob("*.patch"))
    try:
        check_list()
        bugs = [read(patch) for patch in patches]
    except Malformed as problem:
        print(problem)
        return 1
    verdicts = run(bugs, workers=options.workers, timeout_s=options.timeout)
    show(verdicts)
    killed = sum(verdict.outcome == "killed" for verdict in verdicts)
    print(f"{killed} of {len(verdicts)} planted bugs were killed by the test that names them.")
    if options.json:
        write_json(options.json, verdicts)
    return 0 if killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
