"""`RedisDriver`: the driver interface over a Redis or Valkey server or cluster.

Each read is one command or one script, hence one moment of the tenant. A change is the script `apply`. A rebuild is
written under a new generation number and swapped in by one script. Pending work of erasures is stored with the tenant
and then collected into one list of the store. The advisory lock of a tenant is a key that expires. It protects no data,
since every change is compared with the head; it only keeps several writers from retrying against each other.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, cast

import msgspec
import redis

from limpet import errors
from limpet.core.values.validation import Json
from limpet.stores import chain, port
from limpet.stores.server import checked_reads, driver
from limpet.stores.server.redis import error_mapping, serialization
from limpet.stores.server.redis.connections import (
    NOT_EXECUTED,
    RedisAnswer,
    RedisCall,
    RedisConnection,
    RedisConnectionPool,
    RedisDsn,
    RedisServers,
    interrupt_reader,
    load_script,
    read_answer,
)
from limpet.stores.server.redis.serialization import RedisKeys, decode_name, pack, unpack_number, unpack_text
from limpet.stores.server.redis.settings import RedisSettings

_SCAN_ROWS, _ROWS_PER_SCRIPT, _KEYS_PER_SCRIPT = 1_000, 500, 1_000
"""Rows that one script counts, rows that it writes or deletes, idempotency keys that it deletes.

While a script runs, the server answers no other client.
"""

_ABANDONED_AFTER_S: Final = 600
"""A rebuild without progress for so long was left by a process that died. The next one deletes its rows."""


class RedisRebuild:
    """One rebuild of a tenant. New rows are written under a generation number, then the tenant switches to it."""

    def __init__(self, servers: RedisServers, names: RedisKeys, tenant: str, before: driver.FeedHead) -> None:
        self._servers = servers
        self._names = names
        self._tenant = tenant
        self._before = before

    def replace(self, derived: Iterable[driver.TenantChange]) -> bool:
        """Write and install the derived rows; return False, with nothing changed, if the tenant's head has moved."""
        head = self._before.position, self._before.link, self._before.epoch
        self._clean_leftovers()
        number = unpack_number(self._script("begin_rebuild", *head))
        if not number:
            return False
        done = False
        try:
            for change in derived:
                for part in _split_change(change):
                    if not self._script("write_rebuild", number, serialization.pack_derived(part)):
                        return False
            notification = serialization.pack_notification(self._tenant, self._before.position, self._names.sender)
            done = bool(self._script("install_rebuild", number, *head, self._names.channel, notification))
            return done
        finally:
            if done:
                with contextlib.suppress(errors.Unavailable):
                    # Replaced rows that are not deleted now are deleted by the next rebuild or erasure.
                    self._clean_leftovers()
            else:
                self._clean(number)

    def _script(self, name: str, *words: bytes | str | int) -> RedisAnswer:
        return self._servers.script(name, self._names.head(self._tenant), *words)

    def _clean_leftovers(self) -> None:
        for number in cast("list[bytes]", self._script("list_abandoned_rebuilds", _ABANDONED_AFTER_S)):
            self._clean(int(number))

    def _clean(self, number: int) -> None:
        with contextlib.suppress(errors.Unavailable):
            _clean_rebuild(self._servers, self._names.head(self._tenant), number)


def clean_all_rebuilds(servers: RedisServers, head: bytes) -> None:
    """Delete the rows of all rebuilds of a tenant, given by its head's key. A rebuild in progress then fails."""
    builds = head.removesuffix(b"head") + b"builds"
    for number in cast("list[bytes]", servers.command(builds, b"ZRANGE", builds, 0, -1)):
        _clean_rebuild(servers, head, int(number))


def _clean_rebuild(servers: RedisServers, head: bytes, number: int) -> None:
    while servers.script("clean_rebuild", head, number, _ROWS_PER_SCRIPT):
        pass


def _split_change(change: driver.TenantChange) -> Iterator[driver.TenantChange]:
    """Yield a change's derived rows in changes of at most `_ROWS_PER_SCRIPT` rows a kind."""
    size = _ROWS_PER_SCRIPT
    fields = ("claims", "blob_uses", "projections", "snapshots")
    longest = max(len(getattr(change, name)) for name in fields)
    for first in range(0, longest, size):
        some = {name: getattr(change, name)[first : first + size] for name in fields}
        yield msgspec.structs.replace(change, **some)


class RedisPendingErasures:
    """The pending work of a store's erasures.

    The script of an erasure can only write keys of its tenant. So the tenant is announced first, the script leaves the
    work with the tenant, and `_collect` moves it to the list of the store. Collecting twice is harmless.
    """

    def __init__(self, servers: RedisServers, names: RedisKeys) -> None:
        self._servers = servers
        self._names = names

    def announce(self, tenant: str, position: int) -> None:
        """Announce an erasure at a position of a tenant. Must precede the erasure, or its work could be overlooked."""
        key = self._names.announced_erasures
        self._servers.command(key, b"SADD", key, b"%d " % position + tenant.encode(), write=True)

    def pending(self) -> bytes | None:
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
        tenant = unpack_text(name)
        head, todo = self._names.head(tenant), self._names.tenant_prefix(tenant) + b"todo"
        word, *found = cast("list[bytes]", self._servers.script("take_pending", head, position))
        if word == b"wait":
            return
        if found:
            id_ = position + b"/" + self._names.tenant_prefix(tenant)
            self._servers.script("add_pending", self._names.pending_erasures, id_, id_ + b" " + found[0])
            self._servers.command(todo, b"HDEL", todo, position, write=True)
        self._servers.command(
            self._names.announced_erasures, b"SREM", self._names.announced_erasures, member, write=True
        )

    def scrub(self, done: bytes, left: bytes, rewrite: Callable[[], None]) -> None:
        """Rewrite the server's files, then replace the work `done` by `left`. Work added meanwhile stays."""
        before = self._collect_all()
        if not before:
            self._replace_entries([], [b"left " + left] if left else [])
            return
        # Until the scrub has ended, an additional empty line is pending.
        begun = [b"scrub \n", *(entry for entry in before if entry != b"scrub \n")]
        self._replace_entries(before, begun)
        for head in {head: None for entry in before if (head := _entry_head_key(entry))}:
            # A rebuild in progress may have rows from before the erasure, where the erasure does not look.
            clean_all_rebuilds(self._servers, head)
        rewrite()
        # An interrupted scrub leaves the empty line. `done` may have been read with or without it.
        pending = b"".join(map(_entry_work, before)).removeprefix(b"\n")
        rest = left + pending.removeprefix(done.removeprefix(b"\n"))
        self._replace_entries(begun, [b"left " + rest] if rest else [])

    def _replace_entries(self, before: list[bytes], after: list[bytes]) -> None:
        # If another process has replaced the entries meanwhile, its entries stay.
        seen, rest = ([serialization.raw_bytes(each) for each in some] for some in (before, after))
        self._servers.script("set_pending", self._names.pending_erasures, pack(seen), pack(rest))  # fmt: skip


def _announcement_order(member: bytes) -> tuple[bytes, int]:
    position, _, tenant = member.partition(b" ")
    return tenant, int(position)


def _entry_head_key(entry: bytes) -> bytes:
    base = entry.partition(b" ")[0].partition(b"/")[2]
    return base + b"head" if base else b""


def _entry_work(entry: bytes) -> bytes:
    return entry.partition(b" ")[2]


_CACHED_NAMES_MAX: Final = 10_000
_LOCK_EXPIRY_MS: Final = 2_000
"""After this time the server drops an advisory lock that was not released: its holder has died, or takes too long."""

_LOCK_POLL_S, _LOCK_POLL_S_MAX = 0.001, 0.005
"""The pause between two tries to take an advisory lock: the first and the longest."""


class RedisDriver:
    """The driver of one store on a server or cluster. Thread-safe.

    `_listed_tenants` and `_note_counts` are used without a lock: single operations of a set and a dict are atomic, and
    a lost entry costs one more command.
    """

    def __init__(self, place: RedisDsn, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._servers = RedisServers(place)
        self._names = RedisKeys(place.prefix, random(8))
        self._listed_tenants: set[tuple[bytes, str]] = set()
        self._note_counts: dict[str, int] = {}
        self._settings = RedisSettings(self._servers)
        self._pending_erasures = RedisPendingErasures(self._servers, self._names)
        self._random = random
        self._lock_token = b""
        """The value of the advisory lock's key, if this store holds the lock."""
        self._listener = RedisListener(self._servers, self._names)

    def check(self) -> None:
        """Raise an error that names the fix if the server can't hold a store, or not as durably as the URL asks."""
        self._settings.check()
        self._settings.check_format(self._names.format)

    def exists(self) -> bool:
        """Whether the server has a store. Raises as `check` does, and writes nothing."""
        self._settings.check()
        keys = (self._names.format, self._names.tenants)
        found = self._servers.run([RedisCall(key, (b"EXISTS", key)) for key in keys])
        return any(unpack_number(count) for count in found)

    @property
    def durability(self) -> str:
        return self._settings.durability()

    def apply(self, changes: Sequence[driver.TenantChange]) -> list[driver.ChangeResult]:
        self.prepare_changes(changes)
        answers = self._servers.run([self.apply_call(change) for change in changes])
        self.recheck_durability()
        return [_change_result(answer) for answer in answers]

    def pipeline(self) -> RedisPipeline | None:
        """Return a pipeline; None on a cluster, or if each change waits for a sync (WAITAOF)."""
        pool = self._servers.single_pool()
        return RedisPipeline(self, pool) if pool is not None else None

    def prepare_changes(self, changes: Sequence[driver.TenantChange]) -> None:
        self._settings.recheck()
        for change in changes:
            self._list_tenant(self._names.tenants, change.tenant)
            if change.pending_work is not None:
                self._pending_erasures.announce(change.tenant, change.after.position)

    def recheck_durability(self) -> None:
        """Raise Unavailable if the server no longer has the durability that the URL asks for.

        The change may have gone over a new connection, to a server with other settings. It is applied, so it can be
        neither acknowledged nor refused.
        """
        try:
            self._settings.recheck()
        except errors.Error as error:
            raise errors.Unavailable(
                f"the change may be applied, but not as durably as the URL asks: {error.message}",
                hint=f"{error.hint} Then retry; with the same key it has one effect.".lstrip(),
                facts=error.facts,
            ) from error

    def apply_call(self, change: driver.TenantChange) -> RedisCall:
        notification = serialization.pack_notification(change.tenant, change.after.position, self._names.sender)
        words = (serialization.pack_change(change), self._names.channel, notification, self._lock_token)
        return RedisCall(self._names.head(change.tenant), words, load_script("apply"))

    def _list_tenant(self, key: bytes, tenant: str) -> None:
        """List a tenant before it has rows, so that no tenant with rows is ever missing from the list.

        Each store object does so once a tenant, even if the tenant has rows: this restores a list that was lost.
        """
        if (key, tenant) not in self._listed_tenants:
            self._servers.command(key, b"SADD", key, tenant, write=True)
            if len(self._listed_tenants) >= _CACHED_NAMES_MAX:
                self._listed_tenants.clear()
            self._listed_tenants.add((key, tenant))

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        count = 0
        while some := unpack_number(self._script("delete_keys", tenant, before_us, _KEYS_PER_SCRIPT)):
            count += some
        return count

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Compare and set. The checksum covers the new version, so that is predicted, and again if it was wrong."""
        if value is None:
            answer = self._script("put_note", tenant, name, expected, "drop")
            return cast("list[bytes]", answer)[0] == b"yes"
        self._settings.recheck()
        self._list_tenant(self._names.tenants_with_notes, tenant)
        for _ in range(driver.NOTE_TRIES_MAX):
            version = self._note_counts.get(tenant, 0) + 1
            checksum = checked_reads.note_checksum(tenant, name, port.Note(value, version))
            packed = serialization.pack_note(version, value, checksum)
            answer = self._script("put_note", tenant, name, expected, "put", version, packed)
            word, *count = cast("list[bytes]", answer)
            if word != b"count":
                if word == b"yes":
                    self._count_note(tenant, version)
                return word == b"yes"
            self._count_note(tenant, unpack_number(count[0]))
        raise driver.contention_error()

    def _count_note(self, tenant: str, count: int) -> None:
        if len(self._note_counts) >= _CACHED_NAMES_MAX:
            self._note_counts.clear()
        self._note_counts[tenant] = count

    def replace_derived(self, tenant: str, before: driver.FeedHead, derived: Iterable[driver.TenantChange]) -> bool:
        # Restores the entry of a tenant that a damaged list has lost.
        self._servers.command(self._names.tenants, b"SADD", self._names.tenants, tenant, write=True)
        return RedisRebuild(self._servers, self._names, tenant, before).replace(derived)

    def acquire_advisory_lock(self, tenant: str, timeout_s: float) -> bool:
        key, token = self._names.tenant_prefix(tenant) + b"guard", self._random(16)
        until, pause = time.monotonic() + timeout_s, _LOCK_POLL_S
        notification = serialization.pack_notification(tenant, 0, self._names.sender)
        take = RedisCall(key, (b"SET", key, token, b"NX", b"PX", _LOCK_EXPIRY_MS))
        _, taken = self._servers.run([RedisCall(key, (b"PUBLISH", self._names.channel, notification)), take])
        while not taken:
            if time.monotonic() + pause > until:
                return False
            time.sleep(pause)
            pause = min(pause * 2, _LOCK_POLL_S_MAX)
            (taken,) = self._servers.run([take])
        self._lock_token = token
        return True

    def release_advisory_lock(self, tenant: str) -> None:
        token, self._lock_token = self._lock_token, b""
        if token:
            self._script("release_lock", tenant, token)

    def pending_erasures(self) -> bytes | None:
        return self._pending_erasures.pending()

    def scrub(self, done: bytes, left: bytes) -> None:
        self._pending_erasures.scrub(done, left, self._settings.rewrite)

    def listen(self) -> Iterator[tuple[str, int]]:
        return self._listener.listen()

    def status(self) -> Mapping[str, Json]:
        tenants = self.tenants()
        heads = dict(zip(tenants, self._read_heads(tenants), strict=True))
        dsn = self._servers.dsn
        keys = [self._names.tenant_prefix(tenant) + b"blobs" for tenant in tenants]
        blobs = self._servers.run([RedisCall(key, (b"HLEN", key)) for key in keys])
        return {
            "backend": "redis",
            "store": f"{dsn.shown}?prefix={dsn.prefix}",
            "server": dsn.shown,
            "prefix": self._names.prefix,
            **self._settings.facts(),
            "tenants": len(tenants),
            "events": sum(head.position for head in heads.values()),
            "blobs": sum(unpack_number(count) for count in blobs),
            "holds": cast("Json", self._count_by_status(tenants)),
            "heads": {name: {"position": head.position, "link": head.link.hex()} for name, head in heads.items()},
        }

    def close(self) -> None:
        self._listener.close()
        self._servers.close()

    # Reads

    def _script(self, name: str, tenant: str, *words: bytes | str | int) -> RedisAnswer:
        return self._servers.script(name, self._names.head(tenant), *words)

    def head(self, tenant: str) -> driver.FeedHead:
        key = self._names.head(tenant)
        return serialization.unpack_head(self._servers.command(key, b"HMGET", key, b"p", b"l", b"e"))

    def tenants(self) -> list[str]:
        # A tenant is listed before its first event, and may never have got one.
        return self._tenants_with(self._names.tenants, b"log")

    def tenants_with_notes(self) -> list[str]:
        return self._tenants_with(self._names.tenants_with_notes, b"notes")

    def _tenants_with(self, listed: bytes, part: bytes) -> list[str]:
        names = self._listed_names(listed)
        keys = [self._names.tenant_prefix(name) + part for name in names]
        exist = self._servers.run([RedisCall(key, (b"EXISTS", key)) for key in keys])
        return sorted(name for name, exists in zip(names, exist, strict=True) if exists)

    def unlisted_tenants(self) -> list[str]:
        listed = set(self._listed_names(self._names.tenants))
        return sorted(set(self._scan_logs()) - listed)

    def _scan_logs(self) -> Iterator[str]:
        for pool in self._servers.primary_pools():
            at = b"0"
            while True:
                (answer,) = pool.run([(b"SCAN", at, b"MATCH", self._names.log_pattern, b"COUNT", _SCAN_ROWS)])
                checked = error_mapping.checked_answer(answer, self._servers.dsn)
                at, keys = cast("tuple[bytes, list[bytes]]", checked)
                yield from map(self._names.tenant_of, keys)
                if at == b"0":
                    break

    def _listed_names(self, key: bytes) -> list[str]:
        return [unpack_text(each) for each in cast("list[bytes]", self._servers.command(key, b"SMEMBERS", key))]  # fmt: skip

    def _read_heads(self, tenants: Collection[str]) -> list[driver.FeedHead]:
        keys = [self._names.head(tenant) for tenant in tenants]
        answers = self._servers.run([RedisCall(key, (b"HMGET", key, b"p", b"l", b"e")) for key in keys])
        return [serialization.unpack_head(answer) for answer in answers]

    def _count_by_status(self, tenants: Collection[str]) -> dict[str, dict[str, int]]:
        """Return the number of projections by kind and status, counted by many short scripts."""
        counts_by_kind: dict[str, dict[str, int]] = {}
        for tenant in tenants:
            at = b""
            while at != b"0":
                answer = self._script("count_by_status", tenant, at or b"0", _SCAN_ROWS)
                at, rows = cast("tuple[bytes, list[list[object]]]", answer)
                for row in rows:
                    kind, status = (unpack_text(row[0]), decode_name(unpack_text(row[1])))
                    counts = counts_by_kind.setdefault(kind, {})
                    counts[status] = counts.get(status, 0) + unpack_number(row[2])
        return counts_by_kind

    def stream(self, tenant: str, stream: str | int) -> driver.StreamRow | None:
        return self.own_events(tenant, stream, low=1, high=0, limit=0)[0]

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[driver.StreamRow]:
        answer = self._script("streams", tenant, after, limit)
        return [serialization.unpack_stream(each) for each in cast("list[object]", answer)]

    def own_events(
        self, tenant: str, stream: str | int, *, low: int, high: int, limit: int, newest: bool = False
    ) -> tuple[driver.StreamRow | None, list[driver.FeedRow]]:
        by = "name" if isinstance(stream, str) else "number"
        end = "newest" if newest else "first"
        answer = self._script("own_events", tenant, by, stream, low, high, limit, end)
        if answer is None:
            return None, []
        row, rows = cast("list[object]", answer)
        if isinstance(rows, bytes):
            place = chain.EventAddress(unpack_number(rows), 0, 0)
            raise chain.damaged_event_error(place, "it is missing from the log")
        return serialization.unpack_stream(row), serialization.unpack_events(rows)

    def feed(self, tenant: str, *, after: int, limit: int) -> list[driver.FeedRow]:
        return serialization.unpack_events(self._script("feed", tenant, after, limit))

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        return unpack_number(self._script("version_at", tenant, stream, position))

    def find_ordinal(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        return unpack_number(self._script("find_ordinal", tenant, number, low, high, ordinal))

    def claims(self, tenant: str, claims: Collection[str], stretches: Collection[int]) -> list[tuple[int, str, int]]:
        asked = pack(list(claims)), pack(list(stretches))
        answer = cast("list[list[object]]", self._script("claims", tenant, *asked, "find"))
        return [
            (unpack_number(stretch), unpack_text(claim), unpack_number(version)) for stretch, claim, version in answer
        ]

    def count_claims(self, tenant: str, stretches: Collection[int]) -> int:
        return unpack_number(self._script("claims", tenant, pack([]), pack(list(stretches)), "count"))

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        answer = cast("list[list[object]]", self._script("forks", tenant, number))
        return [(unpack_text(name), unpack_number(version)) for name, version in answer]

    def key(self, tenant: str, key: str) -> driver.KeyRow | None:
        hash_key = self._names.tenant_prefix(tenant) + b"keys"
        answer = self._servers.command(hash_key, b"HGET", hash_key, key)
        return None if answer is None else serialization.unpack_key(key.encode(), answer)

    def _read_page(
        self, tenant: str, hash_key: str, order: str, span: tuple[bytes, bytes], limit: int
    ) -> list[list[object]]:
        """Return fields and values of a hash in a sorted set's order. `derived/` in front means a hash of derived rows."""
        where, _, hash_ = hash_key.rpartition("/")
        answer = self._script("sorted_page", tenant, hash_, order, *span, limit, where)
        return cast("list[list[object]]", answer)

    def keys(self, tenant: str, *, after: str = "", limit: int = 500) -> list[driver.KeyRow]:
        page = self._read_page(tenant, "keys", "keys:text", (b"(" + after.encode(), b"+"), limit)
        return [serialization.unpack_key(*each) for each in page]

    def keys_covering(self, tenant: str, positions: Collection[int]) -> list[str]:
        answer = self._script("keys_covering", tenant, pack(list(positions)))
        return [unpack_text(each) for each in cast("list[bytes]", answer)]

    def projection(self, tenant: str, kind: str, id: str) -> driver.ProjectionRow | None:
        answer = self._script("projection", tenant, "rows", serialization.projection_key(kind, id))
        return None if answer is None else serialization.unpack_projection(answer)

    def query_projections(self, tenant: str, query: port.Query) -> list[driver.ProjectionRow]:
        if query.limit <= 0:
            return []
        answer = self._script("query", tenant, serialization.pack_query(query))
        return [serialization.unpack_projection(each) for each in cast("list[bytes]", answer)]

    def projections(
        self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500
    ) -> list[driver.ProjectionRow]:
        first = b"-" if after == ("", "") else b"(" + serialization.projection_key(*after)
        page = self._read_page(tenant, "derived/rows", "rows:id", (first, b"+"), limit)
        return [serialization.unpack_projection(row) for _, row in page if row is not None]

    def snapshot(self, tenant: str, stream: str) -> driver.SnapshotRow | None:
        answer = self._script("snapshot", tenant, stream)
        return None if answer is None else serialization.unpack_snapshot(stream, answer)

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        if not hashes:
            return {}
        asked, key = list(hashes), self._names.tenant_prefix(tenant) + b"blobs"
        answer = cast("list[bytes | None]", self._servers.command(key, b"HMGET", key, *asked))
        found = zip(asked, answer, strict=True)
        return {hash_: content for hash_, content in found if content is not None}

    def list_blobs(self, tenant: str, *, after: bytes = b"", limit: int = 100) -> list[tuple[bytes, bytes]]:
        page = self._read_page(tenant, "blobs", "blobs:hash", (b"(" + after, b"+"), limit)
        # A blob that was deleted behind the store's back reads as empty, which no checksum accepts.
        return [cast("tuple[bytes, bytes]", (hash_, content or b"")) for hash_, content in page]

    def blob_uses(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[tuple[int, bytes]]:
        found = cast("list[bytes]", self._script("blob_uses", tenant, after, limit))
        return [(int.from_bytes(each[:8], "big"), each[16:]) for each in found]

    def unused_blobs(self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]) -> set[bytes]:
        asked = (pack([serialization.raw_bytes(each) for each in hashes]), pack(list(but)))
        return set(cast("list[bytes]", self._script("unused_blobs", tenant, *asked)))

    def note(self, tenant: str, name: str) -> driver.NoteRow | None:
        key = self._names.tenant_prefix(tenant) + b"notes"
        answer = self._servers.command(key, b"HGET", key, name)
        return None if answer is None else serialization.unpack_note(name.encode(), answer)

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[driver.NoteRow]:
        first, last = prefix.encode(), after.encode()
        # UTF-8 has no byte 0xff, so every name with the prefix is below prefix + 0xff.
        span = (b"(" + last if last >= first else b"[" + first, b"(" + first + b"\xff")
        page = self._read_page(tenant, "notes", "notes:name", span, limit)
        return [serialization.unpack_note(*each) for each in page]


def _change_result(answer: RedisAnswer) -> driver.ChangeResult:
    word, *rest = cast("list[bytes]", answer)
    if word == b"moved":
        position, link, epoch = rest
        return driver.HeadMoved(driver.FeedHead(int(position), link, int(epoch)))
    if word == b"taken":
        return driver.DuplicateRow()
    return driver.AppliedUnderContention() if word == b"wanted" else None


class RedisPipeline:
    """Changes in flight over one connection."""

    def __init__(self, redis_driver: RedisDriver, pool: RedisConnectionPool) -> None:
        self._driver = redis_driver
        self._dsn = pool.dsn
        self._loan = pool.borrow()
        self._in_flight: deque[int] = deque()

    def __enter__(self) -> RedisPipeline:
        with error_mapping.translate_errors(self._dsn):
            self._connection = self._loan.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_flight and error is None:
            kind, error = UnansweredChanges, UnansweredChanges()
        self._loan.__exit__(kind, error, trace)

    def send(self, changes: Sequence[driver.TenantChange]) -> bool:
        self._driver.prepare_changes(changes)
        commands = [self._driver.apply_call(change).command() for change in changes]
        self._in_flight.append(len(changes))
        with error_mapping.translate_errors(self._dsn):
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        return True

    def receive(self) -> list[driver.ChangeResult]:
        with error_mapping.translate_errors(self._dsn):
            answers = [read_answer(self._connection) for _ in range(self._in_flight[0])]
            for answer in answers:
                if isinstance(answer, Exception) and not isinstance(answer, NOT_EXECUTED):
                    raise answer
        self._in_flight.popleft()
        self._driver.recheck_durability()
        return [
            driver.DuplicateRow() if isinstance(answer, NOT_EXECUTED) else _change_result(answer) for answer in answers
        ]

    def has_answer(self) -> bool:
        with error_mapping.translate_errors(self._dsn):
            return self._connection.can_read(0)

    def fileno(self) -> int:
        sock = self._connection._sock  # pyright: ignore[reportPrivateUsage]
        return sock.fileno() if sock is not None else -1


class UnansweredChanges(Exception):
    """A pipeline was left before every change was answered."""


_driver: type[driver.Driver] = RedisDriver
_pipeline: type[driver.ChangePipeline] = RedisPipeline

MISSED = ("", 0)
"""Notifications may have been missed."""

_CLOSE_CHECK_S: Final = 1.0
"""How often a listener checks whether it was closed."""

_notification_decoder = msgspec.msgpack.Decoder(tuple[str, int, bytes])


class RedisListener:
    """Listens for changes that other stores apply."""

    def __init__(self, servers: RedisServers, names: RedisKeys) -> None:
        self._servers = servers
        self._names = names
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connection: RedisConnection | None = None

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield MISSED, then tenant and position of every change by other stores. Raises if the connection fails."""
        try:
            connection = self._subscribe()
            if connection is None:
                return
            yield MISSED
            while not self._closed.is_set():
                notification = self._next_notification(connection)
                if notification is not None:
                    yield notification
        except error_mapping.DRIVER_ERRORS as error:
            if not self._closed.is_set():
                raise error_mapping.to_error(error, self._servers.dsn) from error
        finally:
            self._close_connection()

    def _subscribe(self) -> RedisConnection | None:
        # Every server of a cluster gets the notifications of all of them.
        failure: Exception | None = None
        for pool in self._servers.primary_pools():
            try:
                connection = pool.open_connection()
            except error_mapping.DRIVER_ERRORS as error:
                self._servers.forget_pool(pool)
                failure = error
                continue
            with self._lock:
                if self._closed.is_set():
                    connection.disconnect()
                    return None
                self._connection = connection
            connection.send_packed_command(connection.pack_commands([(b"SUBSCRIBE", self._names.channel)]))
            connection.read_response()
            return connection
        raise failure or redis.ConnectionError("no server answers")

    def _close_connection(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                interrupt_reader(self._connection)

    def _next_notification(self, connection: RedisConnection) -> tuple[str, int] | None:
        if not connection.can_read(_CLOSE_CHECK_S):
            return None
        kind, _, content = cast("list[bytes]", connection.read_response())
        if kind != b"message":
            return None
        try:
            tenant, position, sender = _notification_decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # A message of another program: something may have been missed.
            return MISSED
        # This store's own changes are no sign of another writer.
        return None if sender == self._names.sender else (tenant, position)
