"""What a server answers as values, their types checked: whatever is not as it was written is damage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import msgspec

from limpet import errors
from limpet.store import chain, paths, port
from limpet.store.remote import driver

T = TypeVar("T")

_FIELDS = (b"n", b"v", b"o", b"h", b"d", b"l")

_Projected = tuple[str, str, str, str, int, str, tuple[str, ...], bytes, bytes]
_projected = msgspec.msgpack.Decoder(_Projected)


def decoded(content: object, kind: type[T]) -> T:
    """Return what was packed here; raise Corrupt if it can't be read."""
    try:
        return msgspec.msgpack.decode(cast("bytes", content), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise _damaged() from error


def head(answer: object) -> driver.Head:
    """Return a head."""
    position, link, epoch = cast("list[bytes | None]", answer)[:3]
    if position is None or link is None:
        return driver.Head(epoch=number(epoch or b"0"))
    return driver.Head(number(position), link, number(epoch or b"0"))


def number(answer: object) -> int:
    """Return a whole number."""
    try:
        return int(cast("bytes", answer))
    except (TypeError, ValueError) as error:
        raise _damaged() from error


def text(answer: object) -> str:
    """Return a text."""
    try:
        return cast("bytes", answer).decode()
    except (AttributeError, UnicodeDecodeError) as error:
        raise _damaged() from error


def stream(answer: object) -> driver.Stream:
    """Return a stream."""
    number_, name, first, version, bases, mark = cast("list[object]", answer)
    return driver.Stream(
        number(number_),
        text(name),
        number(first),
        number(version),
        tuple(_base(each) for each in cast("list[bytes]", bases)),
        cast("bytes | None", mark) or b"",
    )


def _base(content: bytes) -> paths.Base:
    return paths.Base(*decoded(content, tuple[int, int, int, int]))


def events(answer: object) -> list[driver.Kept]:
    """Return events of the log."""
    return [_event(each) for each in cast("list[list[object]]", answer)]


def _event(answer: Sequence[object]) -> driver.Kept:
    id_, fields, body, blank, name = answer
    position = number(cast("bytes", id_).partition(b"-")[0])
    columns = cast("list[bytes]", fields)
    if tuple(columns[::2]) != _FIELDS:
        raise chain.damaged(chain.Place(position, 0, 0), "its columns are others")
    stream_, version, ordinal, header, digest, link = columns[1::2]
    payload = salt = None
    if body is not None:
        kept = cast("bytes", body)
        end = 1 + (kept[0] if kept else 0)
        salt, payload = kept[1:end], kept[end:]
    try:
        place = chain.Place(position, int(stream_), int(version))
        return driver.Kept(
            "" if name is None else text(name),
            chain.Row(place, header, payload, salt, digest, link),
            int(ordinal),
            None if blank is None else driver.Blank(*decoded(blank, tuple[int, int, bytes | None])),
        )
    except ValueError as error:
        raise chain.damaged(chain.Place(position, 0, 0), "its columns are others") from error


def key(name: object, content: object) -> driver.KeptKey:
    """Return an idempotency key's use."""
    first, last, time_us, hash_ = _parted(content, 3)
    return driver.KeptKey(text(name), hash_, number(first), number(last), number(time_us))


def note(name: object, content: object) -> driver.KeptNote:
    """Return a note."""
    version, size, rest = _parted(content, 2)
    end = number(size)
    return driver.KeptNote(text(name), port.Note(rest[end:], number(version)), rest[:end])


def _parted(content: object, count: int) -> list[bytes]:
    parts = cast("bytes", content or b"").split(b" ", count)
    if len(parts) != count + 1:
        raise _damaged()
    return parts


def snapshot(stream: str, content: object) -> driver.KeptSnapshot:
    """Return a snapshot."""
    version, fold, state, mark = decoded(content, tuple[int, int, bytes, bytes])
    return driver.KeptSnapshot(port.Snapshot(stream, version, fold, state), mark)


def projection(content: object) -> driver.KeptProjection:
    """Return a projection, which stands behind the places that it is indexed at."""
    kept = cast("bytes", content)
    begin = 4 + int.from_bytes(kept[:4], "big")
    try:
        kind, id_, owner, status, time_us, lookup, terms, document, mark = _projected.decode(
            memoryview(kept)[begin:]
        )
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged() from error
    row = port.Projection(
        kind=kind, id=id_, owner=owner, status=status, time_us=time_us, lookup=lookup,
        terms=terms, document=document,
    )  # fmt: skip
    return driver.KeptProjection(row, mark)


def facts(answer: object) -> dict[str, str]:
    """Return what INFO says."""
    lines = cast("bytes", answer).decode("utf-8", "replace").splitlines()
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def settings(answer: object) -> Mapping[str, str]:
    """Return what CONFIG GET says."""
    words = [word.decode() for word in cast("list[bytes]", answer)]
    return dict(zip(words[::2], words[1::2], strict=True))


def _damaged() -> errors.Corrupt:
    return errors.Corrupt(
        "something on the server is not what was written.",
        hint="Nothing was changed. `limpet verify` says how far it goes; a backup can replace it.",
    )
