"""PostgreSQL as one store sees it: a connection is borrowed for one exchange, and a change is one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import psycopg

from limpet import errors
from limpet.core.values.json_values import Json
from limpet.store import port
from limpet.store.postgres import (
    exchange,
    guarding,
    listening,
    names,
    opening,
    scrubbing,
    writing,
)
from limpet.store.postgres.connections import Connection, Connections, Rows, unhurried
from limpet.store.postgres.line import PostgresLine
from limpet.store.postgres.place import Place
from limpet.store.postgres.reading import Reading, looked
from limpet.store.remote import marks
from limpet.store.remote.driver import (
    NOTE_TRIES,
    Change,
    Head,
    Moved,
    Taken,
    Verdict,
    Wanted,
    outrun,
)

_APPEND, _APPLY, _TAKE_AWAY = b"limpet_append", b"limpet_apply", b"limpet_take_away"
_APPLIED, _WANTED = b"ok", b"wanted"


class PostgresDriver(Reading):
    """A database, or a schema of one. Safe for threads."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._sql: Mapping[str, str] = names.named("queries.sql")
        self._channel = place.channel
        self._server = opening.prepare(place)
        self._connections = Connections(place, self._checked)
        self._guard = guarding.Guard(place)
        self._listener = listening.Listener(place, self._guard)

    def _checked(self, connection: Connection) -> None:
        # A server that was restarted, or promoted, may be another one now.
        server = opening.look(connection)
        opening.check(server, self._place)
        self._server = server

    @property
    def durability(self) -> str:
        """What survives once `apply` has returned, as the server's settings say."""
        return self._server.level

    def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Apply changes of different tenants, each in its own transaction; None: it was applied."""
        with self._connections.borrow() as connection:
            exchange.send(connection, [self._call(connection, change) for change in changes])
            said = exchange.receive(connection, len(changes))
        return [self._verdict(*one) for one in zip(changes, said, strict=True)]

    def line(self) -> PostgresLine:
        """Return a connection for changes that are sent ahead of answers."""
        return PostgresLine(self._connections.borrow(), self._call, _is_known, self._verdict)

    def _call(self, connection: Connection, change: Change) -> exchange.Call:
        name = _statement(change)
        if name == _APPEND:
            if connection.kinds is None:
                connection.kinds = self._kinds(connection)
                exchange.prepare(connection, name, self._sql["append"].encode())
            return name, writing.usual(change, self._channel, connection.kinds)
        arguments = writing.arguments(change, self._channel)
        if name not in connection.prepared:
            placeholders = ", ".join(f"${at}" for at in range(1, len(arguments) + 1))
            statement = self._sql["apply"].format(arguments=placeholders)
            exchange.prepare(connection, name, statement.encode())
        return name, arguments

    def _kinds(self, connection: Connection) -> writing.Kinds:
        row = connection.execute(self._sql["kinds"].encode(), prepare=False).fetchone()
        assert row is not None, "a row always comes"
        return writing.Kinds(*row)

    def _verdict(self, change: Change, said: bytes) -> Verdict:
        if said == _APPLIED:
            return None
        if said == _WANTED:
            return None if self._guard.has(change.tenant) else Wanted()
        if said == exchange.TAKEN:
            return Taken()
        position, link, epoch = said.decode().split()
        return Moved(Head(int(position), bytes.fromhex(link), int(epoch)))

    def replace(self, before: Mapping[str, Head], derived: Iterable[Change]) -> bool:
        """Drop all that is derived of tenants and put what changes bring, in one transaction."""
        with self._connections.borrow() as connection:
            with unhurried(connection):
                replaced = self._replaced(connection, before, derived)
            if not replaced:
                # What rolls back makes the client drop every statement that was prepared, ours with its own.
                connection.close()
            return replaced

    def _replaced(
        self, connection: Connection, before: Mapping[str, Head], derived: Iterable[Change]
    ) -> bool:
        with connection.transaction() as transaction:
            for tenant, head in sorted(before.items()):
                if not self._cleared(connection, tenant, head):
                    raise psycopg.Rollback(transaction)
            for change in derived:
                self._put_anew(connection, change, before[change.tenant])
            for tenant, head in before.items():
                self._run(connection, tenant, "next_epoch")
                news = f"{head.position} {names.kept(tenant)}"
                values = {"channel": self._channel, "news": news}
                connection.execute(self._sql["notify"].encode(), values)
            return True
        return False

    def _put_anew(self, connection: Connection, change: Change, head: Head) -> None:
        exchange.send(connection, [self._call(connection, writing.only_derived(change, head))])
        (said,) = exchange.receive(connection, 1)
        if isinstance(self._verdict(change, said), Moved | Taken):
            # It was undone whole, with all that it brought. Raised, everything is as it was before the rebuild.
            raise errors.Corrupt(
                "something that is derived from the log is there twice.",
                hint="Nothing was changed. `limpet verify` lists all damage; a backup can replace it.",
                facts={"tenant": change.tenant},
            )

    def _cleared(self, connection: Connection, tenant: str, head: Head) -> bool:
        values = {"position": head.position, "link": head.link, "epoch": head.epoch}
        if self._run(connection, tenant, "hold", **values):
            return False
        for part in ("claims", "uses", "terms", "projections", "snapshots"):
            self._run(connection, tenant, f"clear_{part}")
        return True

    def _run(self, connection: Connection, tenant: str, name: str, **values: object) -> Rows:
        values["tenant"] = kept = names.kept(tenant)
        return looked(connection, self._sql["tenant"], kept, self._sql[name], values)

    def forget_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop keys used before that moment; return how many."""
        (row,) = self._asked(tenant, self._sql["forget_keys"], before=before_us)
        return int(row[0])

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Compare and set. The mark covers the version, so that one is counted first and compared again."""
        for _ in range(NOTE_TRIES):
            noted = int(self._look(tenant, self._sql["noted"])[0][0])
            mark = b"" if value is None else marks.note(tenant, name, port.Note(value, noted + 1))
            rows = self._asked(
                tenant, self._sql["put_note"],
                name=name.encode(), expected=expected, noted=noted, value=value, mark=mark,
            )  # fmt: skip
            if rows[0][0] != "counted":
                return bool(rows[0][0] == "put")
        raise outrun()

    def guard(self, tenant: str, timeout_s: float) -> bool:
        """Try to be the only one that has a tenant's guard; return whether it is had within a time."""
        return self._guard.take(tenant, timeout_s)

    def unguard(self, tenant: str) -> None:
        """Give the guard back, if it is had."""
        self._guard.give_back(tenant)

    def pending(self) -> bytes | None:
        """Return what erasures left to do."""
        with self._connections.borrow() as connection:
            row = connection.execute(self._sql["pending"].encode()).fetchone()
        return bytes(row[0]) if row else None

    def scrub(self, done: bytes, left: bytes) -> None:
        """Write anew what held something that was erased; then set what is pending."""
        if self._connections.closed:
            raise errors.EngineClosed
        if self.pending() is None:
            self._set_pending(done, left)
            return
        scrubbing.scrub(self._place)
        # What was pending names whom it was about. An empty line stays until no file has that either.
        self._set_pending(done, left + b"\n")
        scrubbing.scrub_table(self._place, "store")
        self._set_pending(left + b"\n", left)

    def _set_pending(self, done: bytes, left: bytes) -> None:
        with self._connections.borrow() as connection, connection.transaction():
            row = connection.execute(self._sql["lock_pending"].encode()).fetchone()
            rest = left + (bytes(row[0]) if row else b"").removeprefix(done)
            name = "clear_pending" if not rest else "set_pending" if row else "add_pending"
            connection.execute(self._sql[name].encode(), {"value": rest} if rest else None)

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield tenant and position whenever a tenant's feed has gone on; ("", 0) if any may have."""
        return self._listener.listen()

    def status(self) -> Mapping[str, Json]:
        """Return facts for people."""
        with self._connections.borrow() as connection, connection.transaction():
            connection.execute(self._sql["register"].encode())
            rows = connection.execute(self._sql["heads"].encode()).fetchall()
            size = connection.execute(self._sql["size"].encode()).fetchone()
            counts = connection.execute(self._sql["census"].encode()).fetchall()
            self._server = server = opening.look(connection)
        return {
            "backend": "postgres",
            "store": f"{self._place.shown}?schema={self._place.schema}",
            "postgres": f"{server.version // 10_000}.{server.version % 10_000}",
            "schema": len(opening.MIGRATIONS),
            "durability": server.level,
            "fsync": server.fsync,
            "full_page_writes": server.full_page_writes,
            "synchronous_commit": server.synchronous_commit,
            "bytes": int(size[0]) if size else 0,
            "tenants": len(rows),
            "events": sum(position for _, position, _ in rows),
            "blobs": sum(count for kind, _, count in counts if not kind),
            "holds": _held(counts),
            "heads": {
                names.read(tenant): {"position": position, "link": bytes(link).hex()}
                for tenant, position, link in rows
            },
        }

    def close(self) -> None:
        """Give back every connection. Closing twice is fine."""
        self._listener.close()
        self._guard.close()
        self._connections.close()


def _statement(change: Change) -> bytes:
    """Return the name of the statement that makes a change. Each has one number of arguments, whatever the change brings."""
    if writing.is_usual(change):
        return _APPEND
    return _TAKE_AWAY if writing.takes_away(change) else _APPLY


def _is_known(connection: Connection, change: Change) -> bool:
    """Whether a change needs nothing to be prepared, which takes an answer of its own."""
    return _statement(change) in connection.prepared


def _held(counts: Rows) -> dict[str, Json]:
    held: dict[str, dict[str, int]] = {}
    for kind, status, count in counts:
        if kind:
            held.setdefault(kind.decode(), {})[status.decode()] = count
    return dict(held)
