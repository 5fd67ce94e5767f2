"""What is fitted: items of messages that stay together, how each goes in, and the account of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import msgspec

from limpet.core.values.context import CompactionLevel, ContextPriority, Fate, Ledger, LedgerEntry
from limpet.core.values.messages import Message

Count = Callable[[Message], int]
"""Tokens of one message, by the counter that the budget is meant for."""

Shares = Mapping[str, float]
"""Parts of a budget by categories' names."""

FITS = "newest first, while there is room"
NO_ROOM = "older than what there is room for"
TURN_CUT = "the question that it belongs to did not fit"
LOW = "low priority at this level of compaction"
NOT_CRITICAL = "only critical items at this level of compaction"
SUMMARISED = "under the summary"
STUBBED = "output from before the current turn, named by its size"
TOLD = "summary of what was cut"
CONTEXT = "context"
ASKED = "question of a turn whose beginning was cut"
INCLUDED = "asked for by name"
TOO_LARGE = "larger than the room that was left"


class View(msgspec.Struct, frozen=True, gc=False):
    """An item as it goes in: its messages, whole or shortened, and what they take.

    `account` has the entries of that, if they were made before they were asked for.
    """

    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    size: int
    rule: str = ""
    account: tuple[LedgerEntry, ...] = ()


class Item(msgspec.Struct, frozen=True):
    """Messages that stay together, with their tokens. `first` is the number of the first of them.

    One without messages stands for `count` of them that were not even looked at: a gap; `told`, if the
    session's summary stands for them. The summary itself is an item with the numbers that it stands for
    and its one message. `whole` has the sizes in the conversation of messages that come altered already,
    0 for the others; it is empty if none does.
    `rule` says why it must be there (critical, high or pinned), or, if `barred`, why it can't.
    `asks`: it begins a turn. `now`: it belongs to the current turn. `fits` is how it goes in whole where
    there is room, with its account, if it was made before it was asked for.

    What is no message of a conversation has a `pool` that it is counted in, and a `name`. `alone`: it
    is read by itself, so what is older may go in without it. `light` makes it shorter, if there is a way
    of its own. `ladder` gives how a critical item goes in at each level, if it may be compacted.
    """

    first: int
    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    size: int
    priority: ContextPriority
    rule: str = ""
    barred: bool = False
    asks: bool = False
    now: bool = False
    count: int = 0
    told: bool = False
    whole: tuple[int, ...] = ()
    fits: View | None = None
    pool: str = ""
    name: str = ""
    alone: bool = False
    light: Callable[[Message], Message] | None = None
    ladder: Callable[[CompactionLevel], View] | None = None

    @property
    def last(self) -> int:
        return self.first + (self.count or len(self.messages)) - 1

    @property
    def tells(self) -> bool:
        """Whether it is the summary that the session has."""
        return self.told and bool(self.messages)


class Pools(msgspec.Struct, frozen=True):
    """Items of several kinds in one context: `shares` are parts of what the must-haves leave, by pool.

    `summary` gives what stands for items of a pool, in so many characters.
    """

    shares: Shares
    summary: Callable[[Sequence[Item], int], Message]


class Fitted(msgspec.Struct, frozen=True):
    """What fits: the messages in order, what each takes and all together, the level, and the ledger.

    `room` is what is left. `placed`, `out` and `under` say of each item by its index how it went in, why
    it did not, or that one of the `summaries` stands for it, which are at the index of the first of theirs.
    """

    messages: tuple[Message, ...]
    sizes: tuple[int, ...]
    tokens: int
    level: CompactionLevel
    ledger: Ledger
    summary_at: int
    room: int
    placed: Mapping[int, View]
    out: Mapping[int, str]
    under: Set[int]
    summaries: Mapping[int, tuple[Message, int]]


def shown(item: Item, view: View) -> list[LedgerEntry]:
    """Return the entries of an item that went in."""
    if view.messages is item.messages and not item.whole:
        return same(item, Fate.KEPT, view.rule)
    entries: list[LedgerEntry] = []
    for number, message in enumerate(item.messages):
        at, used, rule = item.first + number, view.tokens[number], view.rule
        size, came = _size(item, number), view.messages[number] is message
        fate = Fate.KEPT if came and size == item.tokens[number] else Fate.SHORTENED
        if came and fate is Fate.SHORTENED:
            rule = STUBBED
        entries.append(LedgerEntry(at, at, fate, size, used, rule, message.category))
    return entries


def remembered(item: Item) -> Item:
    """Return the item with what is made of it again and again where there is room for it."""
    account = tuple(shown(item, whole(item, FITS)))
    fits = View(item.messages, item.tokens, item.size, FITS, account)
    return msgspec.structs.replace(item, fits=fits)


def whole(item: Item, rule: str) -> View:
    """Return the item as it is."""
    return View(item.messages, item.tokens, item.size, rule)


def of_gap(item: Item, *, told: bool) -> LedgerEntry:
    """Return the entry of messages that were not looked at."""
    under = told and item.told
    fate, rule = (Fate.SUMMARISED, SUMMARISED) if under else (Fate.LEFT_OUT, item.rule)
    return LedgerEntry(item.first, item.last, fate, item.size, 0, rule)


def _size(item: Item, number: int) -> int:
    """Return what a message has in the conversation, however it came."""
    return (item.whole[number] if item.whole else 0) or item.tokens[number]


def same(item: Item, fate: Fate, rule: str) -> list[LedgerEntry]:
    """Return the entries of an item whose messages all had the same fate."""
    entries: list[LedgerEntry] = []
    at, kept = item.first, fate is Fate.KEPT
    for number, message in enumerate(item.messages):
        size = _size(item, number) if item.whole else item.tokens[number]
        entries.append(LedgerEntry(at, at, fate, size, size if kept else 0, rule, message.category))
        at += 1
    return entries
