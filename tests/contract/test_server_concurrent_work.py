"""What takes long on a server, and others that write or erase in the middle of it."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest

from limpet import errors, limits
from limpet.stores.port import Rebuilt, Stale, StreamWrite
from limpet.stores.server.driver import ChangeResult, FeedHead, FeedRow, TenantChange
from limpet.stores.server.store import ServerStore
from limpet.stores.volatile import RamServer
from limpet.testing.store_contract import erasure_contract
from limpet.testing.store_contract.erasure_contract import append_events, claim_event, derive_claims, stream_erasure
from limpet.testing.store_contract.harness import OTHER, TENANT, commit_all, make_append, verify_store, write
from tests.contract.ram_driver import RemoteDriver

replace = msgspec.structs.replace


class Hooked(RemoteDriver):
    """A driver with something that happens before a change, once or each time."""

    before_apply: Callable[[], object] | None = None
    before_replace: Callable[[], object] | None = None
    before_feed: Callable[[], object] | None = None
    before_scrub: Callable[[], object] | None = None

    def apply(self, changes: Sequence[TenantChange]) -> list[ChangeResult]:
        if self.before_apply:
            self.before_apply()
        return super().apply(changes)

    def replace_derived(self, tenant: str, before: FeedHead, derived: Iterable[TenantChange]) -> bool:
        if self.before_replace:
            self.before_replace()
        return super().replace_derived(tenant, before, derived)

    def scrub(self, done: bytes, left: bytes) -> None:
        if self.before_scrub:
            self.before_scrub()
        super().scrub(done, left)

    def feed(self, tenant: str, *, after: int, limit: int) -> list[FeedRow]:
        if self.before_feed:
            self.before_feed()
        return super().feed(tenant, after=after, limit=limit)


@pytest.fixture
def server() -> RamServer:
    return RamServer()


@pytest.fixture
def driver(server: RamServer) -> Hooked:
    return Hooked(server)


@pytest.fixture
def mine(driver: Hooked) -> Iterator[ServerStore]:
    with closing(ServerStore(driver)) as store:
        yield store


@pytest.fixture
def theirs(server: RamServer) -> Iterator[ServerStore]:
    with closing(ServerStore(RemoteDriver(server))) as store:
        yield store


def test_a_rebuild_begins_anew_when_others_have_written(mine: ServerStore, theirs: ServerStore, driver: Hooked):
    append_events(mine, "a", claim_event("c1", "one"))
    left = iter([b"2"])

    def interfere() -> None:
        for _ in left:
            append_events(theirs, "a", claim_event("c2", "two"))

    driver.before_replace = interfere
    *progress, made = mine.rebuild(derive_claims)
    assert made == Rebuilt(events=2, tenants=1, streams=1, claims=2, projections=1)
    assert progress == sorted(progress, key=str)
    row = mine.find_projection(TENANT, "row", "a")
    assert row is not None and row.document == b"one two"


def test_a_rebuild_gives_up_when_others_write_every_time(mine: ServerStore, theirs: ServerStore, driver: Hooked):
    append_events(mine, "a", claim_event("c1", "one"))
    driver.before_replace = lambda: append_events(theirs, "b", claim_event("", "more"))
    with pytest.raises(errors.Conflict):
        list(mine.rebuild(derive_claims))
    assert mine.cache_epoch(TENANT) == 0
    assert verify_store(mine).ok


def test_who_writes_is_not_held_up_by_a_proof(mine: ServerStore, driver: Hooked, monkeypatch: pytest.MonkeyPatch):
    """Not before it was outrun so often that it could not be otherwise."""
    monkeypatch.setattr(limits, "WRITE_LOCK_WAIT_S", 0.2)
    append_events(mine, "a", claim_event("c1", "one"))
    threads = ThreadPoolExecutor(1)
    outrun, waited = itertools.count(), list[int]()

    def interfere() -> None:
        number = next(outrun)
        try:
            threads.submit(append_events, mine, "a", claim_event(f"d{number}", "more")).result()
        except errors.StoreBusy:
            waited.append(number)

    driver.before_feed = interfere
    with threads:
        *_, made = mine.rebuild(derive_claims)
    assert isinstance(made, Rebuilt)
    assert len(waited) >= 1
    assert next(outrun) >= 2 * len(waited), "most of them were not held up"
    driver.before_feed = None
    row = mine.find_projection(TENANT, "row", "a")
    assert row is not None and row.document == b" ".join([b"one", *[b"more"] * (made.events - 1)])
    assert verify_store(mine).ok


def test_who_writes_does_not_wait_for_a_scrub(mine: ServerStore, driver: Hooked, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "WRITE_LOCK_WAIT_S", 0.0)
    append_events(mine, "a", claim_event("c1", "one"))
    erasure_contract.erase_all(mine, stream_erasure(mine, "a", todo=b"todo"))
    with ThreadPoolExecutor(1) as threads:
        driver.before_scrub = lambda: threads.submit(append_events, mine, "b", claim_event("", "more")).result()
        mine.scrub(b"todo")
    assert mine.pending_erasures() is None
    assert mine.version(TENANT, "b") == 1


def test_a_rebuild_of_one_tenant_does_not_wait_for_another(mine: ServerStore, theirs: ServerStore, driver: Hooked):
    append_events(mine, "a", claim_event("c1", "one"))
    commit_all(mine, make_append(StreamWrite("a", 0, (claim_event("", "one"),)), tenant=OTHER))

    def interfere() -> None:
        more = StreamWrite("a", theirs.version(OTHER, "a"), (claim_event("", "more"),))
        commit_all(theirs, make_append(more, tenant=OTHER))

    driver.before_replace = interfere
    with pytest.raises(errors.Conflict) as caught:
        list(mine.rebuild(derive_claims))
    assert caught.value.facts["tenant"] == OTHER
    assert (mine.cache_epoch(TENANT), mine.cache_epoch(OTHER)) == (1, 0)


def test_damage_of_one_tenant_leaves_all_as_they_were(mine: ServerStore, server: RamServer):
    append_events(mine, "a", claim_event("c1", "one"))
    commit_all(mine, make_append(write("a", 0, b"1"), tenant=OTHER))
    server.tenants[OTHER].rows.clear()
    server.tenants[OTHER].rows |= server.tenants[TENANT].rows
    with pytest.raises(errors.Corrupt):
        list(mine.rebuild(derive_claims))
    assert mine.cache_epoch(TENANT) == 0


def test_an_erasure_begins_anew_when_others_have_written(mine: ServerStore, theirs: ServerStore, driver: Hooked):
    append_events(mine, "a", claim_event("c1", "one"))
    left = iter([b"2"])

    def interfere() -> None:
        for _ in left:
            append_events(theirs, "b", claim_event("c2", "two"))

    erasure = stream_erasure(mine, "a")
    driver.before_apply = interfere
    gone = erasure_contract.erase_all(mine, erasure)
    assert gone.events == 1
    assert mine.head(TENANT) == 3
    assert verify_store(mine).ok


def test_an_erasure_that_is_passed_every_time_says_so(mine: ServerStore, theirs: ServerStore, driver: Hooked):
    append_events(mine, "a", claim_event("c1", "one"))
    erasure = stream_erasure(mine, "a")
    driver.before_apply = lambda: append_events(theirs, "b", claim_event("", "more"))
    assert mine.erase(erasure, derive_claims) == Stale("", mine.head(TENANT))
    assert len(mine.read(TENANT, "a")) == 1
    late = replace(erasure, head=1)
    assert isinstance(mine.erase(late, derive_claims), Stale)


def test_an_erasure_by_another_is_noticed(mine: ServerStore, theirs: ServerStore):
    append_events(mine, "a", claim_event("c1", "one"))
    count = mine.cache_epoch(TENANT)
    erasure_contract.erase_all(theirs, stream_erasure(theirs, "a"))
    with mine.write_lock():
        assert mine.cache_epoch(TENANT) == count, "inside a turn it is what is known"
        assert not mine.is_unchanged(TENANT)
        assert mine.cache_epoch(TENANT) == count + 1
        assert mine.version(TENANT, "a") == 0


def test_verify_looks_again_at_what_was_erased_meanwhile(mine: ServerStore, theirs: ServerStore, driver: Hooked):
    append_events(mine, "a", *(claim_event("", f"w{n}") for n in range(600)))
    pages = iter(range(2))

    def erase_between() -> None:
        if next(pages, None) == 1:
            erasure_contract.erase_all(theirs, stream_erasure(theirs, "a"))

    driver.before_feed = erase_between
    assert verify_store(mine).ok


@pytest.mark.parametrize("page", [0, 1])
def test_a_rebuild_begins_anew_when_others_have_erased(
    mine: ServerStore, theirs: ServerStore, driver: Hooked, page: int
):
    """Blanks may name a notice that was not there when the proof began."""
    append_events(mine, "a", *(claim_event("", f"w{n}") for n in range(600)))
    append_events(mine, "b", claim_event("c1", "stays"))
    pages = iter(range(page + 1))

    def erase_between() -> None:
        if next(pages, None) == page:
            erasure_contract.erase_all(theirs, stream_erasure(theirs, "a"))

    driver.before_feed = erase_between
    *_, made = mine.rebuild(derive_claims)
    assert isinstance(made, Rebuilt) and made.projections == 1
    assert verify_store(mine).ok


def test_a_rebuild_of_what_is_damaged_is_refused_whatever_others_write(
    mine: ServerStore, theirs: ServerStore, driver: Hooked, server: RamServer
):
    append_events(mine, "a", claim_event("c1", "one"))
    kept = server.tenants[TENANT].rows[1]
    server.tenants[TENANT].rows[1] = replace(kept, event=replace(kept.event, payload=b"{}"))
    driver.before_feed = lambda: append_events(theirs, "b", claim_event("", "more"))
    with pytest.raises(errors.Corrupt):
        list(mine.rebuild(derive_claims))


def test_a_copy_gives_up_when_something_is_erased_every_time(mine: ServerStore, driver: Hooked, server: RamServer):
    append_events(mine, "a", claim_event("c1", "one"))
    books = server.tenants[TENANT]

    def erase_between() -> None:
        assert books.head.epoch < 99, "it goes on for ever"
        books.head = msgspec.structs.replace(books.head, epoch=books.head.epoch + 1)

    driver.before_feed = erase_between
    with pytest.raises(errors.Conflict):
        mine.copy_events(TENANT)
