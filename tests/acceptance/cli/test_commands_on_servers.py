"""The command line and servers: looking makes nothing there, and no password is ever printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Scope, TokenBudget
from limpet.wiring.store_opener import open_index_store
from tests.acceptance import full_store
from tests.acceptance.cli.command_runs import on_terminal, run
from tests.contract.test_redis import client_of
from tests.servers import postgres, valkey


@pytest.fixture(params=["server", "cluster"])
def nowhere(request: pytest.FixtureRequest) -> str:
    return valkey.fresh(valkey.shared_cluster().url if request.param == "cluster" else "")


@pytest.fixture
def bare() -> Iterator[str]:
    """A database without a store."""
    with postgres.database() as url:
        yield url


LOOKING = [
    ("status",), ("verify",), ("rebuild",), ("backup", "copy.db"), ("sessions", "list"), ("frames", "list"),
    ("retention", "--keep", "90d", "--dry-run"), ("worker", "--once"),
]  # fmt: skip


def looked(url: str, folder: Path) -> None:
    """Look at a store that is not there, with every kind of command, and see that it is said."""
    for words in LOOKING:
        done = run(*words, "--url", url, cwd=folder)
        assert (done.code, done.out) == (3, ""), (words, done)
        assert "there is no store at" in done.err and "Nothing was created" in done.err
    for words in (("migrate", url, "new.db"), ("restore", url, "new.db")):
        assert run(*words, cwd=folder).code == 3
    assert not list(folder.iterdir())


def test_looking_at_a_redis_server_makes_no_store(nowhere: str, tmp_path: Path):
    looked(nowhere, tmp_path)
    prefix = nowhere.rpartition("=")[2]
    with client_of(nowhere) as client:
        assert not client.keys(f"{prefix}:*")
    limpet.connect(nowhere).close()
    assert run("verify", nowhere, cwd=tmp_path).code == 0


def test_looking_at_a_database_makes_no_store(bare: str, tmp_path: Path):
    looked(f"{bare}?schema=holdfats", tmp_path)
    assert not postgres.run(bare, "SELECT 1 FROM pg_namespace WHERE nspname LIKE 'holdf%%'")
    limpet.connect(bare).close()
    assert run("verify", bare, cwd=tmp_path).code == 0
    assert run("verify", f"{bare}?schema=holdfats", cwd=tmp_path).code == 3


def test_what_is_copied_to_may_be_new(nowhere: str, tmp_path: Path):
    with limpet.connect(tmp_path / "a.db") as lp:
        full_store.said(lp, "s", "ada", "words")
    assert run("migrate", "a.db", nowhere, cwd=tmp_path).code == 0
    assert run("status", nowhere, cwd=tmp_path).code == 0


SAYING = [
    ("verify",), ("rebuild",), ("backup", "{copy}.db"), ("sessions", "list", "--limit", "1"),
    ("retention", "--keep", "90d", "--dry-run"), ("sessions", "show", "nobody"), ("erase", "--user", "ada"),
]  # fmt: skip


def with_password(url: str) -> str:
    """A URL with a password that a server which asks for none takes as well."""
    scheme, _, rest = url.partition("://")
    user = "postgres" if scheme == "postgresql" else "default"
    return f"{scheme}://{user}:sesame@{rest.rpartition('@')[2]}"


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_no_password_is_printed(kind: str, bare: str, tmp_path: Path):
    url = with_password(valkey.fresh() if kind == "redis" else bare)
    with limpet.connect(tmp_path / "a.db") as lp:
        full_store.said(lp, "s", "ada", "words")
        full_store.said(lp, "t", "ada", "words")
    every = [("verify", url), ("migrate", "a.db", url), ("migrate", url, "c.db"), ("restore", "a.db", url)]
    every += [(*words, "--url", url) for words in SAYING]
    told = ""
    for number, words in enumerate(every):
        for option in ((), ("--json",)):
            given = [word.format(copy=f"{number}{len(option)}") for word in words]
            done = run(*given, *option, cwd=tmp_path)
            assert "sesame" not in done.out + done.err, (given, done)
            told += done.out + done.err
    assert ":***@" in told


@pytest.mark.parametrize(
    "url", ["postgresql://me:p@ss@host/db", "postgresql://me:se/same@host/db", "redis://:se#same@host"]
)  # fmt: skip
def test_a_password_that_has_to_be_encoded_is_not_guessed_at(url: str, tmp_path: Path):
    done = run("status", url, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "%40" in done.err
    assert "same" not in done.err and "ss@" not in done.err


@pytest.mark.parametrize("kind", ["files", "redis", "postgresql"])
def test_status_says_of_a_server_what_it_says_of_a_file(kind: str, bare: str, tmp_path: Path):
    urls = {"files": f"files://{tmp_path}/b", "postgresql": f"{bare}?schema=other"}
    url = urls.get(kind) or valkey.fresh()
    told: list[dict[str, Any]] = []
    for place in (str(tmp_path / "a.db"), url):
        with limpet.connect(place) as lp:
            full_store.said(lp, "s", "ada", "words")
            lp.sessions.end_session(lp.sessions.create_session("t").id)
            lp.index.push_frame(Scope(actor_id="me"), goal="plan", budget=TokenBudget(total=100))
        before = status(place, tmp_path)
        assert "behind" not in before
        with closing(open_index_store(place)) as shelf:
            assert shelf.size() == 0, "looking has made one"
        run("search", "words", "--user", "ada", "--url", place, cwd=tmp_path)
        told.append(status(place, tmp_path))
    for facts in told:
        for head in facts["heads"].values():
            assert len(head.pop("link")) == 64
    for name in ("holds", "heads", "events", "open_frames", "behind"):
        assert told[0][name] == told[1][name], name
    assert told[1]["behind"]["default"]["archive"] == 0 < told[1]["behind"]["default"]["memory"]
    shown = on_terminal("status", url, cwd=tmp_path, env={"NO_COLOR": "1"}).out
    assert "2 sessions (" in shown and "1 open frame" in shown and "chain head" in shown
    assert "archive 0 events" in shown
    named = {"files": "b", "postgresql": "?schema=other"}.get(kind)
    assert (named or f"?prefix={url.rpartition('=')[2]}") in shown
    assert kind != "redis" or "(valkey " in shown or "(redis " in shown


def status(place: str, folder: Path) -> dict[str, Any]:
    return json.loads(run("status", place, "--json", cwd=folder).out)


@pytest.mark.parametrize("words", [("erase", "s"), ("memory", "forget", "ada")])
def test_an_erasure_that_is_not_through_is_not_told_as_nothing(words: tuple[str, ...], bare: str, tmp_path: Path):
    """Who does not own the tables can't write them anew, but what was erased is erased."""
    with limpet.connect(bare) as lp:
        full_store.said(lp, "s", "ada", "words")
    postgres.run(bare, "DROP ROLE IF EXISTS bob")
    postgres.run(bare, "CREATE ROLE bob LOGIN; GRANT limpet_app TO bob")
    theirs = bare.replace("//postgres@", "//bob@")
    try:
        done = run(*words, "--yes", "--url", theirs, cwd=tmp_path)
        assert (done.code, done.out) == (9, "")
        assert "The data is erased for every reader (receipt erasure_" in done.err
        assert "Nothing was" not in done.err and "SCHEMA limpet TO bob" in done.err
        assert run("sessions", "show", "s", "--url", theirs, cwd=tmp_path).code == 3
    finally:
        postgres.run(bare, "DROP ROLE bob")
