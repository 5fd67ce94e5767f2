"""What is left of an erasure when the log has gone through it: lines that say what is kept beside the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast import errors


class Todo(msgspec.Struct, frozen=True):
    """What the hooks have to be told of one erasure. It is kept until they were.

    Without a user and a session it is about whatever is kept of the tenant: nobody can say any more of whom.
    """

    tenant: str
    user_id: str
    session_id: str | None = None
    position: int | None = None


def encoded(every: Iterable[Todo]) -> bytes:
    """Return lines, one for each."""
    return b"".join(msgspec.json.encode(each) + b"\n" for each in every)


def decoded(lines: bytes) -> Iterator[Todo]:
    """Yield what lines say; raise Corrupt at one that says nothing."""
    try:
        for line in lines.splitlines():
            yield msgspec.json.decode(line, type=Todo)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("what is left of an erasure can't be read.") from error
