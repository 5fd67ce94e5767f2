"""What was said about one thing, and what follows from it: which fact holds, since when, until when.

Pure. A slot is a set of mentions; everything else is computed from them, by when they were said, so that it
does not matter in which order they became known. Taking a mention away takes its effect away too.
"""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from limpet import limits
from limpet.core.values.memory_records import Fact, FactKind, Source, Who
from limpet.memory import shelf


class Mention(msgspec.Struct, frozen=True, array_like=True):
    """That something was said once. Mentions compare as the moments in which they were said."""

    time_us: int
    position: int
    index: int
    session_id: str
    message_id: str
    kind: FactKind
    text: str


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """All that was said about one thing, the newest last. Without `about` it is one sentence, said any number of times."""

    about: str
    mentions: tuple[Mention, ...] = ()


_ENDS: Final = " \t.,;:!?\"'“”‘’…。、，；：！？「」"


def wording(text: str) -> str:
    """Return text without what makes no difference to its meaning: two of the same say the same."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_ENDS)


def name(about: str, text: str) -> str:
    """Return the name of the slot that a fact belongs to."""
    return f"about:{about}" if about else f"text:{_digest(wording(text))}"


def with_mentions(slot: Slot, new: Iterable[Mention]) -> Slot:
    """Return a slot with more mentions, within its bounds: of each wording and of all the newest stay."""
    ordered = sorted({*slot.mentions, *new}, key=_moment, reverse=True)
    kept, said = list[Mention](), dict[str, int]()
    for mention in ordered:
        words = wording(mention.text)
        said[words] = said.get(words, 0) + 1
        if said[words] <= limits.FACT_SOURCES_MAX:
            kept.append(mention)
    return Slot(slot.about, tuple(reversed(kept[: limits.SLOT_SOURCES_MAX])))


def without(slot: Slot, session_id: str | None, positions: Iterable[int] | None) -> Slot:
    """Return a slot without what one session said, or any, at these positions or anywhere."""
    gone = None if positions is None else set(positions)
    left = (
        mention
        for mention in slot.mentions
        if (session_id is not None and mention.session_id != session_id)
        or (gone is not None and mention.position not in gone)
    )
    return Slot(slot.about, tuple(left))


def facts(who: Who, slot: Slot) -> list[Fact]:
    """Return the facts of a slot, the newest first; the first one holds."""
    runs = [list(run) for _, run in itertools.groupby(slot.mentions, lambda m: wording(m.text))]
    found = dict[str, Fact]()
    until: int | None = None
    for run in reversed(runs):
        newest = run[-1]
        words = wording(newest.text)
        if words not in found:
            found[words] = _fact(who, slot.about, newest, since_us=run[0].time_us, until_us=until)
        until = run[0].time_us
    return list(found.values())


def sources(slot: Slot, text: str) -> Iterator[Source]:
    """Yield who said so, the newest first."""
    for mention in reversed(slot.mentions):
        if wording(mention.text) == wording(text):
            yield Source(mention.session_id, mention.message_id, mention.position)


def _fact(who: Who, about: str, said: Mention, *, since_us: int, until_us: int | None) -> Fact:
    named = shelf.key(who.tenant, who.user_id, about, wording(said.text))
    return Fact(
        id=f"fact_{_digest(named)}",
        kind=said.kind,
        text=said.text,
        source=Source(said.session_id, said.message_id, said.position),
        since_us=since_us,
        about=about,
        until_us=until_us,
    )


def _moment(mention: Mention) -> tuple[int, int, int, str, str]:
    return mention.time_us, mention.position, mention.index, mention.session_id, mention.text


def _digest(data: str | bytes) -> str:
    whole = data.encode() if isinstance(data, str) else data
    return hashlib.blake2b(whole, digest_size=12).hexdigest()
