"""What is left of an erasure when the log has gone through it: lines that say what is kept beside the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from limpet import errors


class Todo(msgspec.Struct, frozen=True):
    """What the hooks have to be told of one erasure. It is kept until they were.

    Without a user and a session it is about whatever is kept of the tenant: nobody can say any more of whom.
    """

    tenant: str
    user_id: str
    session_id: str | None = None
    position: int | None = None
    here: bool = False
    """Nothing of it is here any more: only engines elsewhere are still to be told."""
    learnt: bool = False
    """Only what was said goes: long-term memory keeps what it has learnt from it."""


def encoded(every: Iterable[Todo]) -> bytes:
    """Return lines, one for each."""
    return b"".join(msgspec.json.encode(each) + b"\n" for each in every)


def todos(lines: bytes) -> Iterator[Todo]:
    """Yield what lines say; raise Corrupt if one can't be read."""
    try:
        yield from (msgspec.json.decode(line, type=Todo) for line in lines.splitlines() if line)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("what is left to do of an erasure can't be read.") from error


def unfinished(lines: bytes | None) -> bool:
    """Whether something of what is pending is to be done here: to be dropped, or to be scrubbed."""
    if not lines:
        return lines is not None
    return b"" in lines.splitlines() or not all(each.here for each in todos(lines))
