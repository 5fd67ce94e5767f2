"""Erasures on PostgreSQL: what was taken out is in none of the server's table files, whoever is at work meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

import holdfast
from holdfast import Message
from holdfast.store.postgres import PostgresDriver, connections, place, scrubbing
from holdfast.store.postgres import open_store as open_
from holdfast.store.remote.driver import Blank, Change, Head
from holdfast.testing.contract.stage import step, take, write
from tests.servers import postgres

pytestmark = pytest.mark.req("A-20")


@pytest.fixture
def server() -> postgres.Server:
    server = postgres.shared()
    if not isinstance(server, postgres.Server):
        pytest.skip("the files of another server are out of reach")
    return server


@pytest.fixture
def url(server: postgres.Server) -> Iterator[str]:
    with postgres.database(server) as url:
        yield url


def test_after_a_scrub_what_was_erased_is_in_no_table_file(server: postgres.Server, url: str):
    canary = "canary-7f3a9"
    with holdfast.connect(url) as hf:
        session = hf.sessions.create_session(f"{canary}-trip", user_id=f"{canary}-ada")
        session.add_messages(
            [
                Message(role="user", content=f"{canary}-{n}-" + "x" * 90 * (n % 10))
                for n in range(80)
            ]
        )
        kept = hf.sessions.create_session(user_id="bob")
        kept.add_message(Message(role="user", content="stays"))
        for statement in ("ANALYZE", "CHECKPOINT"):
            postgres.run(url, statement)
        assert found(server, canary)
        hf.admin.erase(user_id=f"{canary}-ada")
        postgres.run(url, "CHECKPOINT")
        assert not found(server, canary)
        assert [m.content for m in hf.sessions.get_session(kept.id).messages] == ["stays"]
        assert hf.admin.verify().ok


def test_an_erasure_that_comes_during_a_scrub_is_scrubbed_by_the_next(
    server: postgres.Server, url: str, monkeypatch: pytest.MonkeyPatch
):
    with closing(open_(url)) as store:
        take(store, step(write("a", 0, b"first-c41d8", b"second-c41d8"), tenant="red"))
    with closing(PostgresDriver(place.of(url))) as driver:
        blank(driver, "red", 1)
        rewrite, left = scrubbing._rewrite, [2]

        def meanwhile(owner: connections.Connection, at: place.Place, part: str) -> None:
            rewrite(owner, at, part)
            if part.startswith("events_") and left:
                blank(driver, "red", left.pop())

        monkeypatch.setattr(scrubbing, "_rewrite", meanwhile)
        for canary in ("first-c41d8", "second-c41d8"):
            driver.scrub(b"todo\n", b"")
            postgres.run(url, "CHECKPOINT")
            assert not found(server, canary)
        assert driver.pending() is None


def blank(driver: PostgresDriver, tenant: str, position: int) -> None:
    """Erase one event, and leave the scrub to later."""
    now = driver.head(tenant)
    after = Head(now.position, now.link, now.epoch + 1)
    erased = Change(
        tenant=tenant, before=now, after=after, blanks=((position, Blank(1, 1)),), todo=b"todo\n"
    )
    assert driver.apply([erased]) == [None]


def found(server: postgres.Server, canary: str) -> list[str]:
    base = server.folder / "base"
    files = (file for file in base.rglob("*") if file.is_file())
    return [str(file) for file in files if canary.encode() in file.read_bytes()]
