"""The path of a stream: which events belong to it after forks and rewinds.

A stream is written in stretches. The first begins at version 1. Each later stretch begins where
a write named a base, and its versions are above all that the stream had. Events before a stretch
are read from its base. So a version never means two things, and the path to it never changes.
Pure functions, for every backend.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec


class StreamBase(msgspec.Struct, frozen=True):
    """A stretch that goes on from a base: `stretch` is its key, `first` its first version.

    `source` and `version` say which stream it goes on from, and where: the same one if it was rewound.
    """

    stretch: int
    first: int
    source: int
    version: int


class Span(msgspec.Struct, frozen=True):
    """Versions low … high, both included, that a stream has written in one stretch of it."""

    stream: int
    stretch: int
    low: int
    high: int


BaseLookup = Callable[[int], Sequence[StreamBase]]
"""From a stream to the bases of its stretches, in the order of their first versions."""


def resolve_path(stream: int, at: int, bases: BaseLookup) -> tuple[Span, ...]:
    """Return the spans that a stream was made of at a version, oldest first.

    The first stretch of a stream has the stream's own key, whether or not it has a base.
    """
    spans: list[Span] = []
    known: dict[int, Sequence[StreamBase]] = {}
    most = at
    while at > 0:
        # A stream that was rewound often is met at every hop.
        found = known[stream] = known[stream] if stream in known else bases(stream)
        base = next((one for one in reversed(found) if one.first <= at), None)
        forked = bool(found) and found[0].source != stream
        if base is None and forked:
            # The version lies in what the stream was forked from, as that was then.
            most, base = min(most, at), found[0]
        else:
            low = base.first if base else 1
            if low <= (high := min(at, most)):
                spans.append(Span(stream, base.stretch if base else stream, low, high))
        if base is None:
            break
        stream, at = base.source, base.version
    return tuple(reversed(spans))


def clip(spans: Iterable[Span], after: int, until: int) -> list[Span]:
    """Return what of a path has versions after < version <= until."""
    cut = ((span, max(span.low, after + 1), min(span.high, until)) for span in spans)
    return [Span(span.stream, span.stretch, low, high) for span, low, high in cut if low <= high]


def event_count(spans: Iterable[Span]) -> int:
    """Return how many events a path has."""
    return sum(span.high - span.low + 1 for span in spans)


def locate(spans: Iterable[Span], index: int) -> tuple[int, int]:
    """Return the stream and version of an event by its index on a path, from 0."""
    for span in spans:
        length = span.high - span.low + 1
        if index < length:
            return span.stream, span.low + index
        index -= length
    raise IndexError(index)


def last_version(spans: Sequence[Span]) -> int:
    """Return the last version of a path, 0 if it is empty."""
    return spans[-1].high if spans else 0


def find_claim_version(spans: Iterable[Span], claims: Collection[tuple[int, int]]) -> int:
    """Return the version of a claim among (stretch, version) that a path has; 0 if it has none."""
    ends = {span.stretch: span.high for span in spans}
    return next((version for stretch, version in claims if version <= ends.get(stretch, 0)), 0)


def claims_by_stretch(
    stream: int, bases: Sequence[StreamBase], claims: Iterable[tuple[str, int]]
) -> list[tuple[int, str, int]]:
    """Return stretch, text and version of the claims that a stream's events make, which come by version.

    Whoever makes a claim in a stretch first has it. A log has it twice if the table of claims was lost meanwhile.
    """
    firsts = [base.first for base in bases]
    stretches = [stream, *(base.stretch for base in bases)]
    found: dict[tuple[int, str], int] = {}
    for text, version in claims:
        found.setdefault((stretches[bisect_right(firsts, version)], text), version)
    return [(stretch, text, version) for (stretch, text), version in found.items()]
