"""The source keeps our laws, and each law catches what it forbids."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.tidy import laws

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "limpet"
PROGRAMS = [ROOT / folder for folder in ("benchmarks", "examples", "scripts", "tests")]

# Handlers that catch everything and do not re-raise, per file, with the reason. May only shrink.
BROAD_EXCEPTS = {
    # The edge of the command line: a defect becomes three lines or one problem, and an exit code.
    "src/limpet/cli/__init__.py": 1,
    # Whatever ends a commit must reach every caller who waits for it, or they wait for ever.
    "src/limpet/runtime/commit_queue.py": 1,
    # Background work runs what strangers wrote: its failure is noted, and hinders no other work.
    "src/limpet/jobs/tasks.py": 1,
    # A defect in deciding one request must not fail the others of its batch.
    "src/limpet/runtime/engine.py": 1,
}

SOURCE_LAWS: list[laws.Law] = [
    laws.short_files,
    laws.short_functions,
    laws.nothing_unfinished,
    laws.named_parameters,
    laws.data_only,
    laws.whole_statements,
]

FORBIDDEN: list[tuple[laws.Law, str]] = [
    (laws.short_files, "x = 1\n" * 901),
    (laws.short_functions, "def f():\n" + "    x = 1\n" * 60),
    (laws.nothing_unfinished, "x = 1  # TO" + "DO: two\n"),
    (laws.named_parameters, "class A:\n    def open(self, **options): ...\n"),
    (laws.named_parameters, "def f(**options: object): ...\n"),
    (laws.data_only, "import pickle\n"),
    (laws.data_only, "def f():\n    from shelve import open\n"),
    (laws.data_only, "eval('1')\n"),
    (laws.whole_statements, "q = f'SELECT * FROM {table}'\n"),
    (laws.whole_statements, "q = 'PRAGMA user_version = %d' % n\n"),
    (laws.whole_statements, "q = 'DELETE FROM t WHERE id = ' + name\n"),
    (laws.whole_statements, "q = 'DROP TABLE {}'.format(t)\n"),
    (laws.narrow_excepts, "try:\n    f()\nexcept Exception:\n    pass\n"),
    (laws.narrow_excepts, "try:\n    f()\nexcept:\n    g()\n"),
    (laws.narrow_excepts, "try:\n    f()\nexcept (OSError, BaseException) as e:\n    g(e)\n"),
    (laws.narrow_excepts, "try:\n    f()\nexcept BaseException as e:\n    raise A from e\n"),
    (laws.narrow_excepts, "try:\n    f()\nexcept Exception as e:\n    raise A from None\n"),
    (laws.narrow_excepts, "with contextlib.suppress(Exception):\n    f()\n"),
    (laws.narrow_excepts, "with suppress(OSError, BaseException):\n    f()\n"),
]

ALLOWED: list[tuple[laws.Law, str]] = [
    (laws.named_parameters, "def _inner(**options): ...\n"),
    (laws.named_parameters, "def run(*a: P.args, **kw: P.kwargs): ...\ndef add(**o: Unpack[Options]): ...\n"),
    (laws.whole_statements, "q = 'SELECT 1'\n"),
    (laws.whole_statements, "m = f'Update {name} first'\n"),
    (laws.narrow_excepts, "try:\n    f()\nexcept BaseException:\n    undo()\n    raise\n"),
    (laws.narrow_excepts, "try:\n    f()\nexcept Exception as e:\n    raise A from e\n"),
    (laws.narrow_excepts, "try:\n    f()\nexcept OSError:\n    pass\n"),
    (laws.narrow_excepts, "with contextlib.suppress(OSError):\n    f()\n"),
]


def offences(law: laws.Law, folders: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        for line, what in law(path.read_text(encoding="utf-8"))
    ]


def name(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize("law", SOURCE_LAWS, ids=name)
def test_source_keeps_the_law(law: laws.Law):
    assert offences(law, [SOURCE]) == []


def test_programs_are_short_too():
    assert offences(laws.short_files, PROGRAMS) == []


def test_nothing_is_swallowed():
    found = Counter(offence.partition(":")[0] for offence in offences(laws.narrow_excepts, [SOURCE]))
    assert dict(found) == BROAD_EXCEPTS, "a broad except may go (shorten the list), never come"


@pytest.mark.parametrize(("law", "text"), FORBIDDEN, ids=name)
def test_law_catches(law: laws.Law, text: str):
    assert list(law(text))


@pytest.mark.parametrize(("law", "text"), ALLOWED, ids=name)
def test_law_allows(law: laws.Law, text: str):
    assert not list(law(text))
