"""The verbs of the port for the store as a whole: verify, rebuild, erase and scrub, status, backup."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from limpet import errors
from limpet.core.values.json_values import Json
from limpet.store import port, portable
from limpet.store.erasure import Again, Erased, Erasure
from limpet.store.sqlite import (
    checks,
    copying,
    erasing,
    erasures,
    opening,
    rebuilding,
    scrubbing,
)
from limpet.store.sqlite.anchor import Anchor, Head
from limpet.store.sqlite.files import Files
from limpet.store.sqlite.looking import Looking
from limpet.store.sqlite.post import Post
from limpet.store.sqlite.rows import NUMBER_MASK, TENANT_SHIFT, first
from limpet.store.sqlite.translate import Translated
from limpet.store.sqlite.waiting import News
from limpet.store.sqlite.witness import Witness
from limpet.store.turning import Turn


class Upkeep(Looking):
    """What is done to a store as a whole, on what its holder keeps open."""

    path: Path
    remarks: tuple[str, ...]
    _files: Files
    _writer: apsw.Connection
    _anchor: Anchor
    _post: Post
    _random: Callable[[int], bytes]
    _translated: Translated
    _store_id: bytes
    _news: News
    _seen: int | None
    _witness: Witness

    @abstractmethod
    def turn(self) -> Turn: ...
    @abstractmethod
    def _check_open(self) -> None: ...
    @abstractmethod
    def _changing(self) -> AbstractContextManager[apsw.Connection]: ...
    @abstractmethod
    def _enter(self) -> None: ...
    @abstractmethod
    def _leave(self) -> None: ...
    @abstractmethod
    def _end(self) -> None: ...
    @abstractmethod
    def _abandon_writer(self) -> None: ...
    @abstractmethod
    def _renew_readers(self) -> None: ...
    @property
    @abstractmethod
    def durability(self) -> str: ...

    def verify(self) -> Iterator[int | port.Report]:
        """Check every event, blob and page, and the anchor; yield events checked so far, the report last."""
        self._check_open()
        with self._translated:
            yield from checks.verify_file(self.path, self._anchor, self.remarks)

    def rebuild(self, derive: port.Derive) -> Generator[int | port.Rebuilt]:
        """Prove the log, then make all that is derived again, in one transaction."""
        self._check_open()
        proved, made = 0, port.Rebuilt()
        with self._translated:
            for proved in rebuilding.prove(self.path, self._anchor):
                yield proved
        with self._changing() as writer:
            for made in rebuilding.derive_all(writer, self.path, derive):
                yield proved + made.events
        yield made

    def erase(self, erasure: Erasure, derive: port.Derive) -> Erased | port.Stale:
        """Take payloads out of the log in one transaction; the anchor is written before this returns."""
        with self.turn(), self._translated:
            return self._erased(erasure, derive)

    def _erased(self, erasure: Erasure, derive: port.Derive) -> Erased | port.Stale:
        try:
            self._enter()
            going = erasing.Going(self._writer, erasure, derive, self._random)
            stale = going.stale()
            if stale is not None:
                return stale
            gone, heads = going.run()
            slot, data = self._anchor.ready(heads)
            self._end()
            self._anchor.put(slot, data)
        except BaseException:
            self._abandon_writer()
            raise
        self._known.forget_streams()
        # Told to nobody here: the next turn has to hear of it.
        self._seen = None
        return gone

    def copy(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.Raw]:
        """Return the tenant's events with position > after as they are kept; each is checked."""
        with self._reading() as connection:
            base = self._known.tenant(connection, tenant) << TENANT_SHIFT
            if not base or not 0 <= after < NUMBER_MASK:
                return []
            return copying.page(connection, base, after, limit)

    def keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[port.RawKey]:
        """Return the tenant's idempotency keys after one, by their text."""
        with self._reading() as connection:
            return copying.keys(connection, self._known.tenant(connection, tenant), after, limit)

    def paste(
        self,
        tenant: str,
        events: Sequence[port.Raw],
        *,
        blobs: Mapping[bytes, bytes] = {},
        keys: Sequence[port.RawKey] = (),
    ) -> None:
        """Keep events exactly as they are in one transaction; the anchor is written before this returns."""
        with self.turn(), self._translated:
            try:
                self._enter()
                pasting = copying.Pasting(self._writer, tenant)
                fit = portable.fit(pasting, events, blobs, keys)
                if not fit:
                    return
                pasting.put(fit)
                slot, data = self._anchor.ready({pasting.tenant: Head(*fit.end)})
                self._end()
                self._anchor.put(slot, data)
            except BaseException:
                self._abandon_writer()
                raise
            self._known.forget_streams()
            # Told to nobody here: the next turn has to hear of it.
            self._seen = None
            self._news.tell()

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """Write the file anew and empty its log, blank the boxes, bring up the list; then nothing is pending."""
        with self.turn(), self._translated:
            waits = self._scrub(done, left)
        if waits is not None:
            raise waits

    def _scrub(self, done: bytes, left: bytes) -> errors.Error | None:
        """Return what keeps it from being through, if all else is done."""
        listed, sql = self._witness.list_path(self.path), self._sql
        row = first(self._writer, sql["pending"], ())
        if row is None or not isinstance(row[0], bytes):
            self._take_over(left)
            return None
        rest = left + row[0].removeprefix(done)
        self._leave()
        try:
            erasures.bring_up(self._files, listed, self._writer, self._store_id)
            self._enter()
            self._writer.execute(sql["set_pending"], (b"\n" + rest,))
            self._end()
            self._renew_readers()
            waits = self._witness.scrub(self._writer)
            scrubbing.rewrite(self._writer, self.path)
            # It is cut off by now; where commits are not synced nothing else would make sure of that.
            self._files.sync(Path(f"{self.path}-wal"))
            self._post.blank()
            self._files.sync(self._witness.lock_path(self.path))
            self._anchor.write({})
            self._enter()
            self._writer.execute(sql["put_listed"], (erasures.check_of(listed),))
            rest = b"\n" + rest if waits else rest
            if rest:
                self._writer.execute(sql["set_pending"], (rest,))
            else:
                self._writer.execute(sql["clear_pending"])
            self._end()
        except errors.StoreBusy:
            raise
        except BaseException:
            self._abandon_writer()
            raise
        finally:
            self._seen = None
        return waits

    def _take_over(self, left: bytes) -> None:
        """Have something pending where nothing was, and so nothing is to be scrubbed."""
        if not left:
            return
        try:
            self._enter()
            self._writer.execute(self._sql["put_pending"], (left,))
            self._end()
        except BaseException:
            self._abandon_writer()
            raise

    def _finish_erasures(self, again: Again | None) -> None:
        """Do what a list says of a copy that was put here, and what a process that died has left to do."""
        listed, sql = self._witness.list_path(self.path), self._sql
        row, anew = first(self._writer, sql["listed"], ()), False
        if (check := erasures.check_of(listed)) and (row is None or row[0] != check):
            found = scrubbing.Redoing(self._writer, erasures.read(listed), self._store_id)
            if found and again is None:
                raise errors.Refused(
                    f"{self.path} has content that was erased since this copy was made.",
                    hint="Open it with limpet.connect, which erases it again first.",
                )
            if again is not None:
                for erasure in list(found.erasures(again, again.now_us())):
                    self._erased(erasure, again.derive)
                    anew = True
        pending = first(self._writer, sql["pending"], ())
        if pending is not None and (anew or pending[0] in (b"", b"\n")):
            try:
                waits = self._scrub(b"\n" if pending[0] == b"\n" else b"", b"")
            except errors.StoreBusy as error:
                waits = error
            if waits is not None:
                # It stays pending, and keeps nobody from what can be read.
                self.remarks = (*self.remarks, waits.message)

    def status(self) -> Mapping[str, Json]:
        """Return facts for people: path, size, versions, durability, counts."""
        with self._reading() as connection:
            facts = checks.status(connection, self.path)
            return {**facts, "durability": self.durability, "notes": list(self.remarks)}

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        """Copy the store, consistent under load, to a new file; yield (pages done, pages in all)."""
        self._check_open()
        with (
            self._translated,
            contextlib.closing(opening.connect(self.path, write=False)) as connection,
        ):
            place = Path(target).expanduser().resolve()
            yield from checks.backup(self._files, connection, place)
