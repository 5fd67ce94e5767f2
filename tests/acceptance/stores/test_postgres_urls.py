"""Which URLs lead to a PostgreSQL server, and what is said of those that lead nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import pytest

import limpet
from limpet import errors
from limpet.stores.server.postgres import connections, exists
from limpet.stores.server.postgres import open_store as open_
from tests.servers import postgres


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """A server of this module's own, which may be started anew."""
    with closing(postgres.Server()) as server:
        yield server


@pytest.fixture
def url(server: postgres.Server) -> Iterator[str]:
    with postgres.database(server) as url:
        open_(url).close()
        yield url


def test_a_url_that_names_nothing():
    for url in ("postgresql://h/d?durability=much", "postgresql://h/d?schema=a.b", "postgres://h/d?nonsense=1"):  # fmt: skip
        with pytest.raises(errors.InvalidRequest):
            limpet.connect(url)
    with pytest.raises(errors.InvalidRequest) as caught:
        connections.parse_url("postgresql://ada:s3cret@h/d?nonsense=s3cret")
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(connections.parse_url("postgresql://ada:s3cret@h/d"))


def test_every_form_of_a_url_that_libpq_takes(server: postgres.Server, url: str, monkeypatch: pytest.MonkeyPatch):
    """With a socket, and with all or nothing from PG… variables."""
    name, folder, port = url.rpartition("/")[2], server.folder, server.port
    server.restart(f"unix_socket_directories={folder}")
    try:
        for form in (
            f"postgresql:///{name}?host={folder}&port={port}&user=postgres",
            f"postgresql://postgres@:{port}/{name}?host={folder}",
            f"Postgres://postgres@/{name}?port={port}&host={folder}&schema=limpet",
            f"postgresql://postgres@{quote(str(folder), safe='')}:{port}/{name}",
            f"postgresql://?host=127.0.0.1&port={port}&user=postgres&dbname={name}",
            f"{url}?options=-c%20search_path%3Dpublic&application_name=a+b",
        ):
            with closing(open_(form)) as store:
                assert store.status()["backend"] == "postgres", form
        for variable, value in (
            ("PGHOST", str(folder)), ("PGPORT", str(port)), ("PGUSER", "postgres"), ("PGDATABASE", name),
        ):  # fmt: skip
            monkeypatch.setenv(variable, value)
        for form in ("postgresql://", f"postgresql:///{name}", "postgresql://?schema=limpet"):
            open_(form).close()
            assert connections.parse_url(form).shown == f"PostgreSQL at {folder}:{port}/{name}"
    finally:
        server.restart()


def test_a_server_that_is_away():
    with pytest.raises(errors.Unavailable, match="does not answer") as caught:
        limpet.connect("postgresql://postgres@127.0.0.1:1/postgres")
    assert "host and port" in caught.value.hint


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (":x/", errors.InvalidRequest, 'can\'t be reached with this URL: invalid integer value "x"'),
        (":1/", errors.Unavailable, "does not answer: .*Check that it runs"),
        ("?sslmode=require", errors.InvalidRequest, "speaks no TLS.* Leave sslmode= out"),
        ("?sslmode=much", errors.InvalidRequest, 'invalid sslmode value: "much"'),
        ("?host=no-such-host.invalid", errors.Unavailable, "by the name of its host.*DNS"),
        ("?host=/no/such/folder", errors.Unavailable, "does not answer: No such file"),
        ("?host=127.0.0.1&dbname=none%20of%20it", errors.InvalidRequest, "createdb 'none of it'"),
    ],
)  # fmt: skip
def test_a_url_with_a_wrong_part(server: postgres.Server, url: str, wrong: str, kind: type[errors.Error], words: str):
    given = url.replace(f":{server.port}/", wrong) if wrong[0] == ":" else url + wrong
    with pytest.raises(kind, match=words) as caught:
        open_(given)
    assert not re.search(r"connection to server|\?\.|\.\.", str(caught.value))


@pytest.mark.parametrize(
    ("user", "database", "words"),
    [("nobody_here", "", "does not let this user in"), ("", "not_there", "has no such database")],
)
def test_wrong_names(url: str, user: str, database: str, words: str):
    wrong = re.sub(r"//\w+@", f"//{user}@", url) if user else url.rpartition("/")[0] + f"/{database}"
    with pytest.raises(errors.InvalidRequest, match=words):
        open_(wrong)


def test_one_without_the_grant_is_told_that_there_is_a_store(url: str):
    postgres.run(url, "DROP ROLE IF EXISTS bob")
    postgres.run(url, "CREATE ROLE bob LOGIN")
    theirs = re.sub(r"//\w+@", "//bob@", url)
    try:
        for look in (open_, exists):
            with pytest.raises(errors.UnsafeStore, match="bob may not look into it") as caught:
                look(theirs)
            assert caught.value.hint.endswith("GRANT limpet_app TO bob")
        postgres.run(url, caught.value.hint.rpartition(": ")[2])
        open_(theirs).close()
    finally:
        postgres.run(url, "DROP ROLE bob")


@pytest.mark.parametrize("columns", ["id int, name text", "name text, value text", "name text, value bytea, more int"])
def test_a_table_of_somebody_else_by_the_name_of_ours(server: postgres.Server, columns: str):
    with postgres.database(server) as url:
        postgres.run(url, f"CREATE TABLE public.store ({columns})")
        for look in (open_, exists):
            with pytest.raises(errors.NotAStore, match=r"schema public .* holds something else") as caught:  # fmt: skip
                look(f"{url}?schema=public")
            assert "drop" not in str(caught.value) and "?schema=" in caught.value.hint
        assert postgres.run(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(1,)]  # fmt: skip


def test_an_administrator_is_not_disarmed(url: str):
    with pytest.raises(errors.UnsafeStore, match="is a superuser") as caught:
        open_(f"{url}?role=postgres")
    assert caught.value.hint.startswith("Leave ?role= out of the URL")
    postgres.run(url, "ALTER ROLE limpet_app BYPASSRLS")
    try:
        with pytest.raises(errors.UnsafeStore, match="ALTER ROLE limpet_app NOSUPERUSER"):
            open_(url)
    finally:
        postgres.run(url, "ALTER ROLE limpet_app NOBYPASSRLS")


def test_a_table_that_is_gone_is_named_as_gone(url: str):
    postgres.run(url, "DROP TABLE limpet.heads CASCADE")
    with pytest.raises(errors.Corrupt, match="heads of the schema limpet is missing"):
        open_(url)
