"""`RedisDriver`: the driver interface over a Redis or Valkey server or cluster.

Each read is one command or one script, hence one moment of the tenant. A change is the script
`apply`. A rebuild is written under a new generation number and swapped in by one script. Pending
work of erasures is stored with the tenant and then collected into one list of the store.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

import msgspec

from limpet import errors
from limpet.core.values.json_values import Json
from limpet.stores import chain, port
from limpet.stores.server import checked_reads, driver
from limpet.stores.server.redis import error_mapping, serialization
from limpet.stores.server.redis.connections import (
    RedisAnswer,
    RedisCall,
    RedisPipeline,
    RedisServers,
)
from limpet.stores.server.redis.dsn import RedisDsn
from limpet.stores.server.redis.notifications import RedisAdvisoryLock, RedisListener
from limpet.stores.server.redis.scripts import load_script
from limpet.stores.server.redis.serialization import RedisKeys, decode_name
from limpet.stores.server.redis.settings import RedisSettings

_SCAN_ROWS: Final = 1_000
"""Rows that one script counts."""


class RedisReads:
    """Looking rows up."""

    _servers: RedisServers
    _names: RedisKeys

    def _script(self, name: str, tenant: str, *words: bytes | str | int) -> RedisAnswer:
        return self._servers.script(name, self._names.head(tenant), *words)

    def head(self, tenant: str) -> driver.FeedHead:
        """Return a tenant's head."""
        key = self._names.head(tenant)
        return serialization.unpack_head(
            self._servers.command(key, b"HMGET", key, b"p", b"l", b"e")
        )

    def tenants(self) -> list[str]:
        """Return every tenant that has events, sorted."""
        # One is listed before its first event is there, and may have come to none.
        return self._tenants_with(self._names.tenants, b"log")

    def tenants_with_notes(self) -> list[str]:
        """Return every tenant that has notes, with or without events, sorted."""
        return self._tenants_with(self._names.tenants_with_notes, b"notes")

    def _tenants_with(self, listed: bytes, part: bytes) -> list[str]:
        """Return the tenants of a list that have a certain key."""
        named = self._listed_names(listed)
        keys = [self._names.tenant_prefix(name) + part for name in named]
        there = self._servers.run([RedisCall(key, (b"EXISTS", key)) for key in keys])
        return sorted(name for name, is_there in zip(named, there, strict=True) if is_there)

    def unlisted_tenants(self) -> list[str]:
        """Return tenants that have a log and are in no list, out of all keys that there are."""
        listed = set(self._listed_names(self._names.tenants))
        return sorted(set(self._scan_logs()) - listed)

    def _scan_logs(self) -> Iterator[str]:
        for link in self._servers.primary_pools():
            at = b"0"
            while True:
                (answer,) = link.run(
                    [(b"SCAN", at, b"MATCH", self._names.log_pattern, b"COUNT", _SCAN_ROWS)]
                )
                if isinstance(answer, Exception):
                    raise error_mapping.to_error(answer, self._servers.dsn) from answer
                at, keys = cast("tuple[bytes, list[bytes]]", answer)
                yield from map(self._names.tenant_of, keys)
                if at == b"0":
                    break

    def _listed_names(self, key: bytes) -> list[str]:
        return [serialization.unpack_text(each) for each in cast("list[bytes]", self._servers.command(key, b"SMEMBERS", key))]  # fmt: skip

    def _read_heads(self, tenants: Collection[str]) -> list[driver.FeedHead]:
        keys = [self._names.head(tenant) for tenant in tenants]
        answers = self._servers.run(
            [RedisCall(key, (b"HMGET", key, b"p", b"l", b"e")) for key in keys]
        )
        return [serialization.unpack_head(answer) for answer in answers]

    def _count_by_status(self, tenants: Collection[str]) -> dict[str, dict[str, int]]:
        """Return how many rows there are, by kind and status; nobody is kept waiting for long."""
        held: dict[str, dict[str, int]] = {}
        for tenant in tenants:
            at = b""
            while at != b"0":
                answer = self._script("count_by_status", tenant, at or b"0", _SCAN_ROWS)
                at, rows = cast("tuple[bytes, list[list[object]]]", answer)
                for row in rows:
                    kind, status = (
                        serialization.unpack_text(row[0]),
                        decode_name(serialization.unpack_text(row[1])),
                    )
                    counts = held.setdefault(kind, {})
                    counts[status] = counts.get(status, 0) + serialization.unpack_number(row[2])
        return held

    def stream(self, tenant: str, stream: str | int) -> driver.StreamRow | None:
        """Return a stream by name or number."""
        return self.own_events(tenant, stream, low=1, high=0, limit=0)[0]

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[driver.StreamRow]:
        """Return streams by number, those after one."""
        answer = cast("list[object]", self._script("streams", tenant, after, limit))
        return [serialization.unpack_stream(each) for each in answer]

    def own_events(
        self,
        tenant: str,
        stream: str | int,
        *,
        low: int,
        high: int,
        limit: int,
        newest: bool = False,
    ) -> tuple[driver.StreamRow | None, list[driver.FeedRow]]:
        """Return a stream, and its own events of some versions."""
        by = "name" if isinstance(stream, str) else "number"
        end = "newest" if newest else "first"
        answer = self._script("own_events", tenant, by, stream, low, high, limit, end)
        if answer is None:
            return None, []
        told, rows = cast("list[object]", answer)
        if isinstance(rows, bytes):
            place = chain.EventAddress(serialization.unpack_number(rows), 0, 0)
            raise chain.damaged_event_error(place, "it is not in the log any more")
        return serialization.unpack_stream(told), serialization.unpack_events(rows)

    def feed(self, tenant: str, *, after: int, limit: int) -> list[driver.FeedRow]:
        """Return events with position > after, in order."""
        return serialization.unpack_events(self._script("feed", tenant, after, limit))

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        """Return the version of a stream's last own event up to a position; 0 if it had none."""
        return serialization.unpack_number(self._script("version_at", tenant, stream, position))

    def find_ordinal(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        """Return the lowest own version within low … high whose event has at least this ordinal; 0: none."""
        return serialization.unpack_number(
            self._script("find_ordinal", tenant, number, low, high, ordinal)
        )

    def claims(
        self, tenant: str, claims: Collection[str], stretches: Collection[int]
    ) -> list[tuple[int, str, int]]:
        """Return stretch, text and version of those of these claims that these stretches have."""
        asked = serialization.pack(list(claims)), serialization.pack(list(stretches))
        answer = cast("list[list[object]]", self._script("claims", tenant, *asked, "find"))
        return [
            (
                serialization.unpack_number(stretch),
                serialization.unpack_text(claim),
                serialization.unpack_number(version),
            )
            for stretch, claim, version in answer
        ]

    def count_claims(self, tenant: str, stretches: Collection[int]) -> int:
        """Return how many claims stretches have."""
        asked = serialization.pack([]), serialization.pack(list(stretches))
        return serialization.unpack_number(self._script("claims", tenant, *asked, "count"))

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        """Return the names of other streams that have a base in one, and the base's version, in their order."""
        answer = cast("list[list[object]]", self._script("forks", tenant, number))
        return [
            (serialization.unpack_text(name), serialization.unpack_number(version))
            for name, version in answer
        ]

    def key(self, tenant: str, key: str) -> driver.KeyRow | None:
        """Return what an idempotency key was used for."""
        where = self._names.tenant_prefix(tenant) + b"keys"
        answer = self._servers.command(where, b"HGET", where, key)
        return None if answer is None else serialization.unpack_key(key.encode(), answer)

    def _read_page(
        self, tenant: str, book: str, order: str, span: tuple[bytes, bytes], limit: int
    ) -> list[list[object]]:
        """Return names and values of a hash in the order of its names; `derived/` names one that is derived."""
        where, _, hash_ = book.rpartition("/")
        answer = self._script("sorted_page", tenant, hash_, order, *span, limit, where)
        return cast("list[list[object]]", answer)

    def keys(self, tenant: str, *, after: str = "", limit: int = 500) -> list[driver.KeyRow]:
        """Return keys by their text, those after one."""
        page = self._read_page(tenant, "keys", "keys:text", (b"(" + after.encode(), b"+"), limit)
        return [serialization.unpack_key(*each) for each in page]

    def keys_covering(self, tenant: str, positions: Collection[int]) -> list[str]:
        """Return keys whose first … last has one of these positions."""
        answer = self._script("keys_covering", tenant, serialization.pack(list(positions)))
        return [serialization.unpack_text(each) for each in cast("list[bytes]", answer)]

    def projection(self, tenant: str, kind: str, id: str) -> driver.ProjectionRow | None:
        """Return one row."""
        answer = self._script("projection", tenant, "rows", serialization.projection_key(kind, id))
        return None if answer is None else serialization.unpack_projection(answer)

    def query_projections(self, tenant: str, query: port.Query) -> list[driver.ProjectionRow]:
        """Return one page of rows."""
        if query.limit <= 0:
            return []
        answer = self._script("query", tenant, serialization.pack_query(query))
        return [serialization.unpack_projection(each) for each in cast("list[bytes]", answer)]

    def projections(
        self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500
    ) -> list[driver.ProjectionRow]:
        """Return rows of all kinds by (kind, id), those after one."""
        first = b"-" if after == ("", "") else b"(" + serialization.projection_key(*after)
        page = self._read_page(tenant, "derived/rows", "rows:id", (first, b"+"), limit)
        return [serialization.unpack_projection(row) for _, row in page if row is not None]

    def snapshot(self, tenant: str, stream: str) -> driver.SnapshotRow | None:
        """Return the newest snapshot of a stream."""
        answer = self._script("snapshot", tenant, stream)
        return None if answer is None else serialization.unpack_snapshot(stream, answer)

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return contents by hash, those that are there; unchecked."""
        if not hashes:
            return {}
        asked, key = list(hashes), self._names.tenant_prefix(tenant) + b"blobs"
        answer = cast("list[bytes | None]", self._servers.command(key, b"HMGET", key, *asked))
        found = zip(asked, answer, strict=True)
        return {hash_: content for hash_, content in found if content is not None}

    def list_blobs(
        self, tenant: str, *, after: bytes = b"", limit: int = 100
    ) -> list[tuple[bytes, bytes]]:
        """Return blobs by hash, those after one."""
        page = self._read_page(tenant, "blobs", "blobs:hash", (b"(" + after, b"+"), limit)
        # One that was taken away beneath the store has nothing left to be read.
        return [cast("tuple[bytes, bytes]", (hash_, content or b"")) for hash_, content in page]

    def blob_uses(
        self, tenant: str, *, after: int = 0, limit: int = 500
    ) -> list[tuple[int, bytes]]:
        """Return uses of blobs by position: of those after one, whole positions, about `limit` of them."""
        found = cast("list[bytes]", self._script("blob_uses", tenant, after, limit))
        return [(int.from_bytes(each[:8], "big"), each[16:]) for each in found]

    def unused_blobs(
        self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]
    ) -> set[bytes]:
        """Return those of the blobs that are there and that no event but those of these streams refers to."""
        asked = (
            serialization.pack([serialization.raw_bytes(each) for each in hashes]),
            serialization.pack(list(but)),
        )
        return set(cast("list[bytes]", self._script("unused_blobs", tenant, *asked)))

    def note(self, tenant: str, name: str) -> driver.NoteRow | None:
        """Return a note."""
        key = self._names.tenant_prefix(tenant) + b"notes"
        answer = self._servers.command(key, b"HGET", key, name)
        return None if answer is None else serialization.unpack_note(name.encode(), answer)

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[driver.NoteRow]:
        """Return notes by name, in the order of their UTF-8 bytes."""
        first, last = prefix.encode(), after.encode()
        # No name has the byte 0xff.
        span = (b"(" + last if last >= first else b"[" + first, b"(" + first + b"\xff")
        page = self._read_page(tenant, "notes", "notes:name", span, limit)
        return [serialization.unpack_note(*each) for each in page]


_ROWS_PER_SCRIPT: Final = 500
"""Rows that one script writes or cleans away: nobody else is served meanwhile."""

_ABANDONED_AFTER_S: Final = 600
"""A rebuild that was not heard of for so long was left by a process that died; the next one cleans it away."""


class RedisRebuild:
    """One rebuild of some tenants, each under a number of its own."""

    def __init__(
        self, servers: RedisServers, names: RedisKeys, before: Mapping[str, driver.FeedHead]
    ) -> None:
        self._servers = servers
        self._names = names
        self._before = before
        self._numbers: dict[str, int] = {}

    def replace(self, derived: Iterable[driver.TenantChange]) -> bool:
        """Make it, and put it into place if no tenant has gone on; False, and nothing is changed, otherwise."""
        try:
            for tenant, head in self._before.items():
                self._clean_leftovers(tenant)
                words = head.position, head.link, head.epoch
                number = serialization.unpack_number(self._script("begin_rebuild", tenant, *words))
                if not number:
                    return False
                self._numbers[tenant] = number
            for change in derived:
                for part in _split_change(change):
                    words = self._numbers[change.tenant], serialization.pack_derived(part)
                    if not self._script("write_rebuild", change.tenant, *words):
                        return False
            return self._heads_unchanged() and self._swap()
        finally:
            # What was replaced is cleaned away, and so is what was not put into place.
            for tenant, number in self._numbers.items():
                self._clean(tenant, number)

    def _script(self, name: str, tenant: str, *words: bytes | str | int) -> object:
        return self._servers.script(name, self._names.head(tenant), *words)

    def _heads_unchanged(self) -> bool:
        keys = [self._names.head(tenant) for tenant in self._before]
        calls = [RedisCall(key, (b"HMGET", key, b"p", b"l", b"e")) for key in keys]
        heads = [serialization.unpack_head(answer) for answer in self._servers.run(calls)]
        return heads == list(self._before.values())

    def _swap(self) -> bool:
        calls = [self._swap_call(tenant, head) for tenant, head in self._before.items()]
        answers = self._servers.run(calls)
        done = [tenant for tenant, answer in zip(self._before, answers, strict=True) if answer]
        for tenant in done:
            del self._numbers[tenant]
            with contextlib.suppress(errors.Unavailable):
                # What is not cleaned away now is by the next rebuild, or the next erasure.
                self._clean_leftovers(tenant)
        return len(done) == len(answers)

    def _swap_call(self, tenant: str, head: driver.FeedHead) -> RedisCall:
        words = (
            self._numbers[tenant], head.position, head.link, head.epoch,
            self._names.channel, serialization.pack_notification(tenant, head.position, self._names.sender),
        )  # fmt: skip
        return RedisCall(self._names.head(tenant), words, load_script("install_rebuild"))

    def _clean_leftovers(self, tenant: str) -> None:
        found = self._script("list_abandoned_rebuilds", tenant, _ABANDONED_AFTER_S)
        for number in cast("list[bytes]", found):
            self._clean(tenant, int(number))

    def _clean(self, tenant: str, number: int) -> None:
        with contextlib.suppress(errors.Unavailable):
            _clean_rebuild(self._servers, self._names.head(tenant), number)


def clean_all_rebuilds(servers: RedisServers, head: bytes) -> None:
    """Clean away whatever rebuilds of a tenant, by its head's key, have left or are still making: those stop."""
    builds = head.removesuffix(b"head") + b"builds"
    for number in cast("list[bytes]", servers.command(builds, b"ZRANGE", builds, 0, -1)):
        _clean_rebuild(servers, head, int(number))


def _clean_rebuild(servers: RedisServers, head: bytes, number: int) -> None:
    while servers.script("clean_rebuild", head, number, _ROWS_PER_SCRIPT):
        pass


def _split_change(change: driver.TenantChange) -> Iterator[driver.TenantChange]:
    """Yield what is derived of a change in parts that do not keep others waiting."""
    size = _ROWS_PER_SCRIPT
    fields = ("claims", "blob_uses", "projections", "snapshots")
    longest = max(len(getattr(change, name)) for name in fields)
    for first in range(0, longest, size):
        some = {name: getattr(change, name)[first : first + size] for name in fields}
        yield msgspec.structs.replace(change, **some)


class RedisPendingErasures:
    """The list of what is pending."""

    def __init__(self, servers: RedisServers, names: RedisKeys) -> None:
        self._servers = servers
        self._names = names

    def announce(self, tenant: str, position: int) -> None:
        """Say that an erasure will be at a position of a tenant, before it is."""
        key = self._names.announced_erasures
        self._servers.command(key, b"SADD", key, _announcement(tenant, position), write=True)

    def pending(self) -> bytes | None:
        """Return what erasures left to do, one after the other; None: nothing."""
        entries = self._collect_all()
        return b"".join(_entry_work(entry) for entry in entries) if entries else None

    def _collect_all(self) -> list[bytes]:
        announced, key = self._names.announced_erasures, self._names.pending_erasures
        look = RedisCall(key, (b"LRANGE", key, 0, -1))
        calls = [RedisCall(announced, (b"SMEMBERS", announced)), look]
        members, entries = cast("list[list[bytes]]", self._servers.run(calls))
        if not members:
            return entries
        for member in sorted(members, key=_announcement_order):
            self._collect(member)
        return cast("list[bytes]", self._servers.run([look])[0])

    def _collect(self, member: bytes) -> None:
        position, _, name = member.partition(b" ")
        tenant = serialization.unpack_text(name)
        head, todo = self._names.head(tenant), self._names.tenant_prefix(tenant) + b"todo"
        word, *found = cast("list[bytes]", self._servers.script("take_pending", head, position))
        if word == b"wait":
            return
        if found:
            id_ = position + b"/" + self._names.tenant_prefix(tenant)
            self._servers.script(
                "add_pending", self._names.pending_erasures, id_, id_ + b" " + found[0]
            )
            self._servers.command(todo, b"HDEL", todo, position, write=True)
        self._servers.command(
            self._names.announced_erasures,
            b"SREM",
            self._names.announced_erasures,
            member,
            write=True,
        )

    def scrub(self, done: bytes, left: bytes, rewrite: Callable[[], None]) -> None:
        """Have files rewritten, then take what was done off the list, but for what is left; what came since stays."""
        before = self._collect_all()
        if not before:
            self._replace_entries([], [b"left " + left] if left else [])
            return
        # Until it is through, an empty line more is pending.
        begun = [b"scrub \n", *(entry for entry in before if entry != b"scrub \n")]
        self._replace_entries(before, begun)
        for head in {head: None for entry in before if (head := _entry_head_key(entry))}:
            # It may have rows from before the erasure, and is not where that looks.
            clean_all_rebuilds(self._servers, head)
        rewrite()
        # What was done may have been looked at before or after another one was broken off, which left the line.
        pending = b"".join(map(_entry_work, before)).removeprefix(b"\n")
        rest = left + pending.removeprefix(done.removeprefix(b"\n"))
        self._replace_entries(begun, [b"left " + rest] if rest else [])

    def _replace_entries(self, before: list[bytes], after: list[bytes]) -> None:
        # If somebody else has set it meanwhile, what they left is right.
        seen, rest = ([serialization.raw_bytes(each) for each in some] for some in (before, after))
        self._servers.script("set_pending", self._names.pending_erasures, serialization.pack(seen), serialization.pack(rest))  # fmt: skip


def _announcement(tenant: str, position: int) -> bytes:
    return b"%d " % position + tenant.encode()


def _announcement_order(member: bytes) -> tuple[bytes, int]:
    position, _, tenant = member.partition(b" ")
    return tenant, int(position)


def _entry_head_key(entry: bytes) -> bytes:
    """Return the key of the head of the tenant that an entry came from; empty if it is of no one tenant."""
    base = entry.partition(b" ")[0].partition(b"/")[2]
    return base + b"head" if base else b""


def _entry_work(entry: bytes) -> bytes:
    return entry.partition(b" ")[2]


_CACHED_NAMES_MAX: Final = 10_000
_KEYS_PER_SCRIPT: Final = 1_000
"""Keys that one script forgets: nobody else is served meanwhile."""


class RedisDriver(RedisReads):
    """One server or cluster as one store sees it."""

    def __init__(self, place: RedisDsn, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._servers = RedisServers(place)
        self._names = RedisKeys(place.prefix, random(8))
        self._listed_tenants: set[tuple[bytes, str]] = set()
        self._note_counts: dict[str, int] = {}
        self._settings = RedisSettings(self._servers)
        self._pending_erasures = RedisPendingErasures(self._servers, self._names)
        self._advisory_lock = RedisAdvisoryLock(self._servers, self._names, random)
        self._listener = RedisListener(self._servers, self._names)

    def check(self) -> None:
        """Refuse a server that can't keep a store, or not as durably as the URL asks, and name the fix."""
        self._settings.check()
        self._settings.check_format(self._names.format)

    def exists(self) -> bool:
        """Whether a store was begun here; refuses a server as `check` does, and writes nothing."""
        self._settings.check()
        keys = (self._names.format, self._names.tenants)
        found = self._servers.run([RedisCall(key, (b"EXISTS", key)) for key in keys])
        return any(serialization.unpack_number(count) for count in found)

    @property
    def durability(self) -> str:
        """What survives once `apply` has returned, as the server's settings are now."""
        return self._settings.durability()

    def apply(self, changes: Sequence[driver.TenantChange]) -> list[driver.ChangeResult]:
        """Apply changes of different tenants, each by itself; None: it was applied."""
        self._prepare_changes(changes)
        answers = self._servers.run([self._apply_call(change) for change in changes])
        self._recheck_durability()
        return [_change_result(answer) for answer in answers]

    def pipeline(self) -> RedisPipeline | None:
        """Return a connection for changes that are sent ahead of answers; none to a cluster, or where a sync is waited for."""
        link = self._servers.single_pool()
        if link is None:
            return None
        return RedisPipeline(
            link, announce=self._prepare_changes, call=self._apply_call, verdict=_change_result, check=self._recheck_durability
        )  # fmt: skip

    def _prepare_changes(self, changes: Sequence[driver.TenantChange]) -> None:
        self._settings.recheck()
        for change in changes:
            self._list_tenant(self._names.tenants, change.tenant)
            if change.pending_work is not None:
                self._pending_erasures.announce(change.tenant, change.after.position)

    def _recheck_durability(self) -> None:
        """It may have gone over a new connection: nothing is acknowledged that is held by less than was asked for.

        Nor is it refused: it is there.
        """
        try:
            self._settings.recheck()
        except errors.Error as error:
            raise errors.Unavailable(
                f"it may be done, but not as durably as was asked: {error.message}",
                hint=f"{error.hint} Then retry; with the same key it has one effect.".lstrip(),
                facts=error.facts,
            ) from error

    def _apply_call(self, change: driver.TenantChange) -> RedisCall:
        told = serialization.pack_notification(
            change.tenant, change.after.position, self._names.sender
        )
        words = (
            serialization.pack_change(change),
            self._names.channel,
            told,
            self._advisory_lock.token,
        )
        return RedisCall(self._names.head(change.tenant), words, load_script("apply"))

    def _list_tenant(self, key: bytes, tenant: str) -> None:
        """Have a tenant listed before it has anything, so that none that has something is ever missing.

        Once by each store, whatever the tenant has: a list that was lost comes back with whoever comes new.
        """
        if (key, tenant) not in self._listed_tenants:
            self._servers.command(key, b"SADD", key, tenant, write=True)
            if len(self._listed_tenants) >= _CACHED_NAMES_MAX:
                self._listed_tenants.clear()
            self._listed_tenants.add((key, tenant))

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop keys used before that moment; return how many."""
        count = 0
        while some := serialization.unpack_number(
            self._script("delete_keys", tenant, before_us, _KEYS_PER_SCRIPT)
        ):
            count += some
        return count

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Compare and set. The version is part of the mark, so it is guessed, and guessed again if it was another."""
        if value is None:
            answer = self._script("put_note", tenant, name, expected, "drop")
            return cast("list[bytes]", answer)[0] == b"yes"
        self._settings.recheck()
        self._list_tenant(self._names.tenants_with_notes, tenant)
        for _ in range(driver.NOTE_TRIES_MAX):
            version = self._note_counts.get(tenant, 0) + 1
            mark = checked_reads.note_checksum(tenant, name, port.Note(value, version))
            kept = serialization.pack_note(version, value, mark)
            answer = self._script("put_note", tenant, name, expected, "put", version, kept)
            word, *count = cast("list[bytes]", answer)
            if word != b"count":
                if word == b"yes":
                    self._count_note(tenant, version)
                return word == b"yes"
            self._count_note(tenant, serialization.unpack_number(count[0]))
        raise driver.contention_error()

    def _count_note(self, tenant: str, count: int) -> None:
        if len(self._note_counts) >= _CACHED_NAMES_MAX:
            self._note_counts.clear()
        self._note_counts[tenant] = count

    def replace_derived(
        self, before: Mapping[str, driver.FeedHead], derived: Iterable[driver.TenantChange]
    ) -> bool:
        """Put what changes bring in the place of all that is derived; each tenant whole or not at all."""
        for tenant in before:
            # One that has lost its place in the list gets it back.
            self._servers.command(
                self._names.tenants, b"SADD", self._names.tenants, tenant, write=True
            )
        return RedisRebuild(self._servers, self._names, before).replace(derived)

    def acquire_advisory_lock(self, tenant: str, timeout_s: float) -> bool:
        """Try to be the only one among all stores that has a tenant's guard."""
        return self._advisory_lock.acquire(tenant, timeout_s)

    def release_advisory_lock(self, tenant: str) -> None:
        """Give the guard back, if it is had."""
        self._advisory_lock.release(tenant)

    def pending_erasures(self) -> bytes | None:
        """Return what erasures left to do."""
        return self._pending_erasures.pending()

    def scrub(self, done: bytes, left: bytes) -> None:
        """Have every server write its files anew; then set what is pending."""
        self._pending_erasures.scrub(done, left, self._settings.rewrite)

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield tenant and position whenever a tenant's feed has gone on, by anybody."""
        return self._listener.listen()

    def status(self) -> Mapping[str, Json]:
        """Return facts for people."""
        named_ = self.tenants()
        heads = dict(zip(named_, self._read_heads(named_), strict=True))
        place = self._servers.dsn
        keys = [self._names.tenant_prefix(tenant) + b"blobs" for tenant in named_]
        blobs = self._servers.run([RedisCall(key, (b"HLEN", key)) for key in keys])
        return {
            "backend": "redis",
            "store": f"{place.shown}?prefix={place.prefix}",
            "server": place.shown,
            "prefix": self._names.prefix,
            **self._settings.facts(),
            "tenants": len(named_),
            "events": sum(head.position for head in heads.values()),
            "blobs": sum(serialization.unpack_number(count) for count in blobs),
            "holds": cast("Json", self._count_by_status(named_)),
            "heads": {
                name: {"position": head.position, "link": head.link.hex()}
                for name, head in heads.items()
            },
        }

    def close(self) -> None:
        """Give back every connection. Closing twice is fine."""
        self._listener.close()
        self._servers.close()


def _change_result(answer: RedisAnswer) -> driver.ChangeResult:
    word, *rest = cast("list[bytes]", answer)
    if word == b"moved":
        position, link, epoch = rest
        return driver.HeadMoved(driver.FeedHead(int(position), link, int(epoch)))
    if word == b"taken":
        return driver.DuplicateRow()
    return driver.AppliedUnderContention() if word == b"wanted" else None


_: type[driver.Driver] = RedisDriver
