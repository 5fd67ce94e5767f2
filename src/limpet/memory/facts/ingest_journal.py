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
from limpet.core.values.memory_records import History, TenantUser
from limpet.memory.index_store import (
    DropRows,
    ExpectedRows,
    IndexStore,
    PutRow,
    decode_row,
    drop_row,
    encode_key,
    prefix_end,
    scan_all,
)

INGESTED = "memory.taken"
EPOCHS = "memory.epochs"


class IngestRow(msgspec.Struct, frozen=True, array_like=True):
    """The state of one conversation: in its n-th attempt since an epoch, or done."""

    epoch: int
    attempt: int
    session_id: str
    key: str
    done: bool = False
    used_fallback: bool = False


class IngestAttempt(msgspec.Struct, frozen=True):
    """A running ingest and its row. Each of its writes expects the row unchanged."""

    history: History
    key: bytes
    row: bytes


class IngestJournal:
    """The ingests of all users in an index store."""

    def __init__(self, index: IndexStore) -> None:
        self._index = index

    def has_ingested(self, user: TenantUser, session_id: str, named: str) -> bool:
        """Whether a conversation was ingested completely."""
        row = self._find(user, session_id, named)
        return row is not None and row.done

    def used_fallback(self, user: TenantUser, session_id: str, named: str) -> bool:
        """Whether the fallback extracted the facts of a conversation."""
        row = self._find(user, session_id, named)
        return row is not None and row.used_fallback

    def _find(self, user: TenantUser, session_id: str, named: str) -> IngestRow | None:
        at = encode_key(user.tenant, user.user_id, session_id, named)
        seen = self._index.get(INGESTED, [at]).get(at)
        return None if seen is None else _decode_row(seen)

    def begin(self, history: History, *, redo: bool) -> IngestAttempt | None:
        """Return an attempt; None if there is nothing to do.

        Without `redo` that is so for a conversation that was ingested; with it, for one whose facts the
        fallback did not extract. A forgotten conversation has no row, so `redo` never ingests it again.
        Raises Unavailable after too many concurrent attempts.
        """
        user = history.user
        at, at_epoch = (encode_key(user.tenant, user.user_id, history.session_id, history.key), encode_key(user.tenant))
        for _ in range(limits.RETRIES_MAX):
            # The epoch is read before the row. A deletion between the two reads raises the epoch, and
            # then the write below fails.
            epoch = self._index.get(EPOCHS, [at_epoch]).get(at_epoch)
            seen = self._index.get(INGESTED, [at]).get(at)
            row = _decode_row(seen) if seen else IngestRow(0, 0, history.session_id, history.key)
            if not row.used_fallback if redo else row.done:
                return None
            mine = msgspec.msgpack.encode(
                msgspec.structs.replace(row, epoch=_decode_epoch(epoch), attempt=row.attempt + 1, done=False)
            )
            expected = {(INGESTED, at): seen, (EPOCHS, at_epoch): epoch}
            if self._index.write([PutRow(INGESTED, at, mine)], expected=expected):
                return IngestAttempt(history, at, mine)
        raise errors.Unavailable("too many concurrent ingests of one conversation; retry.")

    def expected_row(self, attempt: IngestAttempt) -> ExpectedRows:
        """Return what a write of this attempt must expect.

        Raises Unavailable if another attempt has begun or the conversation was forgotten.
        """
        if self._index.get(INGESTED, [attempt.key]).get(attempt.key) != attempt.row:
            raise errors.Unavailable("the conversation was forgotten, or is being ingested elsewhere; retry.")
        return {(INGESTED, attempt.key): attempt.row}

    def end(self, attempt: IngestAttempt, *, used_fallback: bool) -> None:
        """Record that the conversation was ingested; raise Unavailable as `expected_row` does."""
        row = _decode_row(attempt.row)
        done = msgspec.structs.replace(row, done=True, used_fallback=used_fallback)
        put = PutRow(INGESTED, attempt.key, msgspec.msgpack.encode(done))
        if not self._index.write([put], expected=self.expected_row(attempt)):
            self.expected_row(attempt)

    def fallback_ingests(self, user: TenantUser) -> Iterator[tuple[str, str]]:
        """Yield session id and key of the conversations whose facts the fallback extracted."""
        for _key, value in self._rows(user):
            if (row := _decode_row(value)).used_fallback:
                yield row.session_id, row.key

    def forget(self, user: TenantUser, drops: Sequence[DropRows]) -> bool:
        """Apply `drops` and delete all rows of a user; return False if another writer was faster."""
        mine = encode_key(user.tenant, user.user_id)
        return self._next_epoch(user, [*drops, DropRows(INGESTED, mine, prefix_end(mine))])

    def forget_session(self, user: TenantUser, session_id: str) -> bool:
        """Delete the rows of a session, so that running attempts fail; return False if another writer was faster."""
        mine = encode_key(user.tenant, user.user_id, session_id)
        return self._next_epoch(user, [DropRows(INGESTED, mine, prefix_end(mine))])

    def abort_attempts(self, user: TenantUser) -> bool:
        """Delete the rows of a user's running attempts, so that they fail and begin again.

        Returns False if another writer was faster.
        """
        if not self._next_epoch(user, []):
            return False
        for _ in range(limits.RETRIES_MAX):
            if not (stale := self._stale_attempts(user)):
                return True
            for at, seen in stale:
                self._index.write([drop_row(INGESTED, at)], expected={(INGESTED, at): seen})
        return False

    def _stale_attempts(self, user: TenantUser) -> list[tuple[bytes, bytes]]:
        at = encode_key(user.tenant)
        epoch = _decode_epoch(self._index.get(EPOCHS, [at]).get(at))
        return [
            (key, value)
            for key, value in self._rows(user)
            if not (row := _decode_row(value)).done and row.epoch < epoch
        ]

    def _rows(self, user: TenantUser) -> Iterator[tuple[bytes, bytes]]:
        prefix = encode_key(user.tenant, user.user_id)
        return scan_all(self._index, INGESTED, prefix, prefix_end(prefix))

    def _next_epoch(self, user: TenantUser, drops: Sequence[DropRows]) -> bool:
        at = encode_key(user.tenant)
        epoch = self._index.get(EPOCHS, [at]).get(at)
        put = PutRow(EPOCHS, at, msgspec.msgpack.encode(_decode_epoch(epoch) + 1))
        return self._index.write([*drops, put], expected={(EPOCHS, at): epoch})


def _decode_epoch(row: bytes | None) -> int:
    return decode_row(row, int) if row else 0


def _decode_row(value: bytes) -> IngestRow:
    return decode_row(value, IngestRow)
