"""The journal: append-only segments of lines, each synced before its commit is acknowledged.

A line is one commit as readable JSON. Every entry is a row of the log exactly as stored. Content is
written as JSON if it is JSON, else as text, else as base64, and reads back as the same bytes. The
checksum of a line covers it and the checksum of the line before.

A bad line with nothing after it was never acknowledged and is cut off. A bad line anywhere else is damage and raises
Corrupt with file and line. The last segment is padded with blanks while it is in use: writing over blanks takes half
the time of making the file longer. All methods but `walk` require the write lock.
"""

from __future__ import annotations

import base64
import binascii
import builtins
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from limpet import errors, limits
from limpet.stores import chain
from limpet.stores.sqlite import database
from limpet.stores.sqlite.database import NUMBER_MASK, TENANT_SHIFT
from limpet.stores.sqlite.shared_file.store_files import StoreFiles, open_regular_file, stamp_resolution_ns

JOURNAL_FORMAT: Final = 1
"""The format of a journal. A newer one is refused."""

CHECKSUM_CHARS: Final = 32
_LINE_END: Final = b'"}\n'
_CHECKSUM_FIELD: Final = b',"sum":"'
_CHECKSUM_TAIL_BYTES: Final = len(_CHECKSUM_FIELD) + CHECKSUM_CHARS + len(_LINE_END)
_CONTENT_FORMS: Final = 3
"""The number of forms in which content can be written."""

_INT_BITS: Final = 63
"""Bits of a SQLite integer without its sign."""

TenantNumber = Annotated[int, Meta(ge=1, lt=1 << (_INT_BITS - TENANT_SHIFT))]
"""A tenant's number."""

NumberInTenant = Annotated[int, Meta(ge=1, le=NUMBER_MASK)]
"""A position, a stream's number or a version: numbers within a tenant."""

NumberOrZero = Annotated[int, Meta(ge=0, le=NUMBER_MASK)]
"""A `NumberInTenant`, or 0 for none."""

TimeUs = Annotated[int, Meta(ge=-(1 << _INT_BITS), le=(1 << _INT_BITS) - 1)]
HexText = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{2})*\Z")]
Sha256Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
StoreIdHex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class UnreadableLine(Exception):
    """A line is damaged. The message is for people."""


class _LineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class LineContent(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes in the most readable of three forms that fits: JSON, text or base64."""

    json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.json is UNSET) + (self.text is UNSET) + (self.base64 is UNSET) != _CONTENT_FORMS - 1:
            raise ValueError("a content is written in one way")
        if self.base64 is not UNSET:
            binascii.a2b_base64(self.base64, strict_mode=True)

    @property
    def bytes(self) -> bytes:
        if self.json is not UNSET:
            return builtins.bytes(self.json)
        if self.text is not UNSET:
            return self.text.encode()
        return base64.b64decode("" if self.base64 is UNSET else self.base64, validate=True)


def encode_content(content: bytes) -> LineContent:
    """Return bytes in the most readable form."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return LineContent(base64=base64.b64encode(content).decode())
    if content[:1] in (b"{", b"[", b'"') and b"\n" not in content:
        try:
            # Only content that reads back unchanged.
            if bytes(msgspec.json.decode(content, type=Raw)) == content:
                return LineContent(json=Raw(content))
        except (msgspec.MsgspecError, RecursionError):
            pass
    return LineContent(text=text)


def decode_content(content: LineContent | None) -> bytes | None:
    return None if content is None else content.bytes


class TenantEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant's number."""

    number: TenantNumber
    name: str


class StreamEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A stream's name; its number is the position of its first event."""

    tenant: TenantNumber
    number: NumberInTenant
    name: str


class EventEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An event. Its header says position, number of its stream, and version; erased, it has no content and no salt."""

    tenant: TenantNumber
    stream: str
    payload: LineContent | None = None
    header: Raw
    salt: HexText | None = None
    digest: Sha256Hex
    link: Sha256Hex


class BaseEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A base: the event at `position` begins a stretch that continues a version of the same or another stream."""

    tenant: TenantNumber
    position: NumberInTenant
    stream: NumberInTenant
    first: NumberInTenant
    source: NumberInTenant
    version: NumberOrZero


class KeyEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An idempotency key and the positions of its append."""

    tenant: TenantNumber
    key: str
    command: HexText
    first: NumberInTenant
    last: NumberInTenant
    time_us: TimeUs


class BlobEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A blob by its hash. Without content it is in a file of that name."""

    tenant: TenantNumber
    sha256: Sha256Hex
    content: LineContent | None = None


class NoteEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A note; the one without a name counts the versions of a tenant's notes."""

    tenant: str
    name: str
    version: NumberOrZero
    value: LineContent


class ErasedEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An erased event: the positions of its notice and of its cause, and its redacted payload."""

    tenant: TenantNumber
    position: NumberInTenant
    notice: NumberInTenant
    cause: NumberOrZero = 0
    stand_in: LineContent | None = None


class CommitLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit, the n-th. `pending` is the pending work of erasures; `dropped_…` are the keys of deleted rows."""

    n: int
    tenants: tuple[TenantEntry, ...] = ()
    streams: tuple[StreamEntry, ...] = ()
    events: tuple[EventEntry, ...] = ()
    bases: tuple[BaseEntry, ...] = ()
    keys: tuple[KeyEntry, ...] = ()
    blobs: tuple[BlobEntry, ...] = ()
    notes: tuple[NoteEntry, ...] = ()
    erased: tuple[ErasedEntry, ...] = ()
    pending: LineContent | None = None
    dropped_keys: tuple[tuple[TenantNumber, str], ...] = ()
    dropped_blobs: tuple[tuple[TenantNumber, Sha256Hex], ...] = ()
    dropped_notes: tuple[tuple[str, str], ...] = ()
    dropped_pending: bool = False


class SegmentHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a segment: store, number of the segment, commits before it, checksum of the line before."""

    limpet: str
    format: int
    store: StoreIdHex
    segment: int
    n: int
    after: str


_line_encoder = msgspec.json.Encoder()
_commit_decoder = msgspec.json.Decoder(CommitLine)
_event_header_decoder = msgspec.json.Decoder(list[object])
_segment_head_decoder = msgspec.json.Decoder(SegmentHead)


def encode_line(before: str, value: CommitLine | SegmentHead) -> tuple[bytes, str]:
    """Return a line and its checksum, which includes the checksum of the line before."""
    body = _line_encoder.encode(value)[:-1]
    check = _checksum(before, body)
    return body + _CHECKSUM_FIELD + check.encode() + _LINE_END, check


def _checksum(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:CHECKSUM_CHARS]


def stated_checksum(line: bytes) -> str:
    """Return the checksum in a line; empty if the line does not end as one does."""
    if line[-_CHECKSUM_TAIL_BYTES : -len(_LINE_END) - CHECKSUM_CHARS] != _CHECKSUM_FIELD:
        return ""
    return line[-len(_LINE_END) - CHECKSUM_CHARS : -len(_LINE_END)].decode("ascii", "replace")


def is_intact(line: bytes, before: str) -> bool:
    """Return whether a line is undamaged and follows the line with that checksum."""
    check = stated_checksum(line)
    return bool(check) and line.endswith(_LINE_END) and _checksum(before, line[:-_CHECKSUM_TAIL_BYTES]) == check


_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def event_address(event: EventEntry) -> chain.EventAddress:
    """Return an event's address; raise ValueError if its header is unreadable."""
    try:
        match _event_header_decoder.decode(event.header):
            case [int(), str(), int(), int(), int(position), int(stream), int(version), *_] if all(
                0 < each <= NUMBER_MASK for each in (position, stream, version)
            ):
                return chain.EventAddress(position, stream, version)
            case _:
                pass
    except _DECODE_ERRORS:
        pass
    raise ValueError("the header of an event says no place")


def decode_commit(line: bytes) -> CommitLine:
    """Return the commit in an intact line; raise UnreadableLine if it can't be decoded."""
    try:
        change = _commit_decoder.decode(line)
    except _DECODE_ERRORS as error:
        raise UnreadableLine(f"it can't be read ({error})") from error
    # Checked only when a line is read: a writer has just encoded the headers.
    for index, event in enumerate(change.events):
        try:
            event_address(event)
        except ValueError as error:
            raise UnreadableLine(f"it can't be read ({error} - at `$.events[{index}]`)") from error
    return change


def decode_segment_head(line: bytes) -> SegmentHead:
    """Return the head of a segment; raise UnreadableLine if it is none."""
    try:
        head = _segment_head_decoder.decode(line)
    except _DECODE_ERRORS as error:
        raise UnreadableLine(f"it does not begin as a segment does ({error})") from error
    if head.limpet != "journal" or head.format < 1:
        raise UnreadableLine("it does not begin as a segment does")
    return head


_SEGMENT_FILE_NAME: Final = re.compile(r"(\d{6,})\.jsonl")

FolderLook = tuple[int, tuple[int, int, int] | None]
"""The time of a look at a folder, and its change stamp."""


class JournalPoint(msgspec.Struct, frozen=True):
    """The end of a line: segment, offset in bytes, number of the commit, and its checksum."""

    segment: int
    offset: int
    n: int
    sum: str


class JournalLine(msgspec.Struct, frozen=True):
    """A checked line: its number in the segment, its commit, its begin and end."""

    number: int
    change: CommitLine
    begin: int
    end: JournalPoint


START: Final = JournalPoint(1, 0, 0, "")
"""The begin of the journal."""

PADDING: Final = b" "
"""The byte that preallocated space is filled with."""
_PADDING_OR_ZEROS: Final = PADDING + b"\0"
"""Bytes where no line was written. A power cut while a file grows leaves zeros instead of padding."""


def segment_file_name(segment: int) -> str:
    return f"{segment:06d}.jsonl"


class CommitJournal:
    """The segments in one folder."""

    def __init__(self, files: StoreFiles, folder: Path) -> None:
        self._files = files
        self.folder = folder
        self._fd: int | None = None
        self._open_segment_inode: tuple[int, tuple[int, int] | None] = (0, None)
        self._text = str(folder)
        self._size = 0
        """The known size of the open segment. A line that fits is written over padding."""
        self._settled_stamp: tuple[int, int, int] | None = None

    def path(self, segment: int) -> Path:
        return self.folder / segment_file_name(segment)

    def segments(self) -> list[int]:
        """Return the numbers of the segments; raise Corrupt if one is missing in between."""
        found = sorted(
            int(match[1]) for each in self.folder.iterdir() if (match := _SEGMENT_FILE_NAME.fullmatch(each.name))
        )
        if found != list(range(1, len(found) + 1)):
            lost = next(n for n in range(1, len(found) + 1) if n not in found)
            raise _damaged_line_error(self.path(lost), 1, "the segment is missing")
        return found

    def store_id(self) -> bytes | None:
        """Return the store id in the first segment; None if there is no journal yet."""
        line = next(self._lines(1), b"")
        if not is_intact(line, ""):
            if line.count(b"\n") and self._has_more(1, len(line)):
                raise _damaged_line_error(self.path(1), 1, "it is not what was written")
            return None
        return bytes.fromhex(self._head(1, line).store)

    def _head(self, segment: int, line: bytes) -> SegmentHead:
        try:
            head = decode_segment_head(line)
        except UnreadableLine as error:
            raise _damaged_line_error(self.path(segment), 1, str(error)) from error
        if head.format > JOURNAL_FORMAT:
            raise errors.NewerStore(
                f"{self.folder} has a journal of format {head.format}; this Limpet knows {JOURNAL_FORMAT}.",
                hint="In an up-to-date clone of Limpet: pip install .",
            )
        if head.segment != segment:
            raise _damaged_line_error(self.path(segment), 1, f"it is segment {head.segment}")
        return head

    def _lines(self, segment: int, offset: int = 0) -> Iterator[bytes]:
        """Yield the lines of a segment with their line ends, which the last may lack. Padding is no line."""
        try:
            with open_regular_file(self.path(segment)) as file:
                file.seek(offset)
                for line in file:
                    if line.strip(_PADDING_OR_ZEROS):
                        yield line
        except FileNotFoundError:
            return

    def _has_more(self, segment: int, offset: int) -> bool:
        return next(self._lines(segment, offset), None) is not None or self.path(segment + 1).exists()

    def begin(self, store_id: bytes) -> JournalPoint:
        """Create the first segment; durable on return."""
        head = SegmentHead(limpet="journal", format=JOURNAL_FORMAT, store=store_id.hex(), segment=1, n=0, after="")
        line, check = encode_line("", head)
        self._files.replace_content(self.path(1), line)
        return JournalPoint(1, len(line), 0, check)

    def has_line_at(self, point: JournalPoint) -> bool:
        if point == START:
            return True
        width = 2 * CHECKSUM_CHARS
        try:
            with open_regular_file(self.path(point.segment)) as file:
                file.seek(max(0, point.offset - width))
                end = file.read(min(width, point.offset))
                return file.tell() == point.offset and stated_checksum(end) == point.sum
        except FileNotFoundError:
            return False

    def walk(self, after: JournalPoint = START) -> Iterator[JournalLine]:
        """Yield the lines after a point, each checked. Stops before a torn end; raises Corrupt for damage."""
        segment, offset, n, check = after.segment, after.offset, after.n, after.sum
        number, doubted = 0, -1
        if offset:
            number = self._line_at(segment, offset)
        while True:
            for line in self._lines(segment, offset):
                if not is_intact(line, check):
                    if doubted != offset:
                        # A writer may have replaced padding while the line was read: read it once more.
                        doubted = offset
                        break
                    if self._has_more(segment, offset + len(line)):
                        raise _damaged_line_error(self.path(segment), number + 1, "it is not what was written")
                    return
                number += 1
                offset += len(line)
                before, check = check, stated_checksum(line)
                if number == 1:
                    self._check_head(segment, line, n, before)
                    continue
                n += 1
                change = self._change(segment, number, line, n)
                yield JournalLine(number, change, offset - len(line), JournalPoint(segment, offset, n, check))
            else:
                if not self.path(segment + 1).exists():
                    return
                segment, offset, number, doubted = segment + 1, 0, 0, -1

    def check_next(self, after: JournalPoint) -> None:
        """Raise Corrupt if a whole line follows the end of a walk: it was acknowledged and is damaged."""
        if next(self._lines(after.segment, after.offset), b"").endswith(b"\n"):
            number = self._line_at(after.segment, after.offset) + 1
            raise _damaged_line_error(self.path(after.segment), number, "it is not what was written")

    def _line_at(self, segment: int, offset: int) -> int:
        with open_regular_file(self.path(segment)) as file:
            return file.read(offset).count(b"\n")

    def _check_head(self, segment: int, line: bytes, n: int, before: str) -> None:
        head = self._head(segment, line)
        if (head.n, head.after) != (n, before):
            raise _damaged_line_error(self.path(segment), 1, "it does not follow from the segment before")

    def _change(self, segment: int, number: int, line: bytes, n: int) -> CommitLine:
        try:
            change = decode_commit(line)
        except UnreadableLine as error:
            raise _damaged_line_error(self.path(segment), number, str(error)) from error
        if change.n != n:
            raise _damaged_line_error(self.path(segment), number, f"it is commit {change.n:,}, not {n:,}")
        return change

    def first_point(self) -> JournalPoint:
        line = next(self._lines(1), b"")
        return JournalPoint(1, len(line), 0, stated_checksum(line))

    def is_end(self, point: JournalPoint, look: FolderLook | None = None) -> bool:
        """Return whether nothing follows a point; raise Corrupt if the journal does not reach it.

        A `look` at the folder that the caller has taken under the write lock saves another one.
        """
        look = look or self.look_at_folder()
        if self._fd is not None and self._open_segment_inode[0] == point.segment and self.is_folder_unchanged(look):
            fd = self._fd
        else:
            fd = self._open_segment(point.segment)
            if self._open_segment_inode[1] is None and not self.has_line_at(point):
                raise truncated_journal_error(self.folder)
            self._open_segment_inode = (point.segment, self._files.inode_at(str(self.path(point.segment))))
            if self.path(point.segment + 1).exists():
                return False
            self._keep_look(look)
        if point == START:
            return not self._files.size(fd)
        around = self._files.read(fd, 2, point.offset - 1)
        if around[:1] != b"\n":
            raise truncated_journal_error(self.folder)
        if not around[1:]:
            # Another process has closed the store and removed the padding.
            self._size = 0
        return around[1:] in (b"", PADDING)

    def has_only_padding_after(self, point: JournalPoint) -> bool:
        """Return whether only padding follows a point, up to the end of the file: a power cut can leave any part of a line."""
        return not self._read_rest(self._open_segment(point.segment), point.offset).strip(PADDING)

    def _read_rest(self, fd: int, offset: int) -> bytes:
        return self._files.read(fd, self._files.size(fd) - offset, offset)

    def look_at_folder(self) -> FolderLook:
        # First the clock, then the folder: a change while the files are read is seen by the next look.
        return time.time_ns(), self._files.folder_stamp(self._text)

    def is_folder_unchanged(self, look: FolderLook) -> bool:
        return look[1] is not None and look[1] == self._settled_stamp

    def _keep_look(self, look: FolderLook) -> None:
        now_ns, stamp = look
        settled = stamp is not None and now_ns - stamp[2] > stamp_resolution_ns(stamp[2])
        self._settled_stamp = stamp if settled else None

    def sync_last_line(self, after: JournalPoint, last: JournalLine | None) -> int:
        """Sync the last line of another process and cut off what follows; return the number of bytes cut.

        The line is written once more: after a failed sync it may be in memory only.
        """
        end, cut = last.end if last else after, 0
        for segment in range(end.segment + 1, max(self.segments(), default=0) + 1):
            cut += self.path(segment).stat().st_size
            self._files.remove(self.path(segment))
        fd = self._open_segment(end.segment)
        if last is not None:
            line = self._files.read(fd, end.offset - last.begin, last.begin)
            self._files.write(fd, line, last.begin)
        rest = self._read_rest(fd, end.offset)
        if rest.strip(PADDING):
            cut += len(rest.rstrip(_PADDING_OR_ZEROS))
            self._truncate(fd, end.offset)
        self._files.datasync(fd)
        self._files.sync(self.folder)
        return cut

    def _truncate(self, fd: int, size: int) -> None:
        self._files.truncate(fd, size)
        self._size = size

    def remove_padding(self, point: JournalPoint) -> None:
        """Remove the padding after the last line, if it ends at the point."""
        if self._fd is not None and self._open_segment_inode[0] == point.segment and self.is_end(point):
            self._truncate(self._fd, point.offset)

    def append(self, point: JournalPoint, store_id: bytes, change: CommitLine) -> JournalPoint:
        """Append a line; durable on return. On failure the journal is unchanged, or Unavailable says that it is unknown."""
        if point.offset >= limits.JOURNAL_SEGMENT_BYTES:
            return self._append_new(point, store_id, change)
        line, check = encode_line(point.sum, change)
        # `catch_up` has checked under this write lock that the open file is the one at its path.
        here = self._fd is not None and self._open_segment_inode[0] == point.segment
        fd = self._fd if here and self._fd is not None else self._open_segment(point.segment)
        try:
            self._write(fd, line, point.offset)
        except BaseException as error:
            self._undo(error, lambda: self._truncate(fd, point.offset))
            raise
        self._check_segment_file(point.segment)
        return JournalPoint(point.segment, point.offset + len(line), change.n, check)

    def _write(self, fd: int, line: bytes, offset: int) -> None:
        """Write a line over padding, or at the end with new padding; durable on return."""
        end = offset + len(line)
        if end <= self._size:
            self._files.write(fd, line, offset)
        else:
            self._size = 0
            try:
                self._files.write(fd, line + PADDING * limits.JOURNAL_PREALLOCATED_BYTES, offset)
                self._size = end + limits.JOURNAL_PREALLOCATED_BYTES
            except OSError:
                # The disk may have space for the line without padding.
                self._files.truncate(fd, offset)
                self._files.write(fd, line, offset)
        self._files.datasync(fd)

    def _undo(self, error: BaseException, undo: Callable[[], None]) -> None:
        """Undo a failed write; raise Unavailable if that fails, because readers may find the line."""
        try:
            undo()
        except OSError:
            if isinstance(error, OSError):
                raise database.unknown_outcome_error(f"{self.folder} can't be written ({error})") from error

    def _append_new(self, point: JournalPoint, store_id: bytes, change: CommitLine) -> JournalPoint:
        segment = point.segment + 1
        head = SegmentHead(
            limpet="journal", format=JOURNAL_FORMAT, store=store_id.hex(), segment=segment,
            n=point.n, after=point.sum,
        )  # fmt: skip
        first, check = encode_line(point.sum, head)
        line, check = encode_line(check, change)
        try:
            self.remove_padding(point)
            fd = self._open_segment(segment, make=True)
            self._write(fd, first + line, 0)
            self._files.sync(self.folder)
        except BaseException as error:
            self._undo(error, lambda: self._files.remove(self.path(segment)))
            raise
        self._check_segment_file(segment)
        return JournalPoint(segment, len(first) + len(line), change.n, check)

    def _open_segment(self, segment: int, *, make: bool = False) -> int:
        found = self._files.inode_at(str(self.path(segment)))
        if found is None and not make:
            raise truncated_journal_error(self.folder)
        if self._fd is None or self._open_segment_inode != (segment, found):
            self.close()
            self._fd = self._files.open_or_create(self.path(segment))
            self._open_segment_inode = (segment, None)
        return self._fd

    def _check_segment_file(self, segment: int) -> None:
        assert self._fd is not None
        look = self.look_at_folder()
        if self.is_folder_unchanged(look) and self._open_segment_inode[1] is not None:
            return
        found = self._files.inode_at(str(self.path(segment)))
        if found is None or found != self._files.inode_of(self._fd):
            raise errors.Unavailable(
                f"{self.path(segment)} was removed or replaced while in use, so nothing can be written to it.",
                hint="Put the file back, or connect again.",
            )
        self._open_segment_inode = (segment, found)
        self._keep_look(look)

    def close(self) -> None:
        fd, self._fd, self._settled_stamp, self._size = self._fd, None, None, 0
        if fd is not None:
            self._files.close(fd)


def truncated_journal_error(folder: Path, lost: int = 0) -> errors.Corrupt:
    more = f"{lost:,} commit(s) that were" if lost else "what was"
    return errors.Corrupt(
        f"{folder} does not have {more} acknowledged in it: it was cut off, or an older one was put here.",
        hint="Put the journal back. To take it as it is, and lose what it lacks: limpet rebuild --accept-loss.",
        facts={"path": str(folder), "journal": "cut off"},
    )


def lost_journal_error(root: Path) -> errors.Corrupt:
    rescue = rescue_hint(root) if (root / ".index" / "state.db").is_file() else ""
    return errors.Corrupt(
        f"{root} has lost its journal: {root / 'journal' / segment_file_name(1)} is not there.",
        hint="Nothing was changed. Put the journal back from a backup or from git."
        f" {rescue or 'To begin anew, choose another folder.'}",
        facts={"path": str(root), "journal": "lost"},
    )


def rescue_hint(root: Path) -> str:
    """Return the hint for an index that has events which its journal lacks."""
    index = root / ".index" / "state.db"
    return f"What its index has can be copied: limpet backup COPY --url {index}"


def _damaged_line_error(path: Path, line: int, why: str) -> errors.Corrupt:
    return errors.Corrupt(
        f"{path}, line {line:,}, is damaged: {why}.",
        hint="Nothing was changed. Put the file back from a backup or from git.",
        facts={"path": str(path), "line": line, "journal": "damaged"},
    )
