"""What a store is opened with beside its sessions is the same for blocking and for async callers; and the extras of the package."""

from __future__ import annotations

import inspect
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import limpet
from limpet import errors
from limpet.cli.subcommands import store_commands
from limpet.memory.index_store import PairedIndexStore
from limpet.memory.vectors import embedder
from limpet.wiring import store_opener
from limpet.wiring.background import BackgroundOptions

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("opening", [limpet.connect, limpet.connect_async])
def test_every_extra_is_an_option_of_each_opening_with_the_same_default(opening: Callable[..., object]):
    options = inspect.signature(opening).parameters
    for field in msgspec.structs.fields(BackgroundOptions):
        assert options[field.name].default == field.default
        assert options[field.name].annotation == BackgroundOptions.__annotations__[field.name]


@pytest.mark.parametrize("backend", store_commands._BACKEND_LIBRARIES)
def test_a_backend_is_reached_with_what_its_extra_installs(backend: str):
    assert tuple(store_commands._installed_versions(backend)) == store_commands._BACKEND_LIBRARIES[backend]


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ("openai", ("openai",)),
        ("anthropic", ("anthropic",)),
        ("embeddings", embedder.LIBRARIES),
        *((extra, (package,)) for extra, package in store_opener._DRIVER_LIBRARIES.items()),
    ],
)
def test_the_command_that_is_told_installs_what_the_extra_does(extra: str, named: tuple[str, ...]):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [one.partition(">=")[0] for one in project["optional-dependencies"][extra]]
    assert list(named) == wanted


def test_the_command_is_for_the_python_that_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/srv/my app/python")
    told = errors.pip_install_command("psycopg[binary]", "numpy")
    assert told == "'/srv/my app/python' -m pip install \"psycopg[binary]\" numpy"


def test_extras_are_taken_from_among_the_options():
    options = {field.name: field.default for field in msgspec.structs.fields(BackgroundOptions)}
    found = BackgroundOptions.from_arguments({**options, "tenant": "acme", "worker": True, "idle_timeout_s": 5.0})
    assert found == BackgroundOptions(worker=True, idle_timeout_s=5.0)


def test_a_check_of_the_index_store_that_failed_is_repeated_by_the_next_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    check, outcomes = PairedIndexStore.check, list[str]()

    def checked(store: PairedIndexStore) -> None:
        outcomes.append("failed" if not outcomes else "done")
        if len(outcomes) == 1:
            raise errors.Unavailable("told to.")
        check(store)

    with limpet.connect(tmp_path / "state.db") as lp, monkeypatch.context() as patch:
        background = lp._background
        background._paired_store = None
        patch.setattr(PairedIndexStore, "check", checked)
        background._index_store()
        second = background._index_store()
        assert (outcomes, background._index_store()) == (["failed", "done"], second)
