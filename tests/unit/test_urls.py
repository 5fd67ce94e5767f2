"""URLs of stores as all backends read them."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest

import limpet
from limpet import errors
from limpet.stores import urls
from limpet.stores.server.postgres import connections
from limpet.stores.server.redis import connections as redis_connections


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("state.db", "state.db"),
        ("a:b@c.db", "a:b@c.db"),
        ("redis://host:6379/1?prefix=x", "redis://host:6379/1?prefix=x"),
        ("redis://:sesame@host", "redis://:***@host"),
        ("redis://me@host:1", "redis://me@host:1"),
        ("postgresql://me:p@s/s?s@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?user=me&password=sesame&x=1", "postgresql://host/db?user=me&password=***&x=1"),
    ],
)  # fmt: skip
def test_a_password_is_never_shown(url: str, shown: str):
    assert urls.without_password(url) == shown


@pytest.mark.parametrize(
    "url",
    ["redis:localhost", "file:state", "Redis:x", "postgres:db", "sqlite3:x.db", "postgresq:/host/db"],
)  # fmt: skip
def test_a_url_with_a_slip_is_no_path(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for open_ in (limpet.connect, limpet.SessionManager):
        with pytest.raises(errors.InvalidRequest, match=r"\./"):
            open_(url)
    assert not list(tmp_path.iterdir())
    limpet.connect(f"./{url.replace('/', '-')}").close()
    limpet.connect(tmp_path / "redis:x").close()


def test_the_letters_of_a_scheme_are_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    limpet.connect("Files:one").close()
    limpet.connect(f"FILES://{tmp_path}/two").close()
    limpet.connect(f"SQLite://{tmp_path}/three.db").close()
    limpet.connect("VOLATILE:").close()
    limpet.connect("notes:4.db").close()
    made = {path.name for path in tmp_path.iterdir() if not path.name.startswith(("three.db-", "notes:4.db-"))}
    assert made == {"one", "two", "three.db", "notes:4.db"}
    assert (tmp_path / "two" / "journal").is_dir()


@pytest.mark.parametrize("url", ["redis://localhost", "files:x", "volatile:", "Redis://:sesame@host"])
def test_a_manager_takes_a_folder_and_no_url(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.InvalidRequest, match="connect") as caught:
        limpet.SessionManager(url)
    assert "sesame" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_not_utf8_is_refused_and_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff\xfe")
    for open_ in (limpet.connect, limpet.SessionManager):
        for given in (name, Path(name)):
            with pytest.raises(errors.InvalidRequest, match="UTF-8") as info:
                open_(given)
            str(info.value).encode()
    with pytest.raises(errors.InvalidRequest, match="UTF-8"):
        limpet.connect(f"files:{name}")
    assert not list(tmp_path.iterdir())


NO_PATHS = (
    ("files:a%00b", "NUL"),
    ("sqlite:///x%00", "NUL"),
    ("files:%ff%fe", "UTF-8"),
    ("files:a\udc80", "surrogate"),
    ("\ud800.db", "surrogate"),
    ("~nosuchuser/x", "user"),
    ("files:~nosuchuser/x", "user"),
    ("x" * 5_000, "too long"),
    ("files:" + "x" * 5_000, "too long"),
    ("files://[::1", "files:///"),
    ("sqlite://[/x", "sqlite:///"),
)
"""What no file can be called, and what is said of it."""


@pytest.mark.parametrize(("name", "why"), NO_PATHS)
def test_what_no_file_can_be_called_is_refused(name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.InvalidRequest, match=why):
        limpet.connect(name)
    with limpet.connect("volatile:") as lp:
        with pytest.raises(errors.InvalidRequest, match=why):
            lp.admin.migrate(name)
        if "%" not in name and "://" not in name:
            for verb in (lp.admin.backup, lp.admin.export, lp.admin.import_):
                with pytest.raises(errors.InvalidRequest):
                    verb(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "postgresql", "postgres"])
@pytest.mark.parametrize("host", ["[", "[::1", "x" * 64, "a..b", "\ud800"])
def test_what_no_host_can_be_called_is_refused(scheme: str, host: str):
    with pytest.raises(errors.InvalidRequest, match="host"):
        limpet.connect(f"{scheme}://me:sesame@{host}/0")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:sesame%zz@127.0.0.1/x",
        "postgresql://me:ses ame sesame@127.0.0.1/x",
        "postgresql://me:sesame@[::1/x",
        "redis://me:sesame@[::1",
        "redis://me:sesame@host\u2100/0",
        "redis://127.0.0.1:sesame",
        "redis://127.0.0.1?sesame",
    ],
)
def test_no_traceback_shows_a_password(url: str):
    with pytest.raises(errors.InvalidRequest) as caught:
        limpet.connect(url)
    assert "sesame" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_many_hosts_are_each_a_host_and_a_socket_is_none():
    hosts = ",".join(f"database-{number}" for number in range(20))
    assert hosts in connections.parse_url(f"postgresql://{hosts}/x").shown
    socket = f"/{'run/' * 20}postgresql"
    assert socket in connections.parse_url(f"postgresql:///x?host={socket}").shown


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://state.db", "Write just state.db, or sqlite:///"),
        ("files://state", "Write files:state, or files:///"),
        ("sqlite:///state.db?x=1", "%3F for a ?"),
        ("postgress://host/db", "Did you mean postgres://?"),
        ("reddis://host", "Did you mean redis://?"),
        ("postgresql://host/db?schma=x", "Did you mean schema=?"),
        ("postgresql://host/db?sslmod=x", "Did you mean sslmode=?"),
        ("postgresql://host/db?nonsense=x", "options are schema, role,"),
        ("postgresql://host/db?timeout_s=x", "For timeout_s write seconds"),
        ("postgresql://host/db?connections=0", "For connections write a number from 2"),
        ("postgresql://host/db?schema=Xy z", "For schema write up to 40 small letters"),
        ("postgresql://host/db?schema=pg_x", "not begin with pg_"),
        ("redis://host?prefx=x", "Did you mean prefix=?"),
        ("redis://host?x=x", "Options are prefix,"),
        ("redis://me:se@sa/me@host", "%40"),
        ("redis://me:se@sa?m=e@host", "%40"),
        ("me:sesame@host/db", "Did you mean postgresql://me:***@host/db"),
        ("me:ses@me@host:5432/db", "Did you mean postgresql://me:***@host:5432/db"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_url_is_said_with_the_fix(
    url: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((errors.InvalidRequest, errors.UnknownScheme)) as caught:
        limpet.connect(url)
    assert words in caught.value.hint
    assert not any(secret in str(caught.value) for secret in ("sesame", "se@", "ses@"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "told", "untold"),
    [
        ("", "has an empty name", "folder"),
        ("redis://host/abc", "number of a database", "cluster"),
        ("redis+cluster://host/1", "a cluster has just one database", "number"),
    ],
)
def test_a_url_is_told_of_what_is_wrong_with_it_alone(url: str, told: str, untold: str):
    with pytest.raises(errors.InvalidRequest) as caught:
        limpet.connect(url)
    assert told in str(caught.value) and untold not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql:///db?host=@name", "postgresql://host/db?user=me@here", "redis://u:p%40@host"]
)  # fmt: skip
def test_an_at_sign_that_is_in_no_password_is_none(url: str):
    urls.check_credentials(url)


def test_what_a_url_of_redis_says():
    found = redis_connections.parse_url(
        "rediss://a%40b:p%2Fw@[::1]:7000/3?ca=/x.pem&timeout_s=2&prefix=p-1&connections=2"
    )
    assert (found.host, found.port, found.database, found.user, found.password) == ("::1", 7000, 3, "a@b", "p/w")  # fmt: skip
    assert (found.tls, found.timeout_s, found.prefix, found.connections) == ({"ssl_ca_certs": "/x.pem"}, 2, "p-1", 2)  # fmt: skip
    assert found.shown == "rediss://[::1]:7000/3"
    assert repr(found) == "RedisDsn(rediss://[::1]:7000/3)", "no password"
    assert redis_connections.parse_url("redis://").shown == "redis://localhost:6379"
