"""After an erasure: the journal written anew without what the index does not have any more.

Every line stays a line, with the same number. What it says is kept as far as it still holds: events in their present
form, streams under their present names, and of keys, blobs, notes and the rest only what is there. Checksums follow
from one another, so that all is written from the first line on that changes. A file that names the new segments
decides: before it is there nothing has happened, and from then on whoever comes next puts them into place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import apsw
import msgspec

from holdfast import errors
from holdfast.store.files import applying, lines
from holdfast.store.files.journal import Journal, Point
from holdfast.store.files.lines import Change, Head
from holdfast.store.sqlite.files import Files
from holdfast.store.sqlite.rows import TENANT_SHIFT, first

DECIDED: Final = "rewriting"

Edit = Callable[[Change], Change]


class Rewriting:
    """The segments of one journal, to be replaced together. Used by the holder of the turn."""

    def __init__(self, files: Files, journal: Journal) -> None:
        self._files = files
        self._journal = journal
        self._decided = journal.folder / DECIDED

    def run(self, store_id: bytes, edit: Edit) -> Point:
        """Write every line as `edit` gives it; return where the journal ends. Durable on return."""
        fresh: list[tuple[str, str]] = []
        end, changed = self._journal.first(), False
        for content, reached in self._segments(store_id, edit):
            end, path = reached, self._journal.path(reached.segment)
            changed = changed or content != path.read_bytes()
            if changed:
                made = self._files.fresh(path)
                self._fill(made, content)
                fresh.append((made.name, path.name))
        if fresh:
            self._files.put(self._decided, msgspec.json.encode(fresh))
            self.finish()
        return end

    def _fill(self, path: Path, content: bytes) -> None:
        fd = self._files.open_here(path)
        try:
            self._files.write(fd, content, 0)
        finally:
            self._files.close(fd)
        self._files.sync(path)

    def _segments(self, store_id: bytes, edit: Edit) -> Iterator[tuple[bytes, Point]]:
        """Yield each segment's new content and its end."""
        segment, n, check, content = 0, 0, "", bytearray()
        for step in self._journal.walk():
            if step.end.segment != segment:
                if segment:
                    yield bytes(content), Point(segment, len(content), n, check)
                segment = step.end.segment
                head = Head(
                    holdfast="journal", format=lines.FORMAT, store=store_id.hex(), segment=segment,
                    n=n, after=check,
                )  # fmt: skip
                line, check = lines.summed(check, head)
                content = bytearray(line)
            line, check = lines.summed(check, edit(step.change))
            content += line
            n = step.end.n
        if segment:
            yield bytes(content), Point(segment, len(content), n, check)

    def finish(self) -> None:
        """Put segments into place that were decided on; nothing if there are none."""
        if not self._decided.exists():
            return
        for made, place in self._moves():
            if (self._journal.folder / made).exists():
                self._files.rename(self._journal.folder / made, self._journal.folder / place)
        self._files.remove(self._decided)
        self._files.sync(self._journal.folder)

    def _moves(self) -> list[tuple[str, str]]:
        """Return which file becomes which segment; raise Corrupt unless both can be names of ours, in this folder."""
        try:
            moves = msgspec.json.decode(self._decided.read_bytes(), type=list[tuple[str, str]])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _unreadable(self._decided) from error
        for made, place in moves:
            fresh = re.fullmatch(re.escape(place) + r"\.\w+\.new", made)
            if not re.fullmatch(r"\d{6,}\.jsonl", place) or fresh is None:
                raise _unreadable(self._decided)
        return moves


def _unreadable(path: Path) -> errors.Corrupt:
    return errors.Corrupt(
        f"{path} does not say which segments an erasure was about to put into place.",
        hint="Nothing was changed. If no erasure was under way, remove that file.",
        facts={"path": str(path)},
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
