"""`PostgresDriver`: the driver interface over a PostgreSQL schema.

Each read is one round trip in a transaction of one tenant, which row-level security enforces. Each
change is one call of a prepared SQL function in a transaction of its own. Notifications and the
advisory lock of a tenant use a connection each. The lock protects no data, since every change is
compared with the head; it only keeps several writers from retrying against each other.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from limpet import errors, limits
from limpet.core.values.validation import Json
from limpet.stores import chain, port
from limpet.stores.server import checked_reads, driver
from limpet.stores.server.postgres import connections, error_mapping, schema, serialization
from limpet.stores.server.postgres.connections import (
    BorrowedConnection,
    PostgresConnection,
    PostgresConnectionPool,
    PostgresDsn,
    Rows,
    without_timeout,
)
from limpet.stores.server.postgres.serialization import bigint_array, bytea_array, decode_tenant, encode_tenant

_BASE_COLUMNS = 4
_STREAM_COLUMNS = 6
_BIGINT_MAX = 2**63 - 1


class PostgresDriver:
    """The driver of one store in one schema of a database. Thread-safe."""

    def __init__(self, place: PostgresDsn) -> None:
        self._dsn = place
        self._sql: Mapping[str, str] = connections.sql_statements("queries.sql")
        self._channel = place.channel
        self._server = schema.prepare_schema(place)
        self._connections = PostgresConnectionPool(place, self._check_server)
        self._advisory_lock = PostgresAdvisoryLock(place)
        self._listener = PostgresListener(place, self._advisory_lock)

    def _check_server(self, connection: PostgresConnection) -> None:
        # The settings may have changed: the server was restarted, or a replica was promoted.
        server = schema.inspect_server(connection)
        schema.check_server(server, self._dsn)
        self._server = server

    @property
    def durability(self) -> str:
        return self._server.durability

    def apply(self, changes: Sequence[driver.TenantChange]) -> list[driver.ChangeResult]:
        with self._connections.borrow() as connection:
            connections.send_calls(connection, [self.prepared_call(connection, change) for change in changes])
            answers = connections.receive_answers(connection, len(changes))
        return [self.change_result(*each) for each in zip(changes, answers, strict=True)]

    def pipeline(self) -> PostgresPipeline:
        return PostgresPipeline(self, self._connections.borrow())

    def prepared_call(self, connection: PostgresConnection, change: driver.TenantChange) -> connections.PreparedCall:
        name = _statement_name(change)
        if name == _APPEND:
            if connection.record_type_oids is None:
                row = connection.execute(self._sql["kinds"].encode(), prepare=False).fetchone()
                assert row is not None, "the query always returns a row"
                connection.record_type_oids = serialization.RecordTypeOids(*row)
                connections.prepare_statement(connection, name, self._sql["append"].encode())
            return name, serialization.append_arguments(change, self._channel, connection.record_type_oids)
        arguments = serialization.apply_arguments(change, self._channel)
        if name not in connection.prepared:
            placeholders = ", ".join(f"${at}" for at in range(1, len(arguments) + 1))
            statement = self._sql["apply"].format(arguments=placeholders)
            connections.prepare_statement(connection, name, statement.encode())
        return name, arguments

    def change_result(self, change: driver.TenantChange, answer: bytes) -> driver.ChangeResult:
        if answer == _APPLIED:
            return None
        if answer == _APPLIED_UNDER_CONTENTION:
            # The server can't distinguish this store's own lock from another store's.
            return None if self._advisory_lock.locked_tenant == change.tenant else driver.AppliedUnderContention()
        if answer == connections.DUPLICATE:
            return driver.DuplicateRow()
        position, link, epoch = answer.decode().split()
        return driver.HeadMoved(driver.FeedHead(int(position), bytes.fromhex(link), int(epoch)))

    def replace_derived(self, tenant: str, before: driver.FeedHead, derived: Iterable[driver.TenantChange]) -> bool:
        with self._connections.borrow() as connection:
            with without_timeout(connection):
                replaced = self._replace_in_transaction(connection, tenant, before, derived)
            if not replaced:
                # After a rollback the client library drops all prepared statements, including ours.
                connection.close()
            return replaced

    def _replace_in_transaction(
        self,
        connection: PostgresConnection,
        tenant: str,
        before: driver.FeedHead,
        derived: Iterable[driver.TenantChange],
    ) -> bool:
        with connection.transaction() as transaction:
            head = {"position": before.position, "link": before.link, "epoch": before.epoch}
            if self._run_for_tenant(connection, tenant, self._sql["hold"], **head):
                raise psycopg.Rollback(transaction)
            for part in ("claims", "uses", "terms", "projections", "snapshots"):
                self._run_for_tenant(connection, tenant, self._sql[f"clear_{part}"])
            for change in derived:
                self._put_derived(connection, msgspec.structs.replace(change, before=before, after=before))
            self._run_for_tenant(connection, tenant, self._sql["next_epoch"])
            values = {"channel": self._channel, "news": f"{before.position} {encode_tenant(tenant)}"}
            connection.execute(self._sql["notify"].encode(), values)
            return True
        return False

    def _put_derived(self, connection: PostgresConnection, change: driver.TenantChange) -> None:
        connections.send_calls(connection, [self.prepared_call(connection, change)])
        (answer,) = connections.receive_answers(connection, 1)
        if isinstance(self.change_result(change, answer), driver.HeadMoved | driver.DuplicateRow):
            # The function has undone this change. The error rolls back the whole rebuild.
            raise errors.Corrupt(
                "the log derives one row twice.",
                hint="Nothing was changed. `limpet verify` lists all damage; a backup can replace it.",
                facts={"tenant": change.tenant},
            )

    def _run_for_tenant(self, connection: PostgresConnection, tenant: str, statement: str, /, **values: object) -> Rows:
        """Run one statement, pipelined with the setting of the tenant: both are one transaction."""
        values["tenant"] = encoded = encode_tenant(tenant)
        with connection.pipeline():
            connection.execute(self._sql["tenant"].encode(), {"tenant": encoded})
            cursor = connection.cursor(binary=True)
            cursor.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        return int(self._query_once(tenant, self._sql["forget_keys"], before=before_us)[0][0])

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Compare and set. The checksum covers the new version, so the version counter is read first and compared again."""
        for _ in range(driver.NOTE_TRIES_MAX):
            count = int(self._read(tenant, "noted")[0][0])
            checksum = b"" if value is None else checked_reads.note_checksum(tenant, name, port.Note(value, count + 1))
            rows = self._query_once(
                tenant, self._sql["put_note"],
                name=name.encode(), expected=expected, noted=count, value=value, mark=checksum,
            )  # fmt: skip
            if rows[0][0] != "counted":
                return bool(rows[0][0] == "put")
        raise driver.contention_error()

    def acquire_advisory_lock(self, tenant: str, timeout_s: float) -> bool:
        return self._advisory_lock.acquire(tenant, timeout_s)

    def release_advisory_lock(self, tenant: str) -> None:
        self._advisory_lock.release(tenant)

    def pending_erasures(self) -> bytes | None:
        with self._connections.borrow() as connection:
            row = connection.execute(self._sql["pending"].encode()).fetchone()
        return bytes(row[0]) if row else None

    def scrub(self, done: bytes, left: bytes) -> None:
        if self._connections.closed:
            raise errors.EngineClosed
        if self.pending_erasures() is None:
            self._set_pending(done, left)
            return
        schema.scrub_erased(self._dsn)
        # The pending work names erased users. An empty line stays pending until no file has that text either.
        self._set_pending(done, left + b"\n")
        schema.scrub_table(self._dsn, "store")
        self._set_pending(left + b"\n", left)

    def _set_pending(self, done: bytes, left: bytes) -> None:
        with self._connections.borrow() as connection, connection.transaction():
            row = connection.execute(self._sql["lock_pending"].encode()).fetchone()
            rest = left + (bytes(row[0]) if row else b"").removeprefix(done)
            name = "clear_pending" if not rest else "set_pending" if row else "add_pending"
            connection.execute(self._sql[name].encode(), {"value": rest} if rest else None)

    def listen(self) -> Iterator[tuple[str, int]]:
        return self._listener.listen()

    def status(self) -> Mapping[str, Json]:
        with self._connections.borrow() as connection, connection.transaction():
            connection.execute(self._sql["register"].encode())
            rows = connection.execute(self._sql["heads"].encode()).fetchall()
            size = connection.execute(self._sql["size"].encode()).fetchone()
            counts = connection.execute(self._sql["census"].encode()).fetchall()
            self._server = server = schema.inspect_server(connection)
        return {
            "backend": "postgres",
            "store": f"{self._dsn.shown}?schema={self._dsn.schema}",
            "postgres": f"{server.version // 10_000}.{server.version % 10_000}",
            "schema": len(schema.MIGRATIONS),
            "durability": server.durability,
            "fsync": server.fsync,
            "full_page_writes": server.full_page_writes,
            "synchronous_commit": server.synchronous_commit,
            "bytes": int(size[0]) if size else 0,
            "tenants": len(rows),
            "events": sum(position for _, position, _ in rows),
            "blobs": sum(count for kind, _, count in counts if not kind),
            "holds": _count_by_status(counts),
            "heads": {
                decode_tenant(tenant): {"position": position, "link": bytes(link).hex()}
                for tenant, position, link in rows
            },
        }

    def close(self) -> None:
        self._listener.close()
        self._advisory_lock.close()
        self._connections.close()

    # Reads

    def _read(self, tenant: str, name: str, /, **values: object) -> Rows:
        return self._query_with_retry(tenant, self._sql[name], **values)

    def _query_with_retry(self, tenant: str, statement: str, /, **values: object) -> Rows:
        """Return the rows of a query. A query changes nothing, so it is repeated once if the connection breaks."""
        try:
            return self._query_once(tenant, statement, **values)
        except errors.Unavailable as error:
            if not error.facts.get("cut"):
                raise
        return self._query_once(tenant, statement, **values)

    def _query_once(self, tenant: str, statement: str, /, **values: object) -> Rows:
        with self._connections.borrow() as connection:
            return self._run_for_tenant(connection, tenant, statement, **values)

    def head(self, tenant: str) -> driver.FeedHead:
        rows = self._read(tenant, "head")
        return driver.FeedHead(*rows[0]) if rows else driver.FeedHead()

    def tenants(self) -> list[str]:
        return self._list_tenants("tenants")

    def unlisted_tenants(self) -> list[str]:
        return [tenant for tenant in self._list_tenants("eventless") if self.feed(tenant, after=0, limit=1)]

    def tenants_with_notes(self) -> list[str]:
        return self._list_tenants("noting")

    def _list_tenants(self, name: str) -> list[str]:
        with self._connections.borrow() as connection, connection.transaction():
            connection.execute(self._sql["register"].encode())
            rows = connection.execute(self._sql[name].encode()).fetchall()
        return sorted(decode_tenant(tenant) for (tenant,) in rows)

    def stream(self, tenant: str, stream: str | int) -> driver.StreamRow | None:
        rows = self._query_with_retry(tenant, self._stream_sql(stream), **_stream_parameter(stream))
        return _stream_row(rows[0]) if rows else None

    def _stream_sql(self, stream: str | int) -> str:
        which = "stream_by_name" if isinstance(stream, str) else "stream_by_number"
        return f"{self._sql['stream']} {self._sql[which]}"

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[driver.StreamRow]:
        statement = f"{self._sql['stream']} {self._sql['streams']}"
        return [_stream_row(row) for row in self._query_with_retry(tenant, statement, after=after, limit=limit)]

    def own_events(
        self, tenant: str, stream: str | int, *, low: int, high: int, limit: int, newest: bool = False
    ) -> tuple[driver.StreamRow | None, list[driver.FeedRow]]:
        statement = self._sql["own"].format(stream=self._stream_sql(stream), direction="DESC" if newest else "ASC")
        values = {"low": low, "high": min(high, _BIGINT_MAX), "limit": limit, **_stream_parameter(stream)}
        rows = self._query_with_retry(tenant, statement, **values)
        if not rows:
            return None, []
        kept = [_feed_row(row[_STREAM_COLUMNS:]) for row in rows if row[_STREAM_COLUMNS] is not None]
        return _stream_row(rows[0]), kept

    def feed(self, tenant: str, *, after: int, limit: int) -> list[driver.FeedRow]:
        return [_feed_row(row) for row in self._read(tenant, "feed", after=after, limit=limit)]

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        rows = self._read(tenant, "version_at", name=stream.encode(), position=min(position, _BIGINT_MAX))
        return int(rows[0][0])

    def find_ordinal(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        rows = self._read(tenant, "seek", number=number, low=low, high=min(high, _BIGINT_MAX), ordinal=ordinal)
        return int(rows[0][0] or 0)

    def claims(self, tenant: str, claims: Collection[str], stretches: Collection[int]) -> list[tuple[int, str, int]]:
        if not claims or not stretches:
            return []
        texts = bytea_array([claim.encode() for claim in claims])
        rows = self._read(tenant, "claims", claims=texts, stretches=bigint_array(list(stretches)))
        return [(stretch, _decode_text(claim), version) for stretch, claim, version in rows]

    def count_claims(self, tenant: str, stretches: Collection[int]) -> int:
        return int(self._read(tenant, "claims_of", stretches=bigint_array(list(stretches)))[0][0])

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        return [(_decode_text(name), version) for name, version in self._read(tenant, "forks", number=number)]

    def key(self, tenant: str, key: str) -> driver.KeyRow | None:
        rows = self._read(tenant, "key", key=key.encode())
        return _key_row(rows[0]) if rows else None

    def keys(self, tenant: str, *, after: str = "", limit: int = 500) -> list[driver.KeyRow]:
        return [_key_row(row) for row in self._read(tenant, "keys", after=after.encode(), limit=limit)]

    def keys_covering(self, tenant: str, positions: Collection[int]) -> list[str]:
        if not positions:
            return []
        rows = self._read(tenant, "keys_of", positions=bigint_array(sorted(positions)))
        return [_decode_text(key) for (key,) in rows]

    def projection(self, tenant: str, kind: str, id: str) -> driver.ProjectionRow | None:
        rows = self._read(tenant, "projection", kind=kind.encode(), id=id.encode())
        return _projection_row(rows[0]) if rows else None

    def query_projections(self, tenant: str, query: port.Query) -> list[driver.ProjectionRow]:
        limit, offset = min(query.limit, _BIGINT_MAX), min(query.offset, _BIGINT_MAX)
        values: dict[str, object] = {"kind": query.kind.encode(), "limit": limit, "offset": offset}
        parts = ["query"]
        for name in ("owner", "status"):
            if (wanted := getattr(query, name)) is not None:
                parts.append(f"query_{name}")
                values[name] = wanted.encode()
        if query.lookup is not None:
            parts.append("query_lookup" if query.lookup else "query_no_lookup")
            values["lookup"] = query.lookup.encode()
        for name, bound in (("since", query.since_us), ("until", query.until_us)):
            if bound is not None:
                parts.append(f"query_{name}")
                values[name] = _clamp_bigint(bound)
        if query.after is not None:
            parts.append("query_after")
            values |= {"after_time": _clamp_bigint(query.after[0]), "after_id": query.after[1].encode()}
        if query.terms:
            parts.append("query_terms")
            values["terms"] = bytea_array(sorted({term.encode() for term in query.terms}))
        statement = "\n".join(self._sql[part] for part in (*parts, "query_page"))
        return [_projection_row(row) for row in self._query_with_retry(tenant, statement, **values)]

    def projections(
        self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500
    ) -> list[driver.ProjectionRow]:
        rows = self._read(tenant, "projections", kind=after[0].encode(), id=after[1].encode(), limit=limit)
        return [_projection_row(row) for row in rows]

    def snapshot(self, tenant: str, stream: str) -> driver.SnapshotRow | None:
        for version, fold, state, mark in self._read(tenant, "snapshot", name=stream.encode()):
            return driver.SnapshotRow(port.Snapshot(stream, version, fold, state), mark)
        return None

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        if not hashes:
            return {}
        return dict(self._read(tenant, "blobs", hashes=bytea_array(list(hashes))))

    def list_blobs(self, tenant: str, *, after: bytes = b"", limit: int = 100) -> list[tuple[bytes, bytes]]:
        return [(hash_, content) for hash_, content in self._read(tenant, "every_blob", after=after, limit=limit)]

    def blob_uses(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[tuple[int, bytes]]:
        return [(position, hash_) for position, hash_ in self._read(tenant, "uses", after=after, limit=limit)]

    def unused_blobs(self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]) -> set[bytes]:
        if not hashes:
            return set()
        rows = self._read(tenant, "unused", hashes=bytea_array(list(hashes)), but=bigint_array(list(but)))
        return {hash_ for (hash_,) in rows}

    def note(self, tenant: str, name: str) -> driver.NoteRow | None:
        rows = self._read(tenant, "note", name=name.encode())
        return _note_row(rows[0]) if rows else None

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[driver.NoteRow]:
        rows = self._read(tenant, "notes", prefix=prefix.encode(), after=after.encode(), limit=limit)
        return [_note_row(row) for row in rows]


def _decode_text(kept: bytes) -> str:
    """Return a text. Invalid UTF-8 is replaced: it is damage, which checksums and digests detect."""
    return str(kept, "utf-8", "replace")


def _stream_parameter(stream: str | int) -> dict[str, object]:
    return {"name": stream.encode()} if isinstance(stream, str) else {"number": stream}


def _clamp_bigint(number: int) -> int:
    return max(-_BIGINT_MAX, min(number, _BIGINT_MAX))


def _stream_row(row: Sequence[Any]) -> driver.StreamRow:
    number, name, first, version, flat, checksum = row[:_STREAM_COLUMNS]
    parts = (flat[at : at + _BASE_COLUMNS] for at in range(0, len(flat), _BASE_COLUMNS))
    bases = tuple(chain.StreamBase(*part) for part in parts)
    return driver.StreamRow(number, _decode_text(name), first, version, bases, checksum)


def _feed_row(row: Sequence[Any]) -> driver.FeedRow:
    position, stream, version, header, payload, salt, digest, link, name, ordinal, notice = row[:11]
    event = chain.EventRow(chain.EventAddress(position, stream, version), header, payload, salt, digest, link)
    erasure = None if notice is None else driver.EventErasure(notice, row[11] or 0, row[12])
    # A stream without a name is damage, which the caller detects by the number.
    return driver.FeedRow(_decode_text(name) if name is not None else "", event, ordinal, erasure)


def _key_row(row: Sequence[Any]) -> driver.KeyRow:
    return driver.KeyRow(_decode_text(row[0]), *row[1:])


def _projection_row(row: Sequence[Any]) -> driver.ProjectionRow:
    kind, id_, owner, status, time_us, lookup, terms, document, checksum = row
    projection = port.Projection(
        kind=_decode_text(kind), id=_decode_text(id_), owner=_decode_text(owner), status=_decode_text(status),
        time_us=time_us, lookup=_decode_text(lookup), terms=tuple(map(_decode_text, terms)), document=document,
    )  # fmt: skip
    return driver.ProjectionRow(projection, checksum)


def _note_row(row: Sequence[Any]) -> driver.NoteRow:
    name, value, version, checksum = row
    return driver.NoteRow(_decode_text(name), port.Note(value, version), checksum)


_APPEND, _APPLY, _APPLY_REMOVALS = b"limpet_append", b"limpet_apply", b"limpet_take_away"
_APPLIED, _APPLIED_UNDER_CONTENTION = b"ok", b"wanted"


def _statement_name(change: driver.TenantChange) -> bytes:
    """Return the name of the prepared statement for a change. Each name has a fixed number of arguments."""
    if serialization.is_plain_append(change):
        return _APPEND
    return _APPLY_REMOVALS if serialization.has_removals(change) else _APPLY


def _count_by_status(counts: Rows) -> dict[str, Json]:
    counts_by_kind: dict[str, dict[str, int]] = {}
    for kind, status, count in counts:
        if kind:
            counts_by_kind.setdefault(kind.decode(), {})[status.decode()] = count
    return dict(counts_by_kind)


class PostgresPipeline:
    """Changes in flight over one connection."""

    def __init__(self, postgres_driver: PostgresDriver, loan: BorrowedConnection) -> None:
        self._driver = postgres_driver
        self._loan = loan
        self._in_flight: deque[Sequence[driver.TenantChange]] = deque()

    def __enter__(self) -> PostgresPipeline:
        self._connection = self._loan.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        del self._connection
        if self._in_flight or error is not None:
            connection.close()
        else:
            try:
                connections.end_pipeline(connection)
            except BaseException as failure:
                self._loan.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._loan.__exit__(kind, error, trace)

    def send(self, changes: Sequence[driver.TenantChange]) -> bool:
        """Send changes; return False if a statement must be prepared first, which needs every answer to be in."""
        connection = self._connection
        if not all(_statement_name(change) in connection.prepared for change in changes):
            if self._in_flight:
                return False
            connections.end_pipeline(connection)
        calls = [self._driver.prepared_call(connection, change) for change in changes]
        self._in_flight.append(changes)
        connections.send_pipelined(connection, calls)
        return True

    def receive(self) -> list[driver.ChangeResult]:
        answers = connections.receive_pipelined(self._connection, len(self._in_flight[0]))
        return list(map(self._driver.change_result, self._in_flight.popleft(), answers))

    def has_answer(self) -> bool:
        handle = self._connection.pgconn
        if handle.is_busy():
            handle.consume_input()
        return not handle.is_busy()

    def fileno(self) -> int:
        return self._connection.pgconn.socket


_conforms: type[driver.ChangePipeline] = PostgresPipeline


class PostgresAdvisoryLock:
    """The advisory lock of one store, on one tenant at a time."""

    def __init__(self, place: PostgresDsn) -> None:
        self._dsn = place
        self._sql = connections.sql_statements("advisory_lock.sql")
        self._lock = threading.Lock()
        self._connection: PostgresConnection | None = None
        self.locked_tenant: str | None = None
        self.notifier_pid = 0
        """The server's process id of the notifying connection: this store's own listener ignores its notifications."""

    def acquire(self, tenant: str, timeout_s: float) -> bool:
        """Notify the other stores, then wait for the lock; return False after the timeout."""
        with self._lock, error_mapping.translate_errors(self._dsn.shown):
            connection = self._open_connection()
            values = {
                "tenant": encode_tenant(tenant), "channel": self._dsn.channel,
                "timeout": f"{max(1, int(timeout_s * 1000))}ms",
            }  # fmt: skip
            try:
                with connection.pipeline() as pipeline:
                    for name in ("tell", "patience", "take"):
                        wanted = {k: v for k, v in values.items() if f"%({k})s" in self._sql[name]}
                        connection.execute(self._sql[name].encode(), wanted)
                        # The notification is sent before the wait.
                        pipeline.sync()
            except psycopg.errors.LockNotAvailable:
                return False
            except BaseException:
                self._close_connection()
                raise
            self.locked_tenant = tenant
            return True

    def release(self, tenant: str) -> None:
        with self._lock:
            self.locked_tenant = None
            if self._connection is None:
                return
            try:
                values = {"tenant": encode_tenant(tenant), "channel": self._dsn.channel}
                self._connection.execute(self._sql["give_back"].encode(), values)
            except (psycopg.Error, OSError):
                # The lock ends with the connection.
                self._close_connection()

    def _open_connection(self) -> PostgresConnection:
        if self._connection is not None and not self._connection.is_idle():
            self._close_connection()
        if self._connection is None:
            self._connection = connections.connect(self._dsn)
            self.notifier_pid = self._connection.info.backend_pid
        return self._connection

    def _close_connection(self) -> None:
        connection, self._connection, self.locked_tenant = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()

    def close(self) -> None:
        with self._lock:
            self._close_connection()


_MISSED = ("", 0)
_NOTIFICATION = re.compile(r"(0|[1-9][0-9]{0,18}) (.+)", re.DOTALL)
"""A position, as `bigint` has them, and a tenant."""


class PostgresListener:
    """Listens for commits of every process to any tenant."""

    def __init__(self, place: PostgresDsn, guard: PostgresAdvisoryLock) -> None:
        self._dsn = place
        self._advisory_lock = guard
        self._closed = threading.Event()
        self._wakes, self._waker = socket.socketpair()
        self._lock = threading.Lock()
        self._listening = 0

    def listen(self) -> Iterator[tuple[str, int]]:
        with self._lock:
            if self._closed.is_set():
                return
            self._listening += 1
        try:
            with (
                error_mapping.translate_errors(self._dsn.shown),
                contextlib.closing(connections.connect(self._dsn)) as connection,
            ):
                channel = sql.Identifier(self._dsn.channel)
                connection.execute(sql.SQL("LISTEN {}").format(channel))
                yield _MISSED
                yield from self._notifications(connection)
        finally:
            with self._lock:
                self._listening -= 1
                self._close_sockets()

    def _notifications(self, connection: PostgresConnection) -> Iterator[tuple[str, int]]:
        handle = connection.pgconn
        while not self._closed.is_set():
            while (received := handle.notifies()) is not None:
                match = _NOTIFICATION.fullmatch(received.extra.decode(errors="replace"))
                if match is None:
                    # Any program may write to the channel: an unreadable text may have been a notification.
                    yield _MISSED
                elif match[1] != "0" or received.be_pid != self._advisory_lock.notifier_pid:
                    yield decode_tenant(match[2]), int(match[1])
            if self._closed.is_set():
                return
            ready = connections.wait_readable(limits.SERVER_RESPONSE_S, handle.socket, self._wakes.fileno())
            if handle.socket in ready:
                handle.consume_input()
            elif not ready:
                # A server that vanished without closing the connection is noticed by asking it.
                connection.execute("SELECT 1")

    def close(self) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                self._waker.send(b"x")
                self._close_sockets()

    def _close_sockets(self) -> None:
        # A running `listen` still polls them; it closes them at its end.
        if self._closed.is_set() and not self._listening:
            self._waker.close()
            self._wakes.close()
