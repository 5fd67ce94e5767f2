"""The repository names no machine, carries no heavy files, and its pins and planted bugs are sound."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts import planted_bugs

ROOT = Path(__file__).resolve().parents[2]
FILE_BYTES_MAX = 1_000_000

URL = re.compile(r"\b(?:https?|ftp)://(?:[^/@\s'\"`]+@)?([A-Za-z0-9.-]+)")
PLACEHOLDER = re.compile(r"(^|\.)(example(\.(com|org|net))?|test|invalid|localhost)$|^127\.0\.0\.1$")
PUBLIC_HOSTS = {
    "json-schema.org",
    "keepachangelog.com",
    "semver.org",
    "sqlite.org",
    "www.sqlite.org",
    # Where what providers demand and charge is written.
    "ai.google.dev",
    "community.openai.com",
    "cookbook.openai.com",
    "developers.openai.com",
    "docs.anthropic.com",
    "github.com",
    "huggingface.co",
    "platform.claude.com",
}

# A path that exists on somebody's machine. Under /tmp only a bare file, as in an example, is generic.
MACHINE_PATH = re.compile(
    r"(?<![\w.~$})*-])/(?:work|home/\w|root|Users/\w|opt|private|var/folders|tmp/[\w.-]+/)(?=[/\w])"
)
PIN = re.compile(r"[a-z0-9-]+(?:\[[a-z,-]+\])?==\S+( ; .+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def texts() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data:
            found.append((str(path.relative_to(ROOT)), data.decode("utf-8")))
    return found


def machine_names(text: str) -> list[str]:
    hosts = [host for host in URL.findall(text) if not PLACEHOLDER.search(host)]
    return [host for host in hosts if host not in PUBLIC_HOSTS] + MACHINE_PATH.findall(text)


# Written with a bar inside, so that this file does not offend.
BARRED = [
    "see /wo|rk/notes",
    "'/ro|ot/.cache'",
    "open('/tm|p/run-7/state.db')",
    "https:|//pypi.somewhere.io/simple",
    "https:|//user:pw@mirror.somewhere.io/",
]


@pytest.mark.parametrize("text", [text.replace("|", "") for text in BARRED])
def test_machine_names_are_seen(text: str):
    assert machine_names(text)


@pytest.mark.parametrize(
    "text", ["https://example.com/cat.png", "sqlite:////tmp/state.db", "a/wo|rk/b".replace("|", ""), "/tmp/state.db"]
)
def test_placeholders_are_not(text: str):
    assert not machine_names(text)


def test_no_machine_is_named():
    offences = [(name, found) for name, text in texts() if (found := machine_names(text))]
    assert offences == []


# A name that belongs to another project. Written in two parts, so that this file does not offend.
FOREIGN_NAME = re.compile("hold" + r"[\s_.-]*" + "fast", re.IGNORECASE)


def test_no_file_has_the_name_of_another_project():
    offences = [name for name, text in texts() if FOREIGN_NAME.search(name + "\n" + text)]
    offences += [str(path) for path in tracked() if FOREIGN_NAME.search(path.name)]
    assert offences == []


@pytest.mark.parametrize("middle", ["", "_", "-", " ", "\n"])
def test_name_of_another_project_is_seen_in_any_spelling(middle: str):
    assert FOREIGN_NAME.search(f"a Hold{middle}FAST store")


def test_no_heavy_files():
    assert [str(path) for path in tracked() if path.stat().st_size > FILE_BYTES_MAX] == []


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda p: p.name)
def test_pins_name_no_index(path: Path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not PIN.fullmatch(line)] == []


@pytest.mark.parametrize("patch", sorted(planted_bugs.PLANTED.glob("*.patch")), ids=lambda p: p.name)
def test_planted_bug_applies(patch: Path):
    bug = planted_bugs.read(patch)
    assert (ROOT / bug.test.partition("::")[0]).exists()
    check = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr
