"""URLs of stores as all backends read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.store import urls


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
    assert urls.shown(url) == shown


@pytest.mark.parametrize(
    "url",
    ["redis:localhost", "file:state", "Redis:x", "postgres:db", "sqlite3:x.db", "postgresq:/host/db"],
)  # fmt: skip
def test_a_url_with_a_slip_is_no_path(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for open_ in (holdfast.connect, holdfast.SessionManager):
        with pytest.raises(errors.InvalidRequest, match=r"\./"):
            open_(url)
    assert not list(tmp_path.iterdir())
    holdfast.connect(f"./{url.replace('/', '-')}").close()
    holdfast.connect(tmp_path / "redis:x").close()


def test_the_letters_of_a_scheme_are_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    holdfast.connect("Files:one").close()
    holdfast.connect(f"FILES://{tmp_path}/two").close()
    holdfast.connect(f"SQLite://{tmp_path}/three.db").close()
    holdfast.connect("VOLATILE:").close()
    holdfast.connect("notes:4.db").close()
    made = {
        path.name
        for path in tmp_path.iterdir()
        if not path.name.startswith(("three.db-", "notes:4.db-"))
    }
    assert made == {"one", "two", "three.db", "notes:4.db"}
    assert (tmp_path / "two" / "journal").is_dir()


@pytest.mark.parametrize(
    "url", ["redis://localhost", "files:x", "volatile:", "Redis://:sesame@host"]
)
def test_a_manager_takes_a_folder_and_no_url(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.InvalidRequest, match="connect") as caught:
        holdfast.SessionManager(url)
    assert "sesame" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_not_utf8_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff\xfe")
    for open_ in (holdfast.connect, holdfast.SessionManager):
        for given in (name, Path(name)):
            with pytest.raises(errors.InvalidRequest, match="UTF-8") as info:
                open_(given)
            str(info.value).encode()
    with pytest.raises(errors.InvalidRequest, match="UTF-8"):
        holdfast.connect(f"files:{name}")
    assert not list(tmp_path.iterdir())
