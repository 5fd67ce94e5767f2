"""Records which conversations were ingested, so that each takes effect once.

An ingest holds a row, and each of its writes expects that row unchanged. A second ingest of the
same conversation changes the row, and a deletion removes it: the next write of the first one then
fails. Epochs count deletions, so that a row that was removed and written again differs from the old
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from limpet import errors, limits
from limpet.core.values.memory_records import History, Who
from limpet.memory.index_store import (
    DropRows,
    ExpectedRows,
    IndexStore,
    PutRow,
    decode_row,
    encode_key,
    prefix_end,
)

INGESTED = "memory.taken"
EPOCHS = "memory.epochs"


class IngestRow(msgspec.Struct, frozen=True, array_like=True):
    """How far a conversation is: being taken, for the n-th time since an epoch, or done."""

    epoch: int
    attempt: int
    session_id: str
    key: str
    done: bool = False
    used_fallback: bool = False


class IngestAttempt(msgspec.Struct, frozen=True):
    """Somebody taking a conversation, and the row that they hold."""

    history: History
    key: bytes
    row: bytes


class IngestJournal:
    """The rows of all users on a shelf."""

    def __init__(self, shelf: IndexStore) -> None:
        self._shelf = shelf

    def has_ingested(self, who: Who, session_id: str, named: str) -> bool:
        """Whether a conversation was taken."""
        row = self._find(who, session_id, named)
        return row is not None and row.done

    def used_fallback(self, who: Who, session_id: str, named: str) -> bool:
        """Whether somebody had to stand in when a conversation was taken."""
        row = self._find(who, session_id, named)
        return row is not None and row.used_fallback

    def _find(self, who: Who, session_id: str, named: str) -> IngestRow | None:
        at = encode_key(who.tenant, who.user_id, session_id, named)
        seen = self._shelf.get(INGESTED, [at]).get(at)
        return None if seen is None else _decode_row(seen)

    def begin(self, history: History, *, redo: bool) -> IngestAttempt | None:
        """Return an attempt; None if the conversation was taken, and is not to be taken again.

        To redo is for one in which somebody stood in: what was forgotten has no row, and stays forgotten.
        """
        who = history.who
        at, at_epoch = (
            encode_key(who.tenant, who.user_id, history.session_id, history.key),
            encode_key(who.tenant),
        )
        for _ in range(limits.RETRIES_MAX):
            epoch = self._shelf.get(EPOCHS, [at_epoch]).get(at_epoch)
            seen = self._shelf.get(INGESTED, [at]).get(at)
            row = _decode_row(seen) if seen else IngestRow(0, 0, history.session_id, history.key)
            if not row.used_fallback if redo else row.done:
                return None
            mine = msgspec.msgpack.encode(
                msgspec.structs.replace(
                    row, epoch=_decode_epoch(epoch), attempt=row.attempt + 1, done=False
                )
            )
            expected = {(INGESTED, at): seen, (EPOCHS, at_epoch): epoch}
            if self._shelf.write([PutRow(INGESTED, at, mine)], expected=expected):
                return IngestAttempt(history, at, mine)
        raise errors.Unavailable("others take the same conversation; hand it over again.")

    def expected_row(self, attempt: IngestAttempt) -> ExpectedRows:
        """Return what a write must expect; raise Unavailable if somebody else has it, or it was forgotten."""
        if self._shelf.get(INGESTED, [attempt.key]).get(attempt.key) != attempt.row:
            raise errors.Unavailable(
                "the conversation was forgotten, or somebody else takes it; hand it over again."
            )
        return {(INGESTED, attempt.key): attempt.row}

    def end(self, attempt: IngestAttempt, *, used_fallback: bool) -> None:
        """Keep that the conversation was taken."""
        row = _decode_row(attempt.row)
        done = msgspec.structs.replace(row, done=True, used_fallback=used_fallback)
        put = PutRow(INGESTED, attempt.key, msgspec.msgpack.encode(done))
        if not self._shelf.write([put], expected=self.expected_row(attempt)):
            self.expected_row(attempt)

    def fallback_ingests(self, who: Who) -> Iterator[tuple[str, str]]:
        """Yield session and key of the conversations in which somebody had to stand in."""
        for _at, value in _scan_all(self._shelf, encode_key(who.tenant, who.user_id)):
            if (row := _decode_row(value)).used_fallback:
                yield row.session_id, row.key

    def forget(self, who: Who, drops: Sequence[DropRows]) -> bool:
        """Drop everything of a user's, these rows included; return whether nobody was in the way."""
        mine = encode_key(who.tenant, who.user_id)
        return self._next_epoch(who, [*drops, DropRows(INGESTED, mine, prefix_end(mine))])

    def forget_session(self, who: Who, session_id: str) -> bool:
        """Forget that a session was taken, or is being taken; return whether nobody was in the way."""
        mine = encode_key(who.tenant, who.user_id, session_id)
        return self._next_epoch(who, [DropRows(INGESTED, mine, prefix_end(mine))])

    def abort_attempts(self, who: Who) -> bool:
        """Forget what is being taken of a user's, so that it is taken anew; return whether nobody was in the way."""
        if not self._next_epoch(who, []):
            return False
        for _ in range(limits.RETRIES_MAX):
            if not (stale := self._stale_attempts(who)):
                return True
            for at, seen in stale:
                self._shelf.write(
                    [DropRows(INGESTED, at, at + b"\0")], expected={(INGESTED, at): seen}
                )
        return False

    def _stale_attempts(self, who: Who) -> list[tuple[bytes, bytes]]:
        at = encode_key(who.tenant)
        epoch = _decode_epoch(self._shelf.get(EPOCHS, [at]).get(at))
        rows = _scan_all(self._shelf, encode_key(who.tenant, who.user_id))
        return [
            (at, seen) for at, seen in rows if not (r := _decode_row(seen)).done and r.epoch < epoch
        ]

    def _next_epoch(self, who: Who, drops: Sequence[DropRows]) -> bool:
        at = encode_key(who.tenant)
        epoch = self._shelf.get(EPOCHS, [at]).get(at)
        put = PutRow(EPOCHS, at, msgspec.msgpack.encode(_decode_epoch(epoch) + 1))
        return self._shelf.write([*drops, put], expected={(EPOCHS, at): epoch})


def _scan_all(shelf: IndexStore, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    first, last = prefix, prefix_end(prefix)
    while rows := shelf.scan(INGESTED, first, last, limit=limits.MEMORY_ROWS):
        yield from rows
        first = rows[-1][0] + b"\0"


def _decode_epoch(row: bytes | None) -> int:
    return decode_row(row, int) if row else 0


def _decode_row(value: bytes) -> IngestRow:
    return decode_row(value, IngestRow)
