"""Promise 15: a log is kept the same elsewhere, page by page, and only if it is as it was written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from limpet import errors
from limpet.stores.erasure import is_erased_stream, is_notice
from limpet.stores.port import Append, KeyUse, NewEvent, RawEvent, RawKey, Store, StreamWrite
from limpet.stores.volatile import VolatileStore
from limpet.testing.contract import stage
from limpet.testing.contract.erasing import derive, erased, event, one, payload, said, whole
from limpet.testing.contract.rebuilding import rebuilt
from limpet.testing.contract.stage import OTHER, TENANT, feed_all, shown, take, verified

replace = msgspec.structs.replace

_BLOBS = (b"x1", b"x2", b"x3")
_CLAIMS, _KEYS = ("c1", "c2", "c3"), ("k1", "k2", "k3")


class Life:
    """A store that is lived in: events, claims, keys, blobs, forks, rewinds and erasures, as the dice fall."""

    def __init__(self, store: Store, seed: int, tenant: str = TENANT) -> None:
        self.store, self.tenant = store, tenant
        self.dice = random.Random(seed)

    def go_on(self, steps: int) -> None:
        """Take so many steps."""
        verbs = (self._say, self._say, self._say, self.fork, self._rewind, self._one, self._whole)
        for _ in range(steps):
            self.dice.choice(verbs)()

    def _streams(self) -> list[str]:
        streams = {found.stream for found in feed_all(self.store, self.tenant)}
        return sorted(name for name in streams if not is_erased_stream(name))

    def _event(self, stream: str) -> NewEvent:
        store, dice = self.store, self.dice
        free = [claim for claim in _CLAIMS if not store.find_claim(self.tenant, stream, claim)]
        claim = dice.choice([*free, "", ""])
        contents = tuple(dice.sample(_BLOBS, dice.choice((0, 0, 1, 2))))
        return event(claim, f"w{dice.randrange(99)}", contents)

    def _say(self) -> None:
        stream = self.dice.choice([*"abc", *self._streams()])
        unused = [key for key in _KEYS if not self.store.find_key(self.tenant, key)]
        key = self.dice.choice([*unused, ""])
        said(self.store, stream, self._event(stream), tenant=self.tenant, key=key)

    def _based(self, stream: str, source: str, *, expected: int) -> None:
        versions = [found.version for found in self.store.read(self.tenant, source)]
        base = (source, self.dice.choice(versions))
        new = StreamWrite(stream, expected, (event("", "based"),), (), base)
        take(self.store, Append(tenant=self.tenant, writes=(new,)))

    def fork(self) -> None:
        """Go on from a version of a stream in a new one."""
        if streams := self._streams():
            name = f"f{self.store.head(self.tenant)}"
            self._based(name, self.dice.choice(streams), expected=0)

    def _rewind(self) -> None:
        if streams := self._streams():
            stream = self.dice.choice(streams)
            self._based(stream, stream, expected=self.store.version(self.tenant, stream))

    def _one(self) -> None:
        own = [
            found
            for found in feed_all(self.store, self.tenant)
            if not is_notice(found.kind) and not is_erased_stream(found.stream)
        ]
        if own and self.tenant == TENANT:
            gone = self.dice.choice(own)
            seen = {found.version for found in self.store.read(TENANT, gone.stream)}
            if gone.version in seen:
                erased(self.store, one(self.store, gone.stream, gone.version, payload("", "-")))

    def _whole(self) -> None:
        if not (streams := self._streams()) or self.dice.randrange(3):
            return
        going = [self.dice.choice(streams)]
        for stream in going:
            forks = self.store.forks(self.tenant, stream)
            going += [name for name, _ in forks if name not in going and not is_erased_stream(name)]
        erased(self.store, whole(self.store, *going, tenant=self.tenant))


def page(source: Store, after: int, limit: int, tenant: str = TENANT) -> dict[str, Any]:
    """Return events of a store and their blobs, as `paste` takes them."""
    events = source.copy(tenant, after=after, limit=limit)
    return {"events": events, "blobs": blobs_for(source, events, tenant)}


def blobs_for(
    source: Store, events: Sequence[RawEvent], tenant: str = TENANT
) -> dict[bytes, bytes]:
    """Return the blobs that events refer to."""
    return source.blobs(tenant, {hash_ for raw in events for hash_ in raw.blobs})


def copied(source: Store, target: Store, *, limit: int = 256, tenant: str = TENANT) -> None:
    """Copy what is missing, page by page, and the keys."""
    while (given := page(source, target.head(tenant), limit, tenant))["events"]:
        target.paste(tenant, **given)
    after = ""
    while keys := source.keys(tenant, after=after, limit=limit):
        target.paste(tenant, [], keys=keys)
        after = keys[-1].key


def kept(store: Store, tenant: str = TENANT) -> tuple[object, ...]:
    """Return all that is kept of a tenant and is not derived."""
    events = store.copy(tenant, limit=10_000)
    return events, store.keys(tenant, limit=10_000), blobs_for(store, events, tenant)


def same(source: Store, target: Store) -> None:
    """Compare two stores, once all that is derived was made again in both."""
    assert kept(target) == kept(source)
    rebuilt(source, derive)
    rebuilt(target, derive)
    assert shown(target) == shown(source)
    assert kept(target) == kept(source)
    for stream in {raw.stream for raw in source.copy(TENANT, limit=10_000)}:
        assert target.forks(TENANT, stream) == source.forks(TENANT, stream)
        for at in range(1, source.version(TENANT, stream) + 1):
            assert target.read(TENANT, stream, at=at) == source.read(TENANT, stream, at=at)


class Copying(stage.Stage):
    """A log that is kept the same elsewhere."""

    @pytest.mark.parametrize("seed", range(4))
    def test_a_copy_of_another_store_shows_the_same(self, store: Store, seed: int) -> None:
        source = VolatileStore()
        Life(source, seed).go_on(60)
        copied(source, store, limit=7)
        same(source, store)
        assert store.status()["blobs"] == source.status()["blobs"]

    @pytest.mark.parametrize("seed", range(4))
    def test_a_copy_in_another_store_shows_the_same(self, store: Store, seed: int) -> None:
        target = VolatileStore()
        Life(store, seed).go_on(60)
        copied(store, target, limit=7)
        same(store, target)
        assert store.status()["blobs"] == target.status()["blobs"]

    def test_a_copy_goes_on_as_its_source_would(self, store: Store) -> None:
        source = VolatileStore()
        Life(source, 1).go_on(40)
        copied(source, store)
        rebuilt(store, derive)
        Life(store, 2).go_on(20)
        assert verified(store).ok
        target = VolatileStore()
        copied(store, target)
        same(store, target)

    def test_it_goes_on_wherever_it_was_stopped(self, store: Store, folder: Path) -> None:
        source = VolatileStore()
        Life(source, 3).go_on(25)
        while store.head(TENANT) < source.head(TENANT):
            store.paste(TENANT, **page(source, store.head(TENANT), 3))
            if self.reopens:
                store = self.reopen(store, folder)
        copied(source, store)
        same(source, store)
        store.close()

    def test_what_comes_later_is_copied_later(self, store: Store) -> None:
        source = VolatileStore()
        life = Life(source, 4)
        for _ in range(4):
            said(source, "a", event("", "more"))
            copied(source, store)
            same(source, store)
            life.fork()

    def test_pages_are_by_position(self, store: Store) -> None:
        said(store, "a", *(event("", word) for word in "abcde"))
        assert [raw.position for raw in store.copy(TENANT, after=1, limit=3)] == [2, 3, 4]
        assert store.copy(TENANT, after=5) == []
        assert store.copy("nobody") == []
        assert store.keys("nobody") == []

    def test_tenants_are_copied_apart(self, store: Store) -> None:
        source = VolatileStore()
        said(source, "a", event("c1", "theirs", (b"x1",)), tenant=OTHER, key="k1")
        said(source, "a", event("c1", "ours", (b"x2",)), key="k2")
        copied(source, store)
        assert store.tenants() == [TENANT]
        assert stage.blobs_of(store, b"x1", tenant=OTHER) == []
        assert store.keys(OTHER) == []
        copied(source, store, tenant=OTHER)
        assert kept(store, OTHER) == kept(source, OTHER)
        same(source, store)

    def test_awkward_names_are_copied(self, store: Store) -> None:
        source = VolatileStore()
        for name in ("a\x00b", "ü", "{a}:*?[]\r\n"):
            said(source, name, event(name, name, (b"x1",)), tenant=name, key=name)
            copied(source, store, tenant=name)
            assert kept(store, name) == kept(source, name)

    @pytest.mark.parametrize("field", ["payload", "salt", "digest", "link", "header"])
    @pytest.mark.parametrize("at", [0, 2])
    def test_what_is_not_as_it_was_written_is_refused(
        self, store: Store, field: str, at: int
    ) -> None:
        source = self._source()
        given = page(source, 0, 3)
        bad = given["events"][at]
        changed = bytes([getattr(bad, field)[0] ^ 1]) + getattr(bad, field)[1:]
        given["events"][at] = replace(bad, **{field: changed})
        with pytest.raises(errors.Corrupt, match=f"position {at + 1} "):
            store.paste(TENANT, **given)
        self._untouched(store)

    @pytest.mark.parametrize(
        "change",
        [
            {"payload": None},
            {"payload": None, "salt": None},
            {"version": 7},
            {"number": 1},
            {"erased": (4, 0, None)},
        ],
        ids="+".join,
    )
    def test_what_is_not_whole_is_refused(self, store: Store, change: dict[str, Any]) -> None:
        given = page(self._source(), 0, 3)
        given["events"][2] = replace(given["events"][2], **change)
        with pytest.raises(errors.Corrupt, match="position 3 "):
            store.paste(TENANT, **given)
        self._untouched(store)

    def test_blobs_come_along_or_nothing_does(self, store: Store) -> None:
        source = self._source()
        events = source.copy(TENANT)
        hash_ = stage.hash_of(b"x1")
        for blobs in ({}, {hash_: b"x2"}):
            with pytest.raises(errors.Corrupt, match=hash_.hex()):
                store.paste(TENANT, events, blobs=blobs)
            self._untouched(store)
        unneeded = {stage.hash_of(b"x3"): b"x3"}
        store.paste(TENANT, events, blobs=blobs_for(source, events) | unneeded)
        assert store.status()["blobs"] == 2

    def test_a_blob_that_is_there_need_not_come_again(self, store: Store) -> None:
        source = self._source()
        store.paste(TENANT, **page(source, 0, 3))
        said(source, "b", event("", "again", (b"x1",)))
        store.paste(TENANT, source.copy(TENANT, after=3))
        same_part = kept(store)[0], kept(store)[2]
        assert same_part == (kept(source)[0], kept(source)[2])

    def test_events_follow_the_head_or_nothing_comes(self, store: Store) -> None:
        source = self._source()
        store.paste(TENANT, **page(source, 0, 1))
        before = kept(store)
        for after in (0, 2):
            with pytest.raises(errors.Conflict):
                store.paste(TENANT, **page(source, after, 9))
            assert kept(store) == before
        given = page(source, 1, 9)
        given["events"].reverse()
        with pytest.raises(errors.Conflict):
            store.paste(TENANT, **given)
        assert kept(store) == before
        store.paste(TENANT, **page(source, 1, 9))
        copied(source, store)
        same(source, store)

    def test_another_log_is_not_gone_on_with(self, store: Store) -> None:
        said(store, "a", event("c1", "mine", (b"x1",)))
        before = shown(store)
        source = self._source()
        with pytest.raises(errors.Conflict):
            store.paste(TENANT, **page(source, 1, 9))
        assert shown(store) == before

    def test_nothing_at_all_leaves_nothing(self, store: Store) -> None:
        store.paste(TENANT, [])
        self._untouched(store)

    def test_keys_are_kept_with_what_they_say(self, store: Store) -> None:
        source = self._source()
        write = StreamWrite("k", 0, (event(),))
        for number, key in enumerate(("ü", "b", "a\x00", "a")):
            take(
                source,
                Append(
                    tenant=TENANT, writes=(replace(write, expected=number),),
                    key=KeyUse(key, b"h%d" % number), time_us=number,
                ),
            )  # fmt: skip
        found = source.keys(TENANT)
        assert [key.key for key in found] == ["a", "a\x00", "b", "k1", "ü"]
        assert found[0] == RawKey("a", b"h3", 7, 7, 3)
        copied(source, store, limit=2)
        assert store.keys(TENANT) == found
        store.paste(TENANT, [], keys=found)
        assert store.keys(TENANT, after="a\x00", limit=2) == found[2:4]
        assert store.forget_keys(TENANT, before_us=2) == 3

    def test_keys_of_something_else_are_refused(self, store: Store) -> None:
        source = self._source()
        copied(source, store)
        (key,) = source.keys(TENANT)
        said(source, "b", event("", "new"), key="k3")
        before = kept(store)
        for wrong in (
            replace(key, command_hash=b"another"),
            replace(key, first=key.first + 1),
            RawKey("k2", b"hash", 4, 4, 0),
        ):
            with pytest.raises(errors.Conflict):
                store.paste(TENANT, [], keys=[RawKey("k9", b"hash", 1, 1, 0), wrong])
            assert kept(store) == before
            given = page(source, 3, 9)
            if wrong.key == key.key:
                with pytest.raises(errors.Conflict):
                    store.paste(TENANT, **given, keys=[wrong])
                assert kept(store) == before

    def test_what_was_erased_before_comes_without_content(self, store: Store) -> None:
        source = self._source()
        erased(source, one(source, "a", 1, payload("", "-", (b"x3",)), (b"x3",)))
        erased(source, whole(source, "b"))
        copied(source, store)
        same(source, store)
        assert stage.blobs_of(store, *_BLOBS) == [b"x3"]
        assert store.pending() is None

    @pytest.mark.parametrize("limit", [1, 2, 256])
    def test_what_was_erased_meanwhile_is_erased_in_the_copy(
        self, store: Store, limit: int
    ) -> None:
        source = self._source()
        copied(source, store)
        gone = [raw.position for raw in source.copy(TENANT) if raw.stream == "b"]
        erased(source, whole(source, "b"))
        said(source, "b", event("c1", "new"))
        erased(source, one(source, "a", 1, payload("", "-")))
        head = store.head(TENANT)
        events = [raw for raw in source.copy(TENANT) if raw.position <= head and raw.erased]
        assert {raw.position for raw in events} == {1, *gone}
        for begin in range(0, len(events), limit):
            given = events[begin : begin + limit]
            store.paste(TENANT, given, blobs=blobs_for(source, given))
        assert store.pending() is not None
        assert store.keys(TENANT) == []
        assert stage.blobs_of(store, *_BLOBS) == []
        copied(source, store)
        same(source, store)
        store.scrub(store.pending() or b"")
        assert store.pending() is None
        same(source, store)

    def test_what_stands_in_for_something_erased_can_change(self, store: Store) -> None:
        source = self._source()
        copied(source, store)
        for word in "-=":
            erased(source, one(source, "a", 1, payload("", word, (b"x3",)), (b"x3",)))
            head = store.head(TENANT)
            again = [raw for raw in source.copy(TENANT, limit=head) if raw.erased]
            store.paste(TENANT, again, blobs=blobs_for(source, again))
            copied(source, store)
            same(source, store)

    def test_a_name_that_was_given_back_meanwhile_is_free(self, store: Store) -> None:
        source = self._source()
        copied(source, store)
        erased(source, whole(source, "a"))
        said(source, "a", event("c1", "new"))
        events = source.copy(TENANT)
        again = [raw for raw in events if raw.position <= 3 and raw.erased]
        store.paste(TENANT, [*again, *events[3:]], blobs=blobs_for(source, events))
        same(source, store)

    def test_an_erasure_of_another_log_is_refused(self, store: Store) -> None:
        copied(self._source(), store)
        other = self._source()
        erased(other, whole(other, "a"))
        before = kept(store)
        again = [raw for raw in other.copy(TENANT) if raw.erased]
        with pytest.raises(errors.Conflict):
            store.paste(TENANT, again)
        assert kept(store) == before

    def test_damage_is_not_copied(self, store: Store) -> None:
        said(store, "a", event("", "one"), event("", "two"))
        self.damage(store, 2)
        assert len(store.copy(TENANT, limit=1)) == 1
        with pytest.raises(errors.Corrupt, match="position 2 "):
            store.copy(TENANT)

    def test_what_is_blank_for_no_reason_is_not_copied(self, store: Store) -> None:
        said(store, "a", event("", "one"), event("", "two"))
        self.blank(store, 1)
        with pytest.raises(errors.Corrupt, match="position 1 "):
            store.copy(TENANT)

    def test_whoever_waits_hears_of_it_and_what_was_cached_does_not_hold(
        self, store: Store
    ) -> None:
        source = self._source()
        store.paste(TENANT, **page(source, 0, 1))
        count = store.rebuilt(TENANT)
        store.paste(TENANT, **page(source, 1, 9))
        assert store.wait(TENANT, 2, 0)
        rebuilt(store, derive)
        assert store.rebuilt(TENANT) > count
        with store.turn() as alone:
            assert not alone

    def _source(self) -> VolatileStore:
        source = VolatileStore()
        said(source, "a", event("c1", "one", (b"x1",)), key="k1")
        said(source, "b", event("c1", "two", (b"x2",)), event("c2", "three"))
        return source

    def _untouched(self, store: Store) -> None:
        assert store.tenants() == []
        assert kept(store) == ([], [], {})
        assert store.head(TENANT) == store.status()["blobs"] == 0
