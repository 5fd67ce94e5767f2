"""The one fitting mechanism: prioritised items into a token budget, with an account of each.

Pure: the same items, budget and counter give the same context. What must be there goes in first;
if it does not fit, the level of compaction rises until it does; the rest is admitted by priority,
then recency, while there is room. Items are never split: a call goes with all of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast import errors, limits
from holdfast.context import shortening, summary
from holdfast.values.context import (
    CompactionLevel,
    ContextPriority,
    Entry,
    Fate,
    Ledger,
)
from holdfast.values.frozen import EMPTY
from holdfast.values.message import Message
from holdfast.values.policy import Summary

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


class View(msgspec.Struct, frozen=True):
    """An item as it goes in: its messages, whole or shortened, and what they take."""

    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    size: int
    rule: str = ""


class Item(msgspec.Struct, frozen=True):
    """Messages that stay together, with their tokens. `first` is the number of the first of them.

    One without messages stands for `count` of them that were not even looked at: a gap; `told`, if the
    session's summary stands for them. The summary itself is an item with the numbers that it stands for
    and its one message. `whole` has the sizes in the conversation of messages that come altered already,
    0 for the others; it is empty if none does.
    `rule` says why it must be there (critical, high or pinned), or, if `barred`, why it can't.
    `asks`: it begins a turn. `now`: it belongs to the current turn. `fits` is how it goes in whole where
    there is room, and its account then, if it was made before it was asked for.
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
    fits: tuple[View, list[Entry]] | None = None

    @property
    def last(self) -> int:
        return self.first + (self.count or len(self.messages)) - 1

    @property
    def tells(self) -> bool:
        """Whether it is the summary that the session has."""
        return self.told and bool(self.messages)


class Fitted(msgspec.Struct, frozen=True):
    """What fits: the messages in order, what each takes and all together, the level, and the ledger."""

    messages: tuple[Message, ...]
    sizes: tuple[int, ...]
    tokens: int
    level: CompactionLevel
    ledger: Ledger
    summary_at: int


def fit(
    items: Sequence[Item],
    budget: int,
    *,
    count: Count,
    least: CompactionLevel = CompactionLevel.NONE,
    overhead: int = 0,
    shares: Shares = EMPTY,
) -> Fitted:
    """Return the context of at most `budget` tokens; raise ContextOverflow if the critical items exceed it.

    `least` is the level to begin at, `overhead` the part of the budget that is not for items. `shares`
    are parts of the budget that categories may take, by their names; what is left over, all may.
    """
    for level in CompactionLevel:
        if level < least:
            continue
        fitting = _Fitting(items, budget - overhead, level, count, shares)
        if fitting.musts_fit():
            fitting.admit()
            return fitting.result()
    raise _overflow(items, budget, overhead)


def _overflow(items: Sequence[Item], budget: int, overhead: int) -> errors.ContextOverflow:
    needed = [i for i in items if i.priority is ContextPriority.CRITICAL and not i.barred]
    required = sum(item.size for item in needed) + overhead
    largest = sorted(needed, key=lambda item: (-item.size, item.first))[:3]
    where = [f"#{item.first:,} {item.rule} ({item.size:,})" for item in largest]
    where += [f"reserve, tools and reply ({overhead:,})"] if overhead else []
    return errors.ContextOverflow(
        f"what must be in the context needs {required:,} tokens; the budget is {budget:,}.",
        hint=f"Nothing was dropped. Largest: {', '.join(where)}. Raise the budget to {required:,} at least.",
        facts={
            "required": required,
            "budget": budget,
            "largest": [[item.first, item.size] for item in largest],
        },
    )


class _Fitting:
    """One try at one level."""

    def __init__(
        self,
        items: Sequence[Item],
        budget: int,
        level: CompactionLevel,
        count: Count,
        shares: Shares,
    ) -> None:
        self._items = items
        self._level = level
        self._count = count
        self._shares = shares
        self._budget = self._room = budget
        self._placed: dict[int, View] = {}
        self._out: dict[int, str] = {}
        self._summary: tuple[Message, int, set[int]] | None = None

    def musts_fit(self) -> bool:
        """Put in what must be there; whether it fits."""
        for index, item in enumerate(self._items):
            if item.barred:
                self._out[index] = item.rule
            elif item.priority is ContextPriority.CRITICAL:
                self._put(index, _whole(item, item.rule))
        if self._level >= CompactionLevel.CRITICAL:
            return self._room >= 0
        if self._level >= CompactionLevel.MODERATE:
            self._summarise()
        for index in self._waiting():
            item = self._items[index]
            if item.priority is ContextPriority.HIGH and not (
                self._shares and item.rule == CONTEXT
            ):
                view = self._told(item) if item.tells else self._view(item, item.rule)
                self._put(index, view)
        return self._room >= 0

    def _told(self, item: Item) -> View:
        if self._level < CompactionLevel.MODERATE:
            return _whole(item, item.rule)
        # It may have been written for larger windows: it must not drive out all that was said since.
        chars = int(self._budget * limits.SUMMARY_SHARE) * 2
        return self._shortened(item, lambda said: summary.shortened(said, chars), item.rule)

    def _waiting(self) -> list[int]:
        under, placed, out = self._under(), self._placed, self._out
        every = range(len(self._items))
        return [i for i in every if i not in placed and i not in out and i not in under]

    def _under(self) -> set[int]:
        return self._summary[2] if self._summary else set()

    def _put(self, index: int, view: View) -> None:
        self._placed[index] = view
        self._room -= view.size

    def _view(self, item: Item, rule: str) -> View:
        if self._level >= CompactionLevel.LIGHT:
            return self._shortened(item, shortening.light, rule)
        return _whole(item, rule)

    def _shortened(self, item: Item, shorter: Callable[[Message], Message], rule: str) -> View:
        messages, tokens = list[Message](), list[int]()
        for message, size in zip(item.messages, item.tokens, strict=True):
            made = shorter(message)
            made_size = size if made is message else self._count(made)
            # A counter may find fewer characters to be more tokens.
            messages.append(made if made_size < size else message)
            tokens.append(min(made_size, size))
        return View(tuple(messages), tuple(tokens), sum(tokens), rule)

    def _summarise(self) -> None:
        newest, old, before = 0, list[int](), -1
        for index in range(len(self._items) - 1, -1, -1):
            item = self._items[index]
            if item.tells:
                before = index
                continue
            if newest >= limits.NEWEST_MESSAGES and index not in self._placed and not item.barred:
                old.append(index)
            newest += len(item.messages)
        if not old:
            return
        old.reverse()
        messages = [m for index in old for m in self._items[index].messages]
        numbers = [(self._items[index].first, self._items[index].last) for index in old]
        chars = int(self._budget * limits.SUMMARY_SHARE) * 2
        told = _told(self._items[before]) if before >= 0 else None
        made = summary.summary_of(messages, numbers, chars=chars, before=told).message()
        size = self._count(made)
        # One summary at most: the session's own goes into this one.
        self._summary = (made, size, {*old, before} if told else set(old))
        self._room -= size

    def admit(self) -> None:
        """Put in what there is room for: by priority, then recency."""
        classes: dict[ContextPriority, list[int]] = {}
        for index in reversed(self._waiting()):
            priority = self._items[index].priority
            if self._level >= CompactionLevel.CRITICAL:
                self._out[index] = NOT_CRITICAL
            elif self._level >= CompactionLevel.AGGRESSIVE and priority <= ContextPriority.LOW:
                self._out[index] = LOW
            else:
                classes.setdefault(priority, []).append(index)
        if self._shares:
            classes = {
                p: self._admit_shares(indexes) for p, indexes in sorted(classes.items())[::-1]
            }
        for priority in sorted(classes, reverse=True):
            self._admit_newest(classes[priority])
        cut = [index for index, rule in self._out.items() if rule == NO_ROOM]
        if cut:
            self._begin_with_a_question(max(cut) + 1)

    def _admit_shares(self, newest_first: Sequence[int]) -> list[int]:
        """Put in what is within the shares of its category, the newest; return what has to wait."""
        used: dict[str, float] = {}
        for index, view in self._placed.items():
            name = self._items[index].messages[0].category.name
            used[name] = used.get(name, 0) + view.size
        waiting, full = list[int](), set[str]()
        for index in newest_first:
            item = self._items[index]
            name = item.messages[0].category.name
            most = self._shares.get(name, 0) * self._budget
            view = None if name in full else self._fitting_view(item)
            if view is None or used.get(name, 0) + view.size > most:
                full.add(name)
                waiting.append(index)
            else:
                used[name] = used.get(name, 0) + view.size
                self._put(index, view)
        return waiting

    def _admit_newest(self, newest_first: Sequence[int]) -> None:
        for done, index in enumerate(newest_first):
            view = self._fitting_view(self._items[index])
            if view is None:
                # What is older than a gap would be read as if it came right before what follows it.
                self._out.update(dict.fromkeys(newest_first[done:], NO_ROOM))
                return
            self._put(index, view)

    def _fitting_view(self, item: Item) -> View | None:
        if item.fits is not None and self._level < CompactionLevel.LIGHT:
            view = item.fits[0]
        else:
            view = self._view(item, FITS)
        if view.size <= self._room:
            return view
        # Of the current turn even a shortened result is worth more than none.
        for shorter in (shortening.light, shortening.stubbed) if item.now else ():
            view = self._shortened(item, shorter, FITS)
            if view.size <= self._room:
                return view
        return None

    def _begin_with_a_question(self, start: int) -> None:
        before = [i for i in range(start) if i in self._placed and not self._items[i].tells]
        if before and self._items[before[-1]].rule == ASKED:
            return
        for index in range(start, len(self._items)):
            item = self._items[index]
            if item.asks or item.now:
                return
            view = self._placed.get(index)
            if view is not None and view.rule == FITS:
                del self._placed[index]
                self._out[index] = TURN_CUT
                self._room += view.size

    def result(self) -> Fitted:
        """Return what went in, in order, and the account of everything."""
        messages, sizes, entries = list[Message](), list[int](), list[Entry]()
        summary_at, stands_at = min(self._summary[2]) if self._summary else -1, -1
        tells = {at for at, item in enumerate(self._items) if item.told and item.tells}
        told = not tells.isdisjoint((*self._placed, *self._under()))
        for index, item in enumerate(self._items):
            if self._summary and index == summary_at:
                stands_at = len(messages)
                messages.append(self._summary[0])
                sizes.append(self._summary[1])
            view = self._placed.get(index)
            if view is not None:
                stands_at = len(messages) if index in tells else stands_at
                messages += view.messages
                sizes += view.tokens
            if item.count:
                entries += [] if index in tells else [_of_gap(item, told=told)]
            else:
                entries += self._entries(index, item, view)
        used, ledger = self._budget - self._room, Ledger(tuple(entries))
        return Fitted(tuple(messages), tuple(sizes), used, self._level, ledger, stands_at)

    def _entries(self, index: int, item: Item, view: View | None) -> list[Entry]:
        if view is None:
            if index in self._under():
                return _same(item, Fate.SUMMARISED, SUMMARISED)
            return _same(item, Fate.LEFT_OUT, self._out[index])
        if item.fits is not None and view is item.fits[0]:
            return item.fits[1]
        return _shown(item, view)


def _shown(item: Item, view: View) -> list[Entry]:
    """Return the entries of an item that went in."""
    if view.messages is item.messages and not item.whole:
        return _same(item, Fate.KEPT, view.rule)
    entries: list[Entry] = []
    for number, message in enumerate(item.messages):
        at, used, rule = item.first + number, view.tokens[number], view.rule
        size, came = _size(item, number), view.messages[number] is message
        fate = Fate.KEPT if came and size == item.tokens[number] else Fate.SHORTENED
        if came and fate is Fate.SHORTENED:
            rule = STUBBED
        entries.append(Entry(at, at, fate, size, used, rule, message.category))
    return entries


def remembered(item: Item) -> Item:
    """Return the item with what is made of it again and again where there is room for it."""
    view = _whole(item, FITS)
    return msgspec.structs.replace(item, fits=(view, _shown(item, view)))


def _whole(item: Item, rule: str) -> View:
    return View(item.messages, item.tokens, item.size, rule)


def _told(item: Item) -> Summary:
    said = item.messages[0]
    return Summary(item.first, item.last, str(said.content), said.timestamp)


def _of_gap(item: Item, *, told: bool) -> Entry:
    under = told and item.told
    fate, rule = (Fate.SUMMARISED, SUMMARISED) if under else (Fate.LEFT_OUT, item.rule)
    return Entry(item.first, item.last, fate, item.size, 0, rule)


def _size(item: Item, number: int) -> int:
    """Return what a message has in the conversation, however it came."""
    return (item.whole[number] if item.whole else 0) or item.tokens[number]


def _same(item: Item, fate: Fate, rule: str) -> list[Entry]:
    """Return the entries of an item whose messages all had the same fate."""
    entries: list[Entry] = []
    at, kept = item.first, fate is Fate.KEPT
    for number, message in enumerate(item.messages):
        size = _size(item, number) if item.whole else item.tokens[number]
        entries.append(Entry(at, at, fate, size, size if kept else 0, rule, message.category))
        at += 1
    return entries
