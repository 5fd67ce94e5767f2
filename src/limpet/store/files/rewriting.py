"""After an erasure: the journal written anew without what the index does not have any more.

Every line stays a line, with the same number. What it says is kept as far as it still holds: events in their present
form, streams under their present names, and of keys, blobs, notes and the rest only what is there. Checksums follow
from one another, so that all is written from the first line on that changes. A file that names the new segments
decides: before it is there nothing has happened, and from then on whoever has the turn next puts them into place, be
it a process that has been running all along. It goes last, once the index says where the new journal ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import apsw
import msgspec

from limpet import errors
from limpet.store.files import applying, lines
from limpet.store.files.journal import BLANK, Journal, Point
from limpet.store.files.lines import Change, Head
from limpet.store.sqlite.files import Files, read_here
from limpet.store.sqlite.rows import TENANT_SHIFT, first

DECIDED: Final = "rewriting"

Edit = Callable[[Change], Change]


class Decided(msgspec.Struct, frozen=True):
    """New segments: where the journal ends that they were made from, where it ends with them, and which file becomes which."""

    before: Point
    after: Point
    moves: tuple[tuple[str, str], ...]


class Rewriting:
    """The segments of one journal, to be replaced together. Used by the holder of the turn."""

    def __init__(self, files: Files, journal: Journal) -> None:
        self._files = files
        self._journal = journal
        self._path = journal.folder / DECIDED

    def decide(self, store_id: bytes, edit: Edit) -> None:
        """Write every line as `edit` gives it, beside those that are there, and decide on it if anything changes."""
        moves: list[tuple[str, str]] = []
        ends = (self._journal.first(),) * 2
        for content, ends in self._segments(store_id, edit):
            path = self._journal.path(ends[1].segment)
            if moves or content != read_here(path).rstrip(BLANK):
                made = self._files.fresh(path)
                self._fill(made, content)
                moves.append((made.name, path.name))
        if moves:
            decided = Decided(ends[0], ends[1], tuple(moves))
            self._files.put(self._path, msgspec.json.encode(decided))

    def _fill(self, path: Path, content: bytes) -> None:
        fd = self._files.open_here(path)
        try:
            self._files.write(fd, content, 0)
        finally:
            self._files.close(fd)
        self._files.sync(path)

    def _segments(self, store_id: bytes, edit: Edit) -> Iterator[tuple[bytes, tuple[Point, Point]]]:
        """Yield each segment's new content, and where it ends: the one that is there, and the new one."""
        segment, n, check, content = 0, 0, "", bytearray()
        before = self._journal.first()
        for step in self._journal.walk():
            if step.end.segment != segment:
                if segment:
                    yield bytes(content), (before, Point(segment, len(content), n, check))
                segment = step.end.segment
                head = Head(
                    limpet="journal", format=lines.FORMAT, store=store_id.hex(), segment=segment,
                    n=n, after=check,
                )  # fmt: skip
                line, check = lines.summed(check, head)
                content = bytearray(line)
            line, check = lines.summed(check, edit(step.change))
            content += line
            n, before = step.end.n, step.end
        if segment:
            yield bytes(content), (before, Point(segment, len(content), n, check))

    def decided(self) -> Decided | None:
        """Return what was decided on and is not through; raise Corrupt unless it names segments of ours, in this folder."""
        if not self._path.exists():
            return None
        try:
            found = msgspec.json.decode(read_here(self._path), type=Decided)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _unreadable(self._path) from error
        for made, place in found.moves:
            fresh = re.fullmatch(re.escape(place) + r"\.\w+\.new", made)
            if not re.fullmatch(r"\d{6,}\.jsonl", place) or fresh is None:
                raise _unreadable(self._path)
        return found

    def place(self, decided: Decided) -> bool:
        """Put the segments into place; return whether the journal is the new one, up to its end.

        It is not if it is no longer the one that they were made from: what was acknowledged since is never written
        over. Raises Corrupt if that is found out when some of them are in place.
        """
        folder = self._journal.folder
        left = [(made, place) for made, place in decided.moves if (folder / made).exists()]
        if left and not self._ends_at(decided.before):
            if len(left) < len(decided.moves):
                raise _overtaken(self._path)
            return False
        for made, place in left:
            self._files.rename(folder / made, folder / place)
        # Other files lie there by now than the one that is open.
        self._journal.close()
        return self._journal.has(decided.after)

    def _ends_at(self, point: Point) -> bool:
        return self._journal.has(point) and next(self._journal.walk(point), None) is None

    def forget(self) -> None:
        """It is through, or never will be; durable on return."""
        self._files.remove(self._path)
        self._files.sync(self._journal.folder)


def _unreadable(path: Path) -> errors.Corrupt:
    return errors.Corrupt(
        f"{path} does not say which segments an erasure was about to put into place.",
        hint="Nothing was changed. If no erasure was under way, remove that file.",
        facts={"path": str(path), "journal": "damaged"},
    )


def _overtaken(path: Path) -> errors.Corrupt:
    return errors.Corrupt(
        f"{path} names segments that an erasure was putting into place when others wrote to the journal or replaced it.",
        hint="Nothing was changed. Put the folder journal back from a backup or from git.",
        facts={"path": str(path), "journal": "damaged"},
    )


class Kept:
    """What of a line the index still has."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._sql = applying.statements()

    def __call__(self, change: Change) -> Change:
        """Return a line without what the index does not have any more."""
        pending = change.pending
        if pending is not None and self._row("pending") != (pending.bytes,):
            pending = None
        return Change(
            n=change.n,
            tenants=change.tenants,
            streams=tuple(map(self._stream, change.streams)),
            events=tuple(map(self._event, change.events)),
            bases=change.bases,
            keys=tuple(filter(self._has_key, change.keys)),
            blobs=tuple(filter(self._has_blob, change.blobs)),
            notes=tuple(filter(self._has_note, change.notes)),
            erased=tuple(filter(self._has_gone, change.erased)),
            pending=pending,
        )

    def _row(self, query: str, *bindings: apsw.SQLiteValue) -> tuple[apsw.SQLiteValue, ...] | None:
        return first(self._connection, self._sql[query], bindings)

    def _name(self, key: int) -> str:
        row = self._row("stream_name", key)
        return str(row[0]) if row else ""

    def _stream(self, stream: lines.Stream) -> lines.Stream:
        key = stream.tenant << TENANT_SHIFT | stream.number
        return msgspec.structs.replace(stream, name=self._name(key))

    def _event(self, event: lines.Event) -> lines.Event:
        place, high = applying.place_of(event), event.tenant << TENANT_SHIFT
        event = msgspec.structs.replace(event, stream=self._name(high | place.stream))
        if event.salt is not None and self._row("is_blank", high | place.position) == (1,):
            return msgspec.structs.replace(event, payload=None, salt=None)
        return event

    def _has_key(self, key: lines.Key) -> bool:
        return bool(self._row("key_row", key.tenant, key.key, key.first, key.last, key.time_us))

    def _has_blob(self, blob: lines.Blob) -> bool:
        return bool(self._row("blob_row", blob.tenant, bytes.fromhex(blob.sha256)))

    def _has_note(self, note: lines.Note) -> bool:
        row = self._row("note", note.tenant, note.name)
        return row is not None and row[1] == note.version

    def _has_gone(self, gone: lines.Gone) -> bool:
        high = gone.tenant << TENANT_SHIFT
        row = self._row("gone_row", high | gone.position)
        cause = high | gone.cause if gone.cause else 0
        return row == (high | gone.notice, cause, lines.read(gone.stand_in))
