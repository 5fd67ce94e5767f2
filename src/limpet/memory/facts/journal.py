"""Which conversations were taken, and which are being taken: rows that make taking one happen once.

Whoever takes a conversation holds a row; each of its writes expects that row unchanged. Another who begins
on the same conversation changes it, and whoever forgets removes it: the first one's next write then fails,
and nothing of what was forgotten comes back. Numbers of forgettings (epochs) keep a row that was removed and
made again from looking the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from limpet import errors, limits
from limpet.core.values.memory_records import History, Who
from limpet.memory.shelf import Drop, Expected, Put, Shelf, after, decoded, key

TAKEN = "memory.taken"
EPOCHS = "memory.epochs"


class Row(msgspec.Struct, frozen=True, array_like=True):
    """How far a conversation is: being taken, for the n-th time since an epoch, or done."""

    epoch: int
    attempt: int
    session_id: str
    key: str
    done: bool = False
    stood_in: bool = False


class Attempt(msgspec.Struct, frozen=True):
    """Somebody taking a conversation, and the row that they hold."""

    history: History
    at: bytes
    held: bytes


class Journal:
    """The rows of all users on a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def has(self, who: Who, session_id: str, named: str) -> bool:
        """Whether a conversation was taken."""
        row = self._of(who, session_id, named)
        return row is not None and row.done

    def stood_in(self, who: Who, session_id: str, named: str) -> bool:
        """Whether somebody had to stand in when a conversation was taken."""
        row = self._of(who, session_id, named)
        return row is not None and row.stood_in

    def _of(self, who: Who, session_id: str, named: str) -> Row | None:
        at = key(who.tenant, who.user_id, session_id, named)
        seen = self._shelf.get(TAKEN, [at]).get(at)
        return None if seen is None else _row(seen)

    def begin(self, history: History, *, redo: bool) -> Attempt | None:
        """Return an attempt; None if the conversation was taken, and is not to be taken again.

        To redo is for one in which somebody stood in: what was forgotten has no row, and stays forgotten.
        """
        who = history.who
        at, at_epoch = (
            key(who.tenant, who.user_id, history.session_id, history.key),
            key(who.tenant),
        )
        for _ in range(limits.RETRIES_MAX):
            epoch = self._shelf.get(EPOCHS, [at_epoch]).get(at_epoch)
            seen = self._shelf.get(TAKEN, [at]).get(at)
            row = _row(seen) if seen else Row(0, 0, history.session_id, history.key)
            if not row.stood_in if redo else row.done:
                return None
            mine = msgspec.msgpack.encode(
                msgspec.structs.replace(
                    row, epoch=_number(epoch), attempt=row.attempt + 1, done=False
                )
            )
            expected = {(TAKEN, at): seen, (EPOCHS, at_epoch): epoch}
            if self._shelf.write([Put(TAKEN, at, mine)], expected=expected):
                return Attempt(history, at, mine)
        raise errors.Unavailable("others take the same conversation; hand it over again.")

    def holds(self, attempt: Attempt) -> Expected:
        """Return what a write must expect; raise Unavailable if somebody else has it, or it was forgotten."""
        if self._shelf.get(TAKEN, [attempt.at]).get(attempt.at) != attempt.held:
            raise errors.Unavailable(
                "the conversation was forgotten, or somebody else takes it; hand it over again."
            )
        return {(TAKEN, attempt.at): attempt.held}

    def end(self, attempt: Attempt, *, stood_in: bool) -> None:
        """Keep that the conversation was taken."""
        row = _row(attempt.held)
        done = msgspec.structs.replace(row, done=True, stood_in=stood_in)
        put = Put(TAKEN, attempt.at, msgspec.msgpack.encode(done))
        if not self._shelf.write([put], expected=self.holds(attempt)):
            self.holds(attempt)

    def stand_ins(self, who: Who) -> Iterator[tuple[str, str]]:
        """Yield session and key of the conversations in which somebody had to stand in."""
        for _at, value in _rows(self._shelf, key(who.tenant, who.user_id)):
            if (row := _row(value)).stood_in:
                yield row.session_id, row.key

    def forget(self, who: Who, drops: Sequence[Drop]) -> bool:
        """Drop everything of a user's, these rows included; return whether nobody was in the way."""
        mine = key(who.tenant, who.user_id)
        return self._next_epoch(who, [*drops, Drop(TAKEN, mine, after(mine))])

    def forget_session(self, who: Who, session_id: str) -> bool:
        """Forget that a session was taken, or is being taken; return whether nobody was in the way."""
        mine = key(who.tenant, who.user_id, session_id)
        return self._next_epoch(who, [Drop(TAKEN, mine, after(mine))])

    def stop(self, who: Who) -> bool:
        """Forget what is being taken of a user's, so that it is taken anew; return whether nobody was in the way."""
        if not self._next_epoch(who, []):
            return False
        for _ in range(limits.RETRIES_MAX):
            if not (stale := self._stale(who)):
                return True
            for at, seen in stale:
                self._shelf.write([Drop(TAKEN, at, at + b"\0")], expected={(TAKEN, at): seen})
        return False

    def _stale(self, who: Who) -> list[tuple[bytes, bytes]]:
        at = key(who.tenant)
        epoch = _number(self._shelf.get(EPOCHS, [at]).get(at))
        rows = _rows(self._shelf, key(who.tenant, who.user_id))
        return [(at, seen) for at, seen in rows if not (r := _row(seen)).done and r.epoch < epoch]

    def _next_epoch(self, who: Who, drops: Sequence[Drop]) -> bool:
        at = key(who.tenant)
        epoch = self._shelf.get(EPOCHS, [at]).get(at)
        put = Put(EPOCHS, at, msgspec.msgpack.encode(_number(epoch) + 1))
        return self._shelf.write([*drops, put], expected={(EPOCHS, at): epoch})


def _rows(shelf: Shelf, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    first, last = prefix, after(prefix)
    while rows := shelf.scan(TAKEN, first, last, limit=limits.MEMORY_ROWS):
        yield from rows
        first = rows[-1][0] + b"\0"


def _number(row: bytes | None) -> int:
    return decoded(row, int) if row else 0


def _row(value: bytes) -> Row:
    return decoded(value, Row)
