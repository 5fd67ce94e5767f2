"""Notes: small records beside the log, compared and set; and waiting for the log to go on.

The versions of a tenant's notes are counted together, in a row without a name, so that none is ever given twice.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager

import apsw

from limpet import errors
from limpet.store import port
from limpet.store.notes import check_note
from limpet.store.sqlite.looking import Looking
from limpet.store.sqlite.rows import NUMBER_MASK, TENANT_SHIFT, first, head_of, mark
from limpet.store.sqlite.waiting import News

_COUNT = ""


class Noting(Looking):
    """The verbs of the port about notes."""

    _news: News

    @abstractmethod
    def _changing(self, *, quietly: bool = False) -> AbstractContextManager[apsw.Connection]:
        """A turn and a transaction for what is no append."""

    def note(self, tenant: str, name: str) -> port.Note | None:
        """Return a note, None if it is not there."""
        check_note(name)
        with self._reading() as connection:
            return self._note(connection, tenant, name)

    def _note(self, connection: apsw.Connection, tenant: str, name: str) -> port.Note | None:
        row = first(connection, self._sql["note"], (tenant, name))
        return _note_of(tenant, row) if row else None

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Put or drop a note if it is at a version; return whether it was."""
        check_note(name, value)
        with self._changing(quietly=True) as writer:
            before = self._note(writer, tenant, name)
            if (before.version if before else 0) != expected:
                return False
            if value is None:
                writer.execute(self._sql["drop_note"], (tenant, name))
                return True
            counted = self._note(writer, tenant, _COUNT)
            version = (counted.version if counted else 0) + 1
            for row in ((_COUNT, version, b""), (name, version, value)):
                writer.execute(self._sql["put_note"], (tenant, *row, mark(tenant, *row)))
            return True

    def notes(
        self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256
    ) -> list[tuple[str, port.Note]]:
        """Return notes whose names begin with a prefix, those after a name, by name."""
        with self._reading() as connection:
            found = connection.execute(
                self._sql["notes"], (tenant, prefix, after, limit)
            ).fetchall()
        # Names that begin alike stand together, so that those that do not come last.
        named = ((str(row[0]), row) for row in found)
        return [(name, _note_of(tenant, row)) for name, row in named if name.startswith(prefix)]

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Return True as soon as the feed has a position > after; False when the time is up."""

        def there() -> bool:
            with self._reading() as connection:
                base = self._known.tenant(connection, tenant) << TENANT_SHIFT
                if not base:
                    return False
                row = first(connection, self._sql["head"], (base, base | NUMBER_MASK))
                return head_of(row).position > after

        return self._news.wait(there, timeout_s)


def _note_of(tenant: str, row: tuple[apsw.SQLiteValue, ...]) -> port.Note:
    match row:
        case (str(name), int(version), bytes(value), bytes(check)) if check == mark(
            tenant, name, version, value
        ):
            return port.Note(value, version)
        case _:
            raise errors.Corrupt("a stored note is not what was written.", facts={"tenant": tenant})
