"""Reading that takes more than one look: paths of streams, and events with their stand-ins, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from limpet import errors, limits
from limpet.store import chain, paths, port
from limpet.store.paths import Base, Span
from limpet.store.remote import marks
from limpet.store.remote.driver import Driver, Kept, Stream

LATEST = (1 << 62) - 1
"""A version and a position that nothing reaches."""


def opened(tenant: str, kept: Kept, name: str) -> port.StoredEvent:
    """Return an event, checked, with its stand-in if it was erased; raise Corrupt if it is damaged."""
    row = kept.row
    if row.payload is not None:
        return chain.opened(row, name)
    if kept.blank is None:
        raise unexplained(row.place)
    return chain.opened(row, name, marks.stand_in(tenant, row.place.position, kept.blank))


def unexplained(place: chain.Place) -> errors.Corrupt:
    """Return the error for an event whose payload is gone though nothing says that it was erased."""
    return chain.damaged(place, "its content is gone, and nothing says that it was erased")


def nameless(number: int) -> errors.Corrupt:
    """Return the error for a stream that events belong to and that is not there."""
    return errors.Corrupt(f"stream {number:,} has no name.", facts={"stream": number})


def beyond(driver: Driver, tenant: str, position: int) -> bool:
    """Whether the log goes on after a position that is said to be its last, and nobody wrote meanwhile."""
    return bool(driver.feed(tenant, after=position, limit=1)) and (
        driver.head(tenant).position == position
    )


def headless(tenant: str) -> errors.Corrupt:
    """Return the error for a log without a head."""
    return errors.Corrupt(
        f"tenant {tenant!r} has events, but what says how many is lost.",
        hint="Put the server's data back from a backup; what is readable can be exported: `limpet export`.",
        facts={"tenant": tenant},
    )


def found(driver: Driver, tenant: str, stream: str | int) -> Stream | None:
    """Return a stream by name or number, checked; None if it is not there."""
    there = driver.stream(tenant, stream)
    return None if there is None else _asked(tenant, there, stream)


def _asked(tenant: str, there: Stream, stream: str | int) -> Stream:
    """Return a stream that is what was written, and the one that was asked for; raise Corrupt otherwise."""
    if stream not in (there.name, there.number):
        raise errors.Corrupt(
            "a stream is found under the name of another.", facts={"stream": there.number}
        )
    return marks.checked_stream(tenant, there)


def bases(driver: Driver, tenant: str, *streams: Stream) -> Callable[[int], Sequence[Base]]:
    """Return how the bases of a stream are found by its number; those of some are known."""
    known = {stream.number: stream.bases for stream in streams}

    def find(number: int) -> Sequence[Base]:
        if number not in known:
            there = found(driver, tenant, number)
            if there is None:
                raise nameless(number)
            known[number] = there.bases
        return known[number]

    return find


def path(driver: Driver, tenant: str, stream: Stream, at: int | None) -> tuple[Span, ...]:
    """Return what a stream is made of, now or at a version. What it was at a version never changes."""
    last = stream.version if at is None else min(at, stream.version)
    if not stream.bases:
        return (Span(stream.number, stream.number, 1, last),) if last > 0 else ()
    return paths.path(stream.number, last, bases(driver, tenant, stream))


def stream(
    driver: Driver,
    tenant: str,
    name: str,
    *,
    low: int,
    high: int,
    limit: int,
    at: int | None,
    newest: bool,
) -> tuple[Stream | None, list[port.StoredEvent]]:
    """Return a stream, and its events with low <= version <= high, the first of them or the newest."""
    last = high if at is None else min(high, at)
    there, own = driver.own(tenant, name, low=low, high=last, limit=limit, newest=newest)
    if there is None:
        return None, []
    _asked(tenant, there, name)
    first = there.bases[-1].first if there.bases else there.first
    if there.bases and low < first:
        spans = paths.within(path(driver, tenant, there, at), low - 1, high)
        own = _along(driver, tenant, spans, limit, newest=newest)
    else:
        # Versions that are all of its last stretch are all its own.
        span = Span(there.number, 0, max(low, first), min(last, there.version))
        _check_versions(own, span, limit, newest=newest)
    return there, [opened(tenant, kept, name) for kept in own]


def _along(
    driver: Driver, tenant: str, spans: Sequence[Span], limit: int, *, newest: bool
) -> list[Kept]:
    """Return the events of some spans in order, the first of them or the newest."""
    found: list[list[Kept]] = []
    for span in reversed(spans) if newest else spans:
        if limit <= 0:
            break
        _, own = driver.own(
            tenant, span.stream, low=span.low, high=span.high, limit=limit, newest=newest
        )
        _check_versions(own, span, limit, newest=newest)
        found.append(own)
        limit -= len(own)
    return [kept for part in (reversed(found) if newest else found) for kept in part]


def _check_versions(own: Sequence[Kept], span: Span, limit: int, *, newest: bool) -> None:
    """See that the events of a span are all there, in order; raise Corrupt otherwise. They come by version."""
    count = max(0, min(limit, span.high - span.low + 1))
    first = span.high - count + 1 if newest else span.low
    found = [own[at].row.place.version for at in (0, -1)] if own else []
    if len(own) != count or (own and found != [first, first + count - 1]):
        raise errors.Corrupt(
            f"stream {span.stream:,} has {len(own):,} of {count:,} events from version {first:,} on.",
            hint="`limpet verify` lists all damage.",
            facts={"stream": span.stream},
        )


def check_positions(found: Sequence[Kept], after: int) -> None:
    """See that events follow one another from a position on; raise Corrupt otherwise. They come by position."""
    if not found or found[-1].row.place.position == after + len(found):
        return
    at = next(at for at, kept in enumerate(found, after + 1) if kept.row.place.position != at)
    raise errors.Corrupt(
        f"the event at position {at:,} is missing.",
        hint="`limpet verify` lists all damage.",
        facts={"position": at},
    )


def own(driver: Driver, tenant: str, stream: Stream) -> Iterator[Kept]:
    """Yield the events that a stream has itself, those that a rewind has left out included."""
    after = 0
    while True:
        _, page = driver.own(
            tenant, stream.number, low=after + 1, high=stream.version, limit=limits.READ_CHUNK
        )
        yield from page
        if len(page) < limits.READ_CHUNK:
            return
        after = page[-1].row.place.version


def link(
    driver: Driver, tenant: str, stream: str | int, version: int
) -> tuple[Stream | None, bytes]:
    """Return a stream, and the link of its own event at a version; empty if it has none."""
    there, own = driver.own(tenant, stream, low=version, high=version, limit=1)
    found = None if there is None else _asked(tenant, there, stream)
    return found, own[0].row.link if own else b""


def claim(driver: Driver, tenant: str, spans: Sequence[Span], text: str) -> int:
    """Return the version at which a path has a claim; 0 if it has not."""
    if not spans:
        return 0
    found = driver.claims(tenant, (text,), [span.stretch for span in spans])
    return paths.made(spans, [(stretch, version) for stretch, _, version in found])


def seek(driver: Driver, tenant: str, spans: Sequence[Span], ordinal: int) -> int:
    """Return the lowest version on a path whose event has at least this ordinal; 0 if there is none."""
    for span in spans:
        found = driver.seek(tenant, span.stream, low=span.low, high=span.high, ordinal=ordinal)
        if found:
            return found
    return 0


def replayed(used: port.RawKey) -> port.Replayed:
    """Return what an idempotency key was used for, as the port says it."""
    return port.Replayed(used.command_hash, used.first, used.last)


def blobs(driver: Driver, tenant: str, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the contents of a tenant's blobs that are there; raise Corrupt for a damaged one."""
    wanted = list(hashes)
    found = driver.blobs(tenant, wanted) if wanted else {}
    for hash_, content in found.items():
        if not chain.is_blob(hash_, content):
            raise chain.damaged_blob(hash_)
    return found
