"""Every code block of README and docs runs, in order, and prints what the page says it prints.

The blocks of one page share a namespace and a working directory that is empty at the start. A `text`
block right after a `python` or `sh` block is its output. In a `console` block the lines after a
command are its output. In expected output `…` stands for anything within a line, and a line of `…`
alone for any number of lines.
"""

from __future__ import annotations

import code
import contextlib
import io
import os
import re
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import markdown
from tests.servers import postgres, valkey

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Commands about this repository or about installing; pages may show them, they are not run here.
NOT_RUN = {".ci/run", ".venv/bin/python", "cd", "git", "make", "pip", "uv"}
RUN = {"limpet"}
LANGUAGES = {"console", "json", "mermaid", "python", "sh", "sql", "text", "toml"}
SCRIPTS = sysconfig.get_path("scripts")


def matches(expected: str, printed: str) -> bool:
    pattern = "\n".join(
        r"(?:.*\n)*?.*" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*?")
        for line in expected.strip().splitlines()
    )
    seen = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch(pattern, seen) is not None


def commands(block: markdown.Block) -> Iterator[tuple[str, str | None]]:
    """Each command of a shell block, with its output where the block shows it."""
    lines = [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]
    if block.language == "sh":
        for line in lines:
            if not line.lstrip().startswith("#"):
                yield line, None
        return
    prompts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, stop in zip(prompts, [*prompts[1:], len(lines)], strict=True):
        yield lines[start][2:], "\n".join(lines[start + 1 : stop]) or None


def run_shell(block: markdown.Block, folder: Path) -> str:
    printed = ""
    for command, expected in commands(block):
        program = command.split()[0]
        if program in NOT_RUN:
            continue
        assert program in RUN, f"line {block.line}: {program} is neither in RUN nor in NOT_RUN"
        environment = os.environ | {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", command], cwd=folder, env=environment | {"COLUMNS": "100"},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"line {block.line}: {command}\n{done.stdout}{done.stderr}"
        if expected is not None:
            assert matches(expected, done.stdout), f"line {block.line}: {command}\n{done.stdout}"
        printed += done.stdout
    return printed


def run_python(block: markdown.Block, page: str, namespace: dict[str, object]) -> str:
    output = io.StringIO()
    # Blank lines in front make tracebacks point into the page.
    compiled = compile("\n" * (block.line - 1) + block.text, page, "exec", dont_inherit=True)
    with contextlib.redirect_stdout(output):
        exec(compiled, namespace)
    return output.getvalue()


@contextlib.contextmanager
def served(text: str) -> Iterator[str]:
    """A page with the servers that it names: each is started for it, and stands in the place of the usual address."""
    with contextlib.ExitStack() as stack:
        for usual, start in SERVERS.items():
            if usual in text:
                text = text.replace(usual, stack.enter_context(start()))
        yield text


@contextlib.contextmanager
def redis() -> Iterator[str]:
    with valkey.server() as server:
        yield f"127.0.0.1:{server.port}"


SERVERS = {"localhost:6379": redis, "postgresql://localhost/agents": postgres.database}


def run_page(path: Path, folder: Path, namespace: dict[str, object]) -> None:
    with served(path.read_text(encoding="utf-8")) as text:
        run_text(text, path.name, folder, namespace)


def run_text(text: str, name: str, folder: Path, namespace: dict[str, object]) -> None:
    printed: str | None = None
    for block in markdown.blocks(text):
        assert block.language in LANGUAGES, f"line {block.line}: what is {block.language!r}?"
        if block.language == "python":
            printed = run_python(block, name, namespace)
        elif block.language in {"console", "sh"}:
            printed = run_shell(block, folder)
        elif block.language == "text" and block.follows and printed is not None:
            assert matches(block.text, printed), f"line {block.line}: printed was\n{printed}"
            printed = None
        else:
            printed = None


class Prompt(code.InteractiveConsole):
    """Takes lines as Python's prompt does, where a blank one ends an indented block; runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def runcode(self, code: types.CodeType) -> None:
        """Leave it: that the block runs is seen elsewhere."""

    def write(self, data: str) -> None:
        self.wrong.append(data)


def pasted(block: markdown.Block) -> str:
    """What the prompt says against a block that is pasted into it, with a blank line behind."""
    prompt = Prompt()
    waits = False
    for line in [*block.text.splitlines(), ""]:
        waits = prompt.push(line)
    return "".join(prompt.wrong) or ("the prompt waits for more" if waits else "")


@pytest.fixture
def page_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> types.ModuleType:
    """A module for the page's names (classes look up their module), in an empty directory."""
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(tmp_path)
    return module


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page(path: Path, page_module: types.ModuleType, tmp_path: Path):
    run_page(path, tmp_path, vars(page_module))


def test_the_tour_can_be_pasted():
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    found = [block for block in markdown.blocks(tour) if block.language == "python"]
    wrong = {block.line: told for block in found if (told := pasted(block))}
    assert found and not wrong, "\n".join(f"line {line}: {told}" for line, told in wrong.items())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("with a:\n    b()\n\n    c()\n", "unexpected indent"),
        ("for a in b:\n    c()\nd()\n", "invalid syntax"),
        ("a(\n", "waits"),
        ('for a in b:\n    c(\n\n        d)\n\ne = """\n\n    f"""\n', ""),
    ],
)
def test_what_can_not_be_pasted_is_caught(text: str, told: str):
    seen = pasted(markdown.Block(language="python", text=text, line=1, follows=False))
    assert told in seen and bool(told) == bool(seen)


@pytest.mark.parametrize(
    "text",
    [
        "```python\n1 / 0\n```\n",
        "```python\nprint('a')\n```\n\n```text\nb\n```\n",
        "```sh\nlimpet no-such-command\n```\n",
        "```console\n$ limpet --help\nnot what it says\n```\n",
        "```sh\nrm -r everything\n```\n",
        "```pyhton\nmisspelt\n```\n",
    ],
)
def test_wrong_page_is_caught(text: str, page_module: types.ModuleType, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises((AssertionError, ZeroDivisionError)):
        run_page(page, tmp_path, vars(page_module))


def test_right_page_passes(page_module: types.ModuleType, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 'session 123'\n```\n"
        "```python\nprint(x)\nprint('more')\n```\n\n```text\nsession …\nmore\n```\n"
        "```python\nprint('1\\n2\\n3')\n```\n```text\n1\n…\n3\n```\n"
        "```sh\nmake run\n```\n"
    )
    run_page(page, tmp_path, vars(page_module))
    assert vars(page_module)["x"] == "session 123"
