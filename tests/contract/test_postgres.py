"""The contract on PostgreSQL: a real server, a database of its own for every test."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest

from limpet import errors
from limpet.stores.port import Appended, Projection, Snapshot, Store
from limpet.stores.server.driver import FeedHead, ProjectionRow, TenantChange
from limpet.stores.server.postgres import connections, open_store
from limpet.stores.server.postgres.driver import PostgresDriver
from limpet.stores.server.store import ServerStore
from limpet.testing import store_contract
from limpet.testing.store_contract.harness import TENANT, commit_all, make_append, write
from tests.servers import postgres


@pytest.mark.req("A-20")
class TestPostgresStore(store_contract.StoreContract):
    walk_steps: ClassVar[int] = 200

    @pytest.fixture(autouse=True)
    def _databases(self) -> Iterator[None]:
        self.urls: dict[Path, str] = {}
        with ExitStack() as self.stack:
            yield

    def url(self, folder: Path) -> str:
        if folder not in self.urls:
            self.urls[folder] = self.stack.enter_context(postgres.empty_store())
        return self.urls[folder]

    def open_store(self, folder: Path) -> Store:
        return open_store(self.url(folder))

    def vandalise(self, statement: str, *values: object) -> None:
        """Change the store beneath it, as a superuser."""
        (url,) = self.urls.values()
        statement = statement.replace("@", f"tenant = '{TENANT}'")
        postgres.run(url, f"SET search_path = limpet; {statement}" if not values else statement, values)  # fmt: skip

    def damage(self, store: Store, position: int) -> None:
        self.vandalise(
            "UPDATE limpet.events SET payload = set_byte(payload, 0, get_byte(payload, 0) # 1)"
            " WHERE @ AND position = %s", position
        )  # fmt: skip

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        self.vandalise(
            "UPDATE limpet.blobs SET content = set_byte(content, 0, get_byte(content, 0) # 1)"
            " WHERE @ AND hash = %s", hash_
        )  # fmt: skip

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        self.vandalise("DELETE FROM limpet.blobs WHERE @ AND hash = %s", hash_)

    def damage_note(self, store: Store, name: str) -> None:
        self.vandalise("UPDATE limpet.notes SET value = 'x' || value WHERE @ AND name = %s", name.encode())

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        # By a third name: no two have the same at any moment.
        for before, after in ((stream, "aside"), (other, stream), ("aside", other)):
            self.vandalise(
                "UPDATE limpet.streams SET name = %s WHERE @ AND name = %s",
                after.encode(), before.encode(),
            )  # fmt: skip

    def damage_key(self, store: Store, key: str) -> None:
        self.vandalise("UPDATE limpet.keys SET last = last + 1 WHERE @ AND key = %s", key.encode())

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        self.vandalise("UPDATE limpet.events SET payload = NULL, salt = NULL WHERE @ AND position = %s", position)
        if like:
            self.vandalise(
                "UPDATE limpet.events AS e SET notice = o.notice, cause = o.cause, stand_in = o.stand_in"
                " FROM limpet.events AS o WHERE e.@ AND o.@ AND e.position = %s AND o.position = %s",
                position, like,
            )  # fmt: skip

    def tamper(self, store: Store) -> None:
        for statement in (
            "UPDATE projections SET owner = 'mallory' WHERE @ AND id LIKE '%/0'",
            "DELETE FROM projections WHERE @ AND id LIKE '%/1'",
            "INSERT INTO projections SELECT tenant, kind, 'made up', owner, status, moment, time_us,"
            " lookup, terms, document, mark FROM projections WHERE @ LIMIT 1",
            "DELETE FROM terms WHERE @ AND term = 'x'",
            "DELETE FROM claims WHERE @ AND version = 1",
            "INSERT INTO claims SELECT tenant, stretch, 'c29 made up', version FROM claims WHERE @ LIMIT 1",
            "DELETE FROM uses WHERE @",
        ):
            self.vandalise(statement)


def test_a_note_count_that_is_always_stale_raises_conflict(monkeypatch: pytest.MonkeyPatch):
    with postgres.empty_store() as url, closing(open_store(url)) as store:
        assert isinstance(store, ServerStore)
        driver = store._driver
        assert isinstance(driver, PostgresDriver)
        assert store.put_note(TENANT, "a", b"1", expected=0)
        monkeypatch.setattr(driver, "_sql", {**driver._sql, "noted": "SELECT 0"})
        with pytest.raises(errors.Conflict):
            store.put_note(TENANT, "a", b"2", expected=1)


def test_a_refused_part_of_a_rebuild_fails_the_whole_rebuild():
    with postgres.empty_store() as url, closing(PostgresDriver(connections.parse_url(url))) as driver:
        head = FeedHead(1, b"l" * 32)
        rows = tuple(ProjectionRow(Projection(kind="row", id=f"{n}", document=b""), b"") for n in range(3))
        first = TenantChange(tenant=TENANT, before=FeedHead(), after=head, projections=rows[:1])
        assert driver.apply([first]) == [None]
        fine = TenantChange(tenant=TENANT, before=head, after=head, projections=rows[1:2])
        twice = ((1, "c", 1), (1, "c", 2))
        refused = TenantChange(tenant=TENANT, before=head, after=head, claims=twice, projections=rows[2:])
        with pytest.raises(errors.Corrupt, match="one row twice"):
            driver.replace_derived(TENANT, head, [fine, refused])
        assert [one.projection.id for one in driver.projections(TENANT)] == ["0"]
        assert driver.head(TENANT) == head
        assert driver.replace_derived(TENANT, head, [fine])
        assert [one.projection.id for one in driver.projections(TENANT)] == ["1"]


def test_the_version_at_a_position_is_found_without_reading_the_stream():
    with postgres.empty_store() as url, closing(open_store(url)) as store:
        versions: list[int] = []
        for batch in range(4):
            commit_all(store, make_append(write("a", batch * 300, *[b"x"] * 300), write("b", batch, b"y")))
            versions += [*range(batch * 300 + 1, batch * 300 + 301), batch * 300 + 300]
        statement = connections.sql_statements("queries.sql")["version_at"]
        with psycopg.connect(url) as connection:
            connection.execute("SET search_path = limpet")
            for at, version in enumerate(versions, start=1):
                values = {"tenant": TENANT, "name": b"a", "position": at}
                assert connection.execute(statement.encode(), values).fetchone() == (version,)
            read = connection.execute(
                "SELECT sum(idx_tup_fetch) + sum(seq_tup_read) FROM pg_stat_xact_user_tables"
                " WHERE relname LIKE 'events%'"
            ).fetchone()
        assert read is not None and read[0] < 20 * len(versions)
        assert isinstance(store, ServerStore)
        driver = store._driver
        assert [driver.version_at(TENANT, name, 2**70) for name in ("a", "b", "c")] == [1200, 4, 0]


def test_a_snapshot_goes_behind_others():
    taken = Snapshot("a", 3, 7, b"state")
    with postgres.empty_store() as url, closing(open_store(url)) as store:
        # A stream that begins takes the same statement, which is known from here on.
        commit_all(store, make_append(write("a", 0, b"1")))
        sending = store.open_pipeline()
        assert sending is not None
        with store.write_lock(), sending:
            assert sending.send([make_append(write("a", 1, b"2"))])
            assert sending.send([make_append(write("a", 2, b"3"), snapshots=(taken,))])
            assert [sending.receive(), sending.receive()] == [[Appended(2, 2)], [Appended(3, 3)]]
        assert store.snapshot(TENANT, "a") == taken
