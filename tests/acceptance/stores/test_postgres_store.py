"""The engine on PostgreSQL: everything as on a file, tenants kept apart by the server, migrations under load."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import limpet
from limpet import Message, Scope, TokenBudget, errors
from limpet.stores.port import KeyUse, Projection, Query, Store
from limpet.stores.server.driver import FeedHead, HeadMoved, KeyRow, TenantChange
from limpet.stores.server.postgres import PostgresDriver, connections, schema
from limpet.stores.server.postgres import open_store as open_
from limpet.stores.server.store import ServerStore
from limpet.testing.store_contract.harness import commit, commit_all, feed_all, make_append, verify_store, write
from tests.servers import postgres

pytestmark = pytest.mark.req("A-20")


@pytest.fixture
def url() -> Iterator[str]:
    with postgres.empty_store() as url:
        yield url


@pytest.fixture
def own() -> Iterator[str]:
    """A database of the test's own, with an empty store: its tables may be changed."""
    with postgres.database() as url:
        open_(url).close()
        yield url


def texts(session: limpet.Session) -> list[object]:
    return [message.content for message in session.messages]


def test_a_tenant_with_streams_has_a_head_and_one_that_says_nothing_is_damage(own: str):
    with limpet.connect(own) as lp:
        lp.sessions.create_session("trip").add_message(Message(role="user", content="Oslo?"))
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        postgres.run(own, "DELETE FROM limpet.heads")
    postgres.run(own, "UPDATE limpet.heads SET position = 0, link = decode(repeat('00', 32), 'hex')")
    with limpet.connect(own) as lp:
        faults = lp.admin.verify().faults
        assert any("is in no list" in fault for fault in faults)
        assert any("but it goes on" in fault for fault in faults)
        with pytest.raises(errors.Corrupt):
            lp.admin.rebuild()


def with_options(url: str, **options: object) -> str:
    return url + "?" + "&".join(f"{name}={value}" for name, value in options.items())


def test_two_engines_on_one_database_see_each_others_work_at_once(url: str):
    with limpet.connect(url) as one, limpet.connect(url) as two:
        mine = one.sessions.create_session(user_id="ada", system="You plan trips.")
        mine.add_message(Message(role="user", content="Find me a flight to Oslo."))
        theirs = two.sessions.get_session(mine.id)
        theirs.add_message(Message(role="assistant", content="There is one at noon."))
        assert texts(one.sessions.get_session(mine.id)) == texts(theirs)
        window = one.sessions.get_session(mine.id).window(budget=8_000)
        assert [message.content for message in window.messages] == texts(theirs)
        assert [row["id"] for row in two.sessions.list_sessions(user_id="ada")] == [mine.id]
        scope = Scope(actor_id="planner", session_id=mine.id)
        root = one.index.push_frame(scope, goal="plan", budget=TokenBudget(total=8_000))
        child = two.index.push_frame(
            scope, parent_frame_id=root.frame_id, goal="compare", budget=TokenBudget(total=3_000)
        )
        token = one.index.suspend_frame(child.frame_id, reason="approval")
        two.index.resume_frame(token)
        top = one.index.find_top_of_stack(scope)
        assert top is not None and top.frame_id == child.frame_id
        assert one.admin.verify().ok
        assert one.admin.status()["durability"] == "power-loss"


def test_what_is_kept_can_be_asked_for_in_plain_sql(url: str):
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session(user_id="ada")
        session.add_message(Message(role="user", content="Find me a flight."))
        session.add_message(Message(role="assistant", content="x" * 40_000))
        scope = Scope(actor_id="planner", session_id=session.id)
        frame = lp.index.push_frame(scope, goal="plan", budget=TokenBudget(total=500))
    as_user = "SET ROLE limpet_app; SET limpet.tenant = 'default'; SET search_path = limpet;"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(as_user.encode())
        rows = connection.execute("SELECT id, user_id, message_count FROM sessions").fetchall()
        assert rows == [(session.id, "ada", 2)]
        said = connection.execute(
            "SELECT role, content FROM messages WHERE session_id = %s ORDER BY version", [session.id]
        ).fetchall()
        assert said == [("user", "Find me a flight."), ("assistant", "x" * 40_000)]
        frames = connection.execute("SELECT frame_id, goal, total, status FROM frames").fetchall()
        assert frames == [(frame.frame_id, "plan", 500, "open")]
        connection.execute("SET limpet.tenant = 'another'")
        assert connection.execute("SELECT * FROM messages").fetchall() == []


def test_a_change_for_another_head_changes_nothing_even_if_nothing_in_it_is_taken(url: str):
    with closing(open_(url)) as store:
        fill(store, "red")
    with closing(PostgresDriver(connections.parse_url(url))) as driver:
        now = driver.head("red")
        before = everything(driver, "red")
        for other in (
            FeedHead(now.position - 1, now.link, now.epoch),
            FeedHead(now.position, bytes(32), now.epoch),
            FeedHead(now.position, now.link, now.epoch + 1),
        ):
            late = TenantChange(
                tenant="red", before=other, after=FeedHead(9, b"l" * 32, 9),
                keys=(KeyRow("late", b"hash", 1, 1, 0),),
            )  # fmt: skip
            calm = TenantChange(tenant="blue", before=FeedHead(), after=FeedHead(), keys=())
            assert driver.apply([late]) == [HeadMoved(now)]
            assert driver.apply([calm, late]) == [None, HeadMoved(now)]
        assert everything(driver, "red") == before


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_lost_race_is_one_whatever_isolation_is_the_default(own: str, level: str):
    postgres.run(
        own,
        "DO $$ BEGIN EXECUTE format('ALTER ROLE CURRENT_USER IN DATABASE %I SET"
        f" default_transaction_isolation = %L', current_database(), '{level}'); END $$",
    )
    assert postgres.run(own, "SHOW transaction_isolation") == [(level,)]
    with closing(PostgresDriver(connections.parse_url(own))) as driver, ThreadPoolExecutor(1) as pool:
        now = FeedHead(1, b"l" * 32)
        assert driver.apply([TenantChange(tenant="red", before=FeedHead(), after=now)]) == [None]
        with psycopg.connect(own) as other:
            other.execute("UPDATE limpet.heads SET epoch = 1")
            late = pool.submit(driver.apply, [TenantChange(tenant="red", before=now, after=now)])
            waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            while not postgres.run(own, waits):
                assert not late.done()
        assert late.result() == [HeadMoved(FeedHead(1, b"l" * 32, 1))]


class Counting(PostgresDriver):
    """Counts what is asked beside changes."""

    asked = 0

    def head(self, tenant: str) -> FeedHead:
        self.asked += 1
        return super().head(tenant)

    def guard(self, tenant: str, timeout_s: float) -> bool:
        self.asked += 1
        return super().acquire_advisory_lock(tenant, timeout_s)


def test_a_store_that_writes_alone_asks_nothing_though_it_listens(url: str):
    driver = Counting(connections.parse_url(url))
    with closing(ServerStore(driver)) as store:
        assert not store.wait("acme", 0, 0.1), "from now on it listens"
        for number in range(40):
            commit_all(store, make_append(write(f"s{number}", 0, b"x")))
        driver.asked = 0
        for number in range(40, 60):
            commit_all(store, make_append(write(f"s{number}", 0, b"x")))
        assert driver.asked == 0
        driver.guard("acme", 1.0)
        driver.release_advisory_lock("acme")
        driver.asked = 0
        for number in range(60, 80):
            commit_all(store, make_append(write(f"s{number}", 0, b"x")))
        assert driver.asked == 0, "it took itself for another"


# Tenants.


class Careless(PostgresDriver):
    """Leaves every condition on the tenant out of its statements."""

    def __init__(self, at: connections.PostgresDsn) -> None:
        super().__init__(at)
        self._sql: Mapping[str, str] = {
            name: re.sub(r"\b(\w+\.)?tenant = %\(tenant\)s", "true", text) for name, text in self._sql.items()
        }


def fill(store: Store, tenant: str) -> None:
    mine = tenant.encode()
    row = Projection(kind="row", id=f"{tenant}-row", owner="o", terms=("t",), document=mine)
    commit_all(
        store,
        make_append(
            write("a", 0, mine, mine + b"2", claims=(("c", 0),), blobs=(b"blob of " + mine,)),
            tenant=tenant, projections=(row,), key=KeyUse(f"k-{tenant}", b"hash"),
        ),
    )  # fmt: skip
    store.put_note(tenant, f"note-{tenant}", mine, expected=0)


def everything(driver: PostgresDriver, tenant: str) -> str:
    """All that a driver's looks return for one tenant."""
    found = (
        driver.head(tenant), driver.stream(tenant, "a"), driver.streams(tenant),
        driver.own_events(tenant, "a", low=1, high=9, limit=9), driver.feed(tenant, after=0, limit=99),
        driver.version_at(tenant, "a", 9), driver.claims(tenant, ["c"], [1]),
        driver.count_claims(tenant, [1]), driver.keys(tenant), driver.keys_covering(tenant, [1, 2]),
        driver.projections(tenant), driver.query_projections(tenant, Query(kind="row", terms=("t",))),
        driver.blob_uses(tenant), driver.list_blobs(tenant), driver.notes(tenant, "", after="", limit=9),
        driver.snapshot(tenant, "a"), driver.forks(tenant, 1),
    )  # fmt: skip
    return repr(found)


def careless_functions(url: str) -> None:
    """Leave the conditions out of the functions on the server, too."""
    for (text,) in postgres.run(
        url, "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'limpet'::regnamespace"
    ):
        changed = re.sub(r"\b(\w+\.)?tenant = (p_tenant|one)\b", "true", text)
        if changed != text:
            postgres.run(url, "SET search_path = limpet; " + changed)


def test_with_every_tenant_condition_removed_nothing_of_another_tenant_is_seen(own: str):
    with closing(open_(own)) as store:
        fill(store, "red")
        fill(store, "blue")
    with closing(PostgresDriver(connections.parse_url(own))) as right:
        expected = {tenant: everything(right, tenant) for tenant in ("red", "blue", "green")}
    careless_functions(own)
    with closing(Careless(connections.parse_url(own))) as careless:
        assert "tenant = %(tenant)s" not in "".join(careless._sql.values())
        for tenant, found in expected.items():
            assert everything(careless, tenant) == found
        assert "blue" not in everything(careless, "red")
        store = ServerStore(careless)
        commit_all(store, make_append(write("b", 0, b"more"), tenant="green"))
        assert careless.delete_keys("green", before_us=2**60) == 0
        assert store.put_note("green", "note-red", b"green's", expected=0)
        store.close()
    with closing(PostgresDriver(connections.parse_url(own))) as right:
        assert [everything(right, tenant) for tenant in ("red", "blue")] == [
            expected["red"], expected["blue"]
        ]  # fmt: skip


def test_what_row_level_security_does_not_reach_is_named_in_the_guide(url: str):
    guide = Path(__file__).parents[3].joinpath("docs/how-to/use-postgres.md").read_text("utf-8")
    told = guide.partition("Outside row-level security are")[2].partition("\n\n")[0]
    bare = postgres.run(
        url,
        "SELECT relname FROM pg_class WHERE relnamespace = 'limpet'::regnamespace"
        " AND relkind IN ('r', 'p') AND NOT (relrowsecurity AND relforcerowsecurity) ORDER BY 1",
    )
    assert {table for (table,) in bare} == set(re.findall(r"`(\w+)`", told)) - {"limpet_app"}


def test_without_a_tenant_nothing_is_seen_and_nothing_can_be_put(own: str):
    with closing(open_(own)) as store:
        fill(store, "red")
    with closing(connections.connect(connections.parse_url(own))) as connection:
        for table in schema.TENANT_TABLES:
            assert connection.execute(f"SELECT * FROM {table}".encode()).fetchall() == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM events_0")
        connection.execute("SELECT set_config('limpet.tenant', 'blue', false)")
        assert connection.execute("SELECT * FROM events").fetchall() == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("INSERT INTO heads (tenant) VALUES ('green')")


def test_a_look_leaves_no_tenant_behind(url: str):
    with closing(PostgresDriver(connections.parse_url(url))) as driver:
        for ask in (lambda: driver.head("red"), lambda: driver.note("red", "n"), driver.tenants):
            ask()
            with driver._connections.borrow() as connection:
                for name in ("tenant", "register"):
                    left = "SELECT coalesce(current_setting(%s, true), '')"
                    assert connection.execute(left, [f"limpet.{name}"]).fetchone() == ("",)


def test_a_thousand_looks_and_writes_on_few_connections_never_mix_tenants(url: str):
    with closing(open_(with_options(url, connections=3))) as store:
        tenants = ("red", "blue")
        for tenant in tenants:
            fill(store, tenant)

        def work(seed: int) -> int:
            rng = random.Random(seed)
            for number in range(125):
                tenant = rng.choice(tenants)
                if rng.random() < 0.1:
                    commit(store, make_append(write(f"{seed}/{number}", 0, tenant.encode()), tenant=tenant))
                events = store.feed(tenant, limit=50)
                assert all((event.payload or b"").startswith(tenant.encode()) for event in events)
                assert [n for n, _ in store.notes(tenant)] == [f"note-{tenant}"]
                rows = store.query_projections(tenant, Query(kind="row"))
                assert [row.id for row in rows] == [f"{tenant}-row"]
            return 125

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(work, range(8))) == 1_000


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER TABLE limpet.events NO FORCE ROW LEVEL SECURITY", "not forced on events"),
        ("ALTER TABLE limpet.notes DISABLE ROW LEVEL SECURITY", "not forced on notes"),
        ("CREATE POLICY all_of_it ON limpet.streams USING (true)", "rows are seen"),
        ("ALTER TABLE limpet.claims OWNER TO limpet_app", "owns the store's tables"),
    ],
)
def test_a_store_whose_tenants_would_not_be_apart_is_refused(own: str, statement: str, words: str):
    with closing(open_(own)) as store:
        fill(store, "red")
    postgres.run(own, statement)
    with pytest.raises(errors.UnsafeStore, match=words):
        open_(own)


def test_a_role_that_row_level_security_does_not_bind_is_refused(own: str):
    postgres.run(own, "DROP ROLE IF EXISTS mighty")
    postgres.run(own, "CREATE ROLE mighty BYPASSRLS; GRANT limpet_app TO mighty")
    with pytest.raises(errors.UnsafeStore, match="BYPASSRLS") as caught:
        open_(with_options(own, role="mighty"))
    assert "Leave ?role= out" in caught.value.hint and "ALTER ROLE" not in caught.value.hint


def test_one_who_may_not_make_roles_is_told_what_an_administrator_has_to_run():
    with postgres.database() as url:
        for role in ("plain_app", "plain"):
            postgres.run(url, f"DROP ROLE IF EXISTS {role}")
        postgres.run(url, "CREATE ROLE plain LOGIN")
        name = url.rpartition("/")[2]
        theirs = with_options(re.sub(r"//[^@]*@", "//plain@", url), role="plain_app", schema="theirs")
        with pytest.raises(errors.UnsafeStore, match=r"role plain_app .* and a schema theirs") as caught:
            open_(theirs)
        whole = "CREATE ROLE plain_app NOLOGIN; GRANT plain_app TO plain; CREATE SCHEMA theirs AUTHORIZATION plain"
        assert caught.value.hint.endswith(whole)
        postgres.run(url, "CREATE SCHEMA theirs AUTHORIZATION plain")
        with pytest.raises(errors.UnsafeStore, match="role plain_app that plain may take") as refused:
            open_(theirs)
        assert refused.value.hint.endswith(whole.rpartition("; ")[0])
        postgres.run(url, "CREATE ROLE plain_app NOLOGIN; GRANT plain_app TO plain")
        with closing(open_(theirs)) as store:
            fill(store, "red")
            assert store.tenants() == ["red"] and verify_store(store).ok
        assert name
        postgres.run(url, "DROP OWNED BY plain_app; DROP OWNED BY plain; DROP ROLE plain_app")
        postgres.run(url, "DROP ROLE plain")


# Migrations.


def test_those_who_come_first_together_make_one_store():
    with postgres.database() as url, ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(open_, [url] * 4))
        fill(stores[0], "red")
        for store in stores:
            assert store.tenants() == ["red"]
            store.close()


def test_a_migration_under_load_hinders_nobody_for_long(own: str):
    """A step that needs every table for itself gives way to whoever is at work, and comes through."""
    at, stop = connections.parse_url(own), threading.Event()
    steps = {
        1: "",
        2: "",
        3: "",
        4: "ALTER TABLE events ADD COLUMN extra bigint; ALTER TABLE heads ADD COLUMN extra bigint",
    }
    with closing(open_(own)) as store:

        def work(writer: int) -> int:
            count = 0
            while not stop.is_set():
                count += len(commit(store, make_append(write(f"{writer}/{count}", 0, b"x"))))
            return count

        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(work, writer) for writer in range(3)]
            long = psycopg.connect(own)
            long.execute("SELECT count(*) FROM limpet.heads")
            with closing(connections.connect(at, role=False)) as owner, pytest.raises(errors.StoreBusy):
                patient(owner, at, steps)
            long.close()
            with closing(connections.connect(at, role=False)) as owner:
                patient(owner, at, steps)
            stop.set()
            written = sum(job.result() for job in jobs)
        assert verify_store(store).ok and store.head("acme") == written == len(feed_all(store))
    assert postgres.run(own, "SELECT value FROM limpet.store WHERE name = 'schema'") == [(b"4",)]
    with pytest.raises(errors.NewerStore, match="version 4; this Limpet knows 3"):
        open_(own)


def patient(owner: connections.PostgresConnection, at: connections.PostgresDsn, steps: dict[int, str]) -> None:
    from limpet.stores.server.postgres import error_mapping

    with pytest.MonkeyPatch.context() as patch, error_mapping.translate_errors(at.shown):
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "schema-4.sql"))
        schema.migrate(owner, at, steps)


def test_a_schema_of_somebody_else_is_left_alone():
    with postgres.database() as url:
        postgres.run(url, "CREATE SCHEMA limpet; CREATE TABLE limpet.mine (x int)")
        with pytest.raises(errors.NotAStore, match="in the way") as caught:
            open_(url)
        assert "?schema=" in caught.value.hint
        assert postgres.run(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'limpet'") == [(1,)]  # fmt: skip


def test_several_stores_in_one_database_are_apart():
    with postgres.database() as url, closing(open_(with_options(url, schema="one"))) as one:
        fill(one, "red")
        with closing(open_(with_options(url, schema="two"))) as two:
            assert two.tenants() == []
            fill(two, "blue")
            assert (one.tenants(), two.tenants()) == (["red"], ["blue"])
