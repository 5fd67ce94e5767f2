"""Each planted bug is a store that breaks one promise; the named test of the suite must die of it."""

import inspect
import itertools
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from limpet.stores import chain
from limpet.stores.port import (
    Append,
    Appended,
    AppendOutcome,
    KeyRecord,
    Projection,
    Query,
    Report,
    Snapshot,
    Stale,
    StoredEvent,
    StreamWrite,
)
from limpet.stores.server import checked_reads
from limpet.stores.server.driver import ProjectionRow
from limpet.stores.volatile import VolatileStore
from limpet.testing import store_contract
from tests.contract import careless_copies, careless_notes, careless_rebuilds
from tests.contract.careless_reads import ForgetsHowItWas, KeepsClaimsOfTheRewound, ReadsUntilExclusively
from tests.contract.test_volatile import TestVolatileStore as Suite

replace = msgspec.structs.replace


class Rewriting(VolatileStore):
    """Commits something else than what it was given."""

    def commit(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        return [super(Rewriting, self).commit([self.rewritten(each)])[0] for each in appends]

    def rewritten(self, append: Append) -> Append:
        return replace(append, writes=tuple(self.rewritten_write(append, w) for w in append.writes))

    def rewritten_write(self, append: Append, write: StreamWrite) -> StreamWrite:
        return write


class IgnoresVersions(Rewriting):
    def rewritten_write(self, append: Append, write: StreamWrite) -> StreamWrite:
        return replace(write, expected=self.version(append.tenant, write.stream))


class ForgetsClaims(Rewriting):
    def rewritten_write(self, append: Append, write: StreamWrite) -> StreamWrite:
        return replace(write, claims=())


class AllowsClaimsTwiceInOneAppend(Rewriting):
    def rewritten_write(self, append: Append, write: StreamWrite) -> StreamWrite:
        return replace(write, claims=tuple(dict(write.claims).items()))


class CutsClaimsAtNul(Rewriting):
    def rewritten_write(self, append: Append, write: StreamWrite) -> StreamWrite:
        return replace(write, claims=tuple((c.split("\x00")[0], at) for c, at in write.claims))

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        return super().find_claim(tenant, stream, claim.split("\x00", maxsplit=1)[0], at=at)


class ForgetsKeys(Rewriting):
    def rewritten(self, append: Append) -> Append:
        return replace(append, key=None)


class DropsNothing(Rewriting):
    def rewritten(self, append: Append) -> Append:
        return replace(append, drops=())


class KeepsTheFirstSnapshot(Rewriting):
    def rewritten(self, append: Append) -> Append:
        new = (s for s in append.snapshots if not self.snapshot(append.tenant, s.stream))
        return replace(append, snapshots=tuple(new))


class KeepsOldTerms(Rewriting):
    def rewritten(self, append: Append) -> Append:
        return replace(append, projections=tuple(self.joined(append, p) for p in append.projections))

    def joined(self, append: Append, row: Projection) -> Projection:
        old = self.find_projection(append.tenant, row.kind, row.id)
        return replace(row, terms=tuple({*row.terms, *(old.terms if old else ())}))


class CutsPayloads(Rewriting):
    def rewritten_write(self, append: Append, write: StreamWrite) -> StreamWrite:
        events = (replace(event, payload=event.payload[:65_536]) for event in write.events)
        return replace(write, events=tuple(events))


class KeepsHalfAnAppend(VolatileStore):
    def commit(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        return [self.half(append) for append in appends]

    def half(self, append: Append) -> AppendOutcome:
        (outcome,) = super().commit([append])
        if not isinstance(outcome, Appended):
            super().commit([replace(append, writes=append.writes[:1], key=None)])
        return outcome


class KeepsProjectionsOfTheRefused(VolatileStore):
    def commit(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        outcomes = super().commit(appends)
        for append in appends:
            for row in append.projections:
                rows = self._server.tenants[append.tenant].projections.setdefault(row.kind, {})
                checksum = checked_reads.projection_checksum(append.tenant, row)
                rows[row.id] = ProjectionRow(row, checksum)
        return outcomes


class RefusesTheWholeBatch(VolatileStore):
    def commit(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        for append in appends:
            for write in append.writes:
                actual = self.version(append.tenant, write.stream)
                if actual != write.expected:
                    return [Stale(write.stream, actual)] * len(appends)
        return super().commit(appends)


class ChecksClaimsBeforeVersions(VolatileStore):
    def commit(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        for append in appends:
            for write in append.writes:
                for claim, _ in write.claims:
                    if self.find_claim(append.tenant, write.stream, claim):
                        forced = replace(write, expected=self.version(append.tenant, write.stream))
                        return super().commit([replace(append, writes=(forced,), key=None)])
        return super().commit(appends)


class SkipsPositionsOfTheRefused(VolatileStore):
    refused = 0

    def commit(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        outcomes = super().commit(appends)
        self.refused += sum(not isinstance(outcome, Appended) for outcome in outcomes)
        return outcomes

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[StoredEvent]:
        found = super().feed(tenant, after=after, limit=limit)
        return [replace(event, position=event.position + self.refused) for event in found]


class ShowsAnEventLate(VolatileStore):
    late = 10

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[StoredEvent]:
        page = super().feed(tenant, after=after, limit=limit)
        shown = [event for event in page if event.position != self.late]
        if len(shown) < len(page) and shown and shown[-1].position > self.late:
            self.late = 0
            return shown
        return page


class SeeksPastEquals(VolatileStore):
    def find_ordinal(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        return super().find_ordinal(tenant, stream, ordinal + 1, at=at)


class LeaksKeys(VolatileStore):
    def find_key(self, tenant: str, key: str) -> KeyRecord | None:
        everywhere = (super(LeaksKeys, self).find_key(name, key) for name in self.tenants())
        return next(filter(None, everywhere), None)


class LeaksRows(VolatileStore):
    def query_projections(self, tenant: str, query: Query) -> list[Projection]:
        pages = (super(LeaksRows, self).query_projections(name, query) for name in self.tenants())
        return [row for page in pages for row in page]


class ForgetsKeysOfAll(VolatileStore):
    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        forgotten = super().delete_keys(tenant, before_us=before_us)
        for other in self.tenants():
            super().delete_keys(other, before_us=before_us)
        return forgotten


class ForgetsKeysTooSoon(VolatileStore):
    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        return super().delete_keys(tenant, before_us=before_us + 1)


class ShowsTheOldestFirst(VolatileStore):
    def query_projections(self, tenant: str, query: Query) -> list[Projection]:
        return super().query_projections(tenant, query)[::-1]


class PagesByTimeAlone(VolatileStore):
    def query_projections(self, tenant: str, query: Query) -> list[Projection]:
        cursor = (query.after[0], "") if query.after else None
        return super().query_projections(tenant, replace(query, after=cursor))


class MatchesAnyTerm(VolatileStore):
    def query_projections(self, tenant: str, query: Query) -> list[Projection]:
        return super().query_projections(tenant, replace(query, terms=query.terms[:1]))


class TakesEmptyForAnyOwner(VolatileStore):
    def query_projections(self, tenant: str, query: Query) -> list[Projection]:
        return super().query_projections(tenant, replace(query, owner=query.owner or None))


class IgnoresTheOffset(VolatileStore):
    def query_projections(self, tenant: str, query: Query) -> list[Projection]:
        return super().query_projections(tenant, replace(query, offset=0))


class LosesEmptySnapshots(VolatileStore):
    def snapshot(self, tenant: str, stream: str) -> Snapshot | None:
        found = super().snapshot(tenant, stream)
        return found if found and found.state else None


class SharesBlobs(VolatileStore):
    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        shared: dict[bytes, bytes] = {}
        for name in self.tenants():
            shared |= super().blobs(name, hashes)
        return shared


class ReadsBlobsUnchecked(VolatileStore):
    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        return self._driver.blobs(tenant, hashes)


class KeepsBlobsOfTheRefused(VolatileStore):
    def commit(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        outcomes = super().commit(appends)
        for append in appends:
            if tables := self._server.tenants.get(append.tenant):
                contents = [b for w in append.writes for event in w.events for b in event.blobs]
                tables.blobs |= {chain.blob_hash(content): content for content in contents}
        return outcomes


class ForgetsBlobsOfOtherTenants(Rewriting):
    """Keeps a blob for whoever brings it first."""

    def rewritten_write(self, append: Append, write: StreamWrite) -> StreamWrite:
        others = [name for name in self.tenants() if name != append.tenant]

        def known(content: bytes) -> bool:
            hash_ = chain.blob_hash(content)
            return any(self.blobs(name, [hash_]) for name in others)

        events = (replace(event, blobs=tuple(b for b in event.blobs if not known(b))) for event in write.events)
        return replace(write, events=tuple(events))


class SaltsWithNothing(VolatileStore):
    def __init__(self) -> None:
        super().__init__(salts=bytes)


class VerifiesNothing(VolatileStore):
    def verify(self) -> Iterator[int | Report]:
        facts = self.status()
        yield Report(events=facts["events"], tenants=facts["tenants"])


class StaysOpen(VolatileStore):
    def close(self) -> None:
        pass


class KeepsTheTurn(VolatileStore):
    def __init__(self) -> None:
        super().__init__()
        self.taken: list[AbstractContextManager[bool]] = []

    @contextmanager
    def write_lock(self) -> Generator[bool]:
        self.taken.append(super().write_lock())
        yield self.taken[-1].__enter__()
        self.taken.pop().__exit__(None, None, None)


PLANTED: dict[type[VolatileStore], str] = {
    **careless_copies.PLANTED,
    **careless_notes.PLANTED,
    **careless_rebuilds.PLANTED,
    IgnoresVersions: "test_a_write_on_another_version_is_stale",
    ForgetsClaims: "test_a_claim_is_unique_in_its_stream_for_ever",
    AllowsClaimsTwiceInOneAppend: "test_a_claim_made_twice_in_one_append_is_taken_by_the_first",
    CutsClaimsAtNul: "test_awkward_names_are_kept_apart",
    ForgetsKeys: "test_a_key_answers_with_its_first_use",
    DropsNothing: "test_a_projection_is_replaced_and_dropped",
    KeepsTheFirstSnapshot: "test_a_snapshot_is_replaced",
    KeepsOldTerms: "test_a_projection_is_replaced_and_dropped",
    CutsPayloads: "test_every_payload_comes_back",
    KeepsHalfAnAppend: "test_an_append_refused_for_its_second_stream_or_its_key_leaves_no_trace",
    KeepsProjectionsOfTheRefused: "test_an_append_refused_for_its_second_stream_or_its_key_leaves_no_trace",
    RefusesTheWholeBatch: "test_appends_of_one_commit_each_have_their_outcome",
    ChecksClaimsBeforeVersions: "test_a_key_is_checked_before_versions_and_those_before_claims",
    SkipsPositionsOfTheRefused: "test_positions_and_versions_have_no_gaps",
    ShowsAnEventLate: "test_threads_leave_no_gap_and_no_reader_is_passed_by",
    ReadsUntilExclusively: "test_a_stream_is_read_in_ranges",
    ForgetsHowItWas: "test_a_version_is_for_ever_what_it_was",
    KeepsClaimsOfTheRewound: "test_claims_of_the_base_count_as_far_as_it_goes",
    SeeksPastEquals: "test_a_stream_is_sought_by_ordinal",
    LeaksKeys: "test_tenants_do_not_see_one_another",
    LeaksRows: "test_tenants_do_not_see_one_another",
    ForgetsKeysOfAll: "test_tenants_use_the_same_names_apart",
    ForgetsKeysTooSoon: "test_keys_are_forgotten_by_the_time_of_their_use",
    ShowsTheOldestFirst: "test_pages_are_newest_first_and_the_higher_id_among_equals",
    PagesByTimeAlone: "test_paging_by_cursor_visits_each_row_once",
    MatchesAnyTerm: "test_every_condition_given_must_hold",
    TakesEmptyForAnyOwner: "test_every_condition_given_must_hold",
    IgnoresTheOffset: "test_an_offset_counts_from_the_cursor",
    LosesEmptySnapshots: "test_a_snapshot_is_replaced",
    SharesBlobs: "test_tenants_have_their_blobs_apart",
    ReadsBlobsUnchecked: "test_a_damaged_blob_is_found",
    KeepsBlobsOfTheRefused: "test_a_refused_append_leaves_no_blob",
    ForgetsBlobsOfOtherTenants: "test_tenants_have_their_blobs_apart",
    SaltsWithNothing: "test_each_event_is_linked",
    VerifiesNothing: "test_damage_is_found",
    StaysOpen: "test_a_closed_store_says_so",
    KeepsTheTurn: "test_a_turn_is_given_back_when_its_body_fails",
}

UNSEEN_BY_THE_WALK = {
    AllowsClaimsTwiceInOneAppend: "its few claims of one append hardly ever repeat",
    CutsClaimsAtNul: "its claims have no NUL",
    CutsPayloads: "its payloads are small",
    ChecksClaimsBeforeVersions: "it hardly ever breaks two conditions at once",
    ForgetsHowItWas: "its streams have no bases",
    KeepsClaimsOfTheRewound: "its streams have no bases",
    LeaksKeys: "it looks for keys only where they were used",
    LosesEmptySnapshots: "its snapshots are never empty",
    ReadsBlobsUnchecked: "it damages nothing",
    SaltsWithNothing: "it does not look at links",
    VerifiesNothing: "it damages nothing",
    **dict.fromkeys(careless_copies.PLANTED, "it copies nothing"),
    **dict.fromkeys(careless_notes.PLANTED, "it has no notes"),
    StaysOpen: "it stops when it has closed the store",
    KeepsTheTurn: "its turns do not fail",
    **{planted: "it does not rebuild" for planted in PLANTED if "Rebuild" in planted.__name__},
}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_the_suite_dies_of_a_planted_bug(planted: type[VolatileStore], tmp_path: Path):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(PLANTED[planted], planted, tmp_path)


@pytest.mark.parametrize("name", sorted(set(PLANTED.values())))
def test_the_same_test_passes_without_the_bug(name: str, tmp_path: Path):
    run(name, VolatileStore, tmp_path)


@pytest.mark.parametrize(
    "planted",
    [planted for planted in PLANTED if planted not in UNSEEN_BY_THE_WALK],
    ids=lambda planted: planted.__name__,
)
def test_the_walk_dies_of_a_planted_bug(planted: type[VolatileStore]):
    with pytest.raises(AssertionError) as info:
        store_contract.walk(planted, steps=1_000, seed=1)
    assert "of the walk with seed 1" in info.value.__notes__[0]


def run(name: str, open_store: Callable[[], VolatileStore], folder: Path) -> None:
    """Run one test of the suite with each of its parameters on a new store, as pytest would."""
    test = getattr(Suite(), name)
    marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for values in itertools.product(*(cases for _, cases in marks)):
        given: dict[str, Any] = {"store": open_store(), "folder": folder}
        for (names, _), value in zip(marks, values, strict=True):
            given |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
        test(**{wanted: given[wanted] for wanted in inspect.signature(test).parameters})
