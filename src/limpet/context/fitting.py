"""The one fitting mechanism: prioritised items into a token budget, with an account of each.

Pure: the same items, budget and counter give the same context. What must be there goes in first;
if it does not fit, the level of compaction rises until it does; the rest is admitted by priority,
then recency, while there is room. Items are never split: a call goes with all of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

from limpet import errors, limits
from limpet.context import shortening, summary
from limpet.context.items import (
    ASKED,
    CONTEXT,
    FITS,
    INCLUDED,
    LOW,
    NO_ROOM,
    NOT_CRITICAL,
    SUMMARISED,
    TOO_LARGE,
    TURN_CUT,
    Count,
    Fitted,
    Item,
    Pools,
    Shares,
    View,
    of_gap,
    same,
    shown,
    whole,
)
from limpet.core.values.context import CompactionLevel, ContextPriority, Fate, Ledger, LedgerEntry
from limpet.core.values.json_values import EMPTY
from limpet.core.values.messages import Message
from limpet.core.values.session_state import Summary


def fit(
    items: Sequence[Item],
    budget: int,
    *,
    count: Count,
    least: CompactionLevel = CompactionLevel.NONE,
    overhead: int = 0,
    shares: Shares = EMPTY,
    pools: Pools | None = None,
    flag: bool = False,
) -> Fitted:
    """Return the context of at most `budget` tokens; raise ContextOverflow if the critical items exceed it.

    `least` is the level to begin at, `overhead` the part of the budget that is not for items. `shares`
    are parts of the budget that categories may take, by their names; what is left over, all may. With
    `pools` items of high priority are admitted first, but the level does not rise for them. With `flag`
    what is critical comes back even where it exceeds the budget: its `room` is below 0 then.
    """
    for level in CompactionLevel:
        if level < least:
            continue
        fitting = _Fitting(items, budget - overhead, level, count, shares=shares, pools=pools)
        if fitting.musts_fit() or (flag and level is CompactionLevel.CRITICAL):
            fitting.admit()
            return fitting.result()
    raise _overflow(items, budget, overhead)


def _overflow(items: Sequence[Item], budget: int, overhead: int) -> errors.ContextOverflow:
    needed = [
        (_last_view(item).size, item)
        for item in items
        if item.priority is ContextPriority.CRITICAL and not item.barred
    ]
    required = sum(size for size, _ in needed) + overhead
    largest = sorted(needed, key=lambda one: (-one[0], one[1].first))[:3]
    where = [f"{i.name or f'#{i.first:,}'} {i.rule} ({size:,})" for size, i in largest]
    where += [f"reserve, tools and reply ({overhead:,})"] if overhead else []
    return errors.ContextOverflow(
        f"what must be in the context needs {required:,} tokens; the budget is {budget:,}.",
        hint=f"Nothing was dropped. Largest: {', '.join(where)}. Raise the budget to {required:,} at least.",
        facts={
            "required": required,
            "budget": budget,
            "largest": [[item.name or item.first, size] for size, item in largest],
        },
    )


def _last_view(item: Item) -> View:
    """Return what is left of a critical item at the last level."""
    return item.ladder(CompactionLevel.CRITICAL) if item.ladder else whole(item, item.rule)


class _Fitting:
    """One try at one level."""

    def __init__(
        self,
        items: Sequence[Item],
        budget: int,
        level: CompactionLevel,
        count: Count,
        *,
        shares: Shares,
        pools: Pools | None,
    ) -> None:
        self._items = items
        self._level = level
        self._count = count
        self._shares = shares
        self._pools = pools
        self._budget = self._room = budget
        self._placed: dict[int, View] = {}
        self._musts: frozenset[int] = frozenset()
        self._out: dict[int, str] = {}
        self._summaries: dict[int, tuple[Message, int, str]] = {}
        self._under: set[int] = set()

    def musts_fit(self) -> bool:
        """Put in what must be there; whether it fits."""
        critical = ContextPriority.CRITICAL
        for index, item in enumerate(self._items):
            if item.barred:
                self._out[index] = item.rule
            elif item.priority is critical:
                at_level = item.ladder
                self._put(index, at_level(self._level) if at_level else whole(item, item.rule))
        if self._level >= CompactionLevel.CRITICAL:
            return self._room >= 0
        if self._pools is not None:
            if self._room < 0:
                return False
            self._include()
        if self._level >= CompactionLevel.MODERATE:
            self._summarise()
        high = ContextPriority.HIGH
        found = [index for index, item in enumerate(self._items) if item.priority is high]
        for index in self._waiting(found):
            item = self._items[index]
            if self._needs(item):
                view = self._told(item) if item.tells else self._view(item, item.rule)
                self._put(index, view)
        return self._room >= 0

    def _needs(self, item: Item) -> bool:
        """Whether an item of high priority is a must-have."""
        if self._pools is not None:
            return item.tells or item.rule == ASKED
        return not (self._shares and item.rule == CONTEXT)

    def _include(self) -> None:
        """Put in what was asked for by name, as long as all but the fixed items take three quarters at most."""
        fixed = sum(self._placed[i].size for i in self._placed if self._items[i].ladder)
        most = (self._budget - fixed) * 3 // 4
        wanted = [i for i in self._waiting() if self._items[i].rule == INCLUDED]
        for index in sorted(wanted, key=lambda i: (-self._items[i].priority, -i)):
            view = self._view(self._items[index], INCLUDED)
            if self._budget - self._room - fixed + view.size <= most:
                self._put(index, view)

    def _told(self, item: Item) -> View:
        if self._level < CompactionLevel.MODERATE:
            return whole(item, item.rule)
        # It may have been written for larger windows: it must not drive out all that was said since.
        chars = int(self._budget * limits.SUMMARY_SHARE) * 2
        return self._shortened(item, lambda said: summary.shortened(said, chars), item.rule)

    def _waiting(self, among: Iterable[int] | None = None) -> list[int]:
        """Return the indexes, of some items or of all, that are neither in nor out nor under a summary."""
        under, placed, out = self._under, self._placed, self._out
        some = range(len(self._items)) if among is None else among
        return [i for i in some if i not in placed and i not in out and i not in under]

    def _put(self, index: int, view: View) -> None:
        self._placed[index] = view
        self._room -= view.size

    def _view(self, item: Item, rule: str) -> View:
        if self._level >= CompactionLevel.LIGHT:
            return self._shortened(item, item.light or shortening.light, rule)
        return whole(item, rule)

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
        for pool in dict.fromkeys(item.pool for item in self._items):
            newest, old, before = 0, list[int](), -1
            for index in range(len(self._items) - 1, -1, -1):
                item = self._items[index]
                if item.pool != pool:
                    continue
                if item.tells:
                    before = index
                    continue
                late = newest >= limits.NEWEST_MESSAGES
                if late and index not in self._placed and not item.barred:
                    old.append(index)
                newest += len(item.messages)
            if old:
                self._stand_for(pool, old[::-1], before)

    def _stand_for(self, pool: str, old: list[int], before: int) -> None:
        """Put one summary in the place of items of a pool, and of the one that the session has."""
        chars = int(self._budget * limits.SUMMARY_SHARE) * 2
        if pool and self._pools is not None:
            made = self._pools.summary([self._items[index] for index in old], chars)
            told = None
        else:
            messages = [m for index in old for m in self._items[index].messages]
            numbers = [(self._items[index].first, self._items[index].last) for index in old]
            told = _told(self._items[before]) if before >= 0 else None
            made = summary.summary_of(messages, numbers, chars=chars, before=told).message()
        size = self._count(made)
        # One summary at most: the session's own goes into this one.
        under = {*old, before} if told else set(old)
        self._summaries[min(under)] = (made, size, pool)
        self._under |= under
        self._room -= size

    def admit(self) -> None:
        """Put in what there is room for: by priority, then recency."""
        self._musts = frozenset(self._placed)
        items, waiting = self._items, self._waiting()
        size = sum([items[index].size for index in waiting])
        # Where there is room for all, it does not matter who comes first.
        if size <= self._room and self._level < CompactionLevel.LIGHT:
            views = {index: items[index].fits or whole(items[index], FITS) for index in waiting}
            self._placed.update(views)
            self._room -= size
        else:
            self._choose(waiting)
        cut = [index for index, rule in self._out.items() if rule == NO_ROOM]
        if cut:
            self._begin_with_a_question(max(cut) + 1)

    def _choose(self, waiting: Sequence[int]) -> None:
        """Put in some of what waits, and say of the others why not."""
        free = self._room
        classes: dict[ContextPriority, list[int]] = {}
        critical = self._level >= CompactionLevel.CRITICAL
        aggressive = self._level >= CompactionLevel.AGGRESSIVE
        for index in reversed(waiting):
            priority = self._items[index].priority
            if critical:
                self._out[index] = NOT_CRITICAL
            elif aggressive and priority <= ContextPriority.LOW:
                self._out[index] = LOW
            else:
                classes.setdefault(priority, []).append(index)
        shares = self._shares if self._pools is None else self._pools.shares
        base, full = self._budget if self._pools is None else free, set[str]()
        for priority in sorted(classes, reverse=True) if shares else ():
            left = classes[priority] = self._admit_shares(classes[priority], shares, base, full)
            if self._pools is not None:
                # What is less important waits for what did not go in: that may find room elsewhere.
                full.update(self._share_of(index) for index in left)
        for priority in sorted(classes, reverse=True):
            self._admit_newest(classes[priority])

    def _admit_shares(
        self, newest_first: Sequence[int], shares: Shares, base: int, closed: Set[str]
    ) -> list[int]:
        """Put in what is within the shares of its category or pool, the newest; return what has to wait.

        Nothing more goes into those that are `closed`.
        """
        used: dict[str, float] = {}
        for index, view in self._placed.items():
            # Pools share what the must-haves leave; categories share everything.
            if self._pools is None or index not in self._musts:
                name = self._share_of(index)
                used[name] = used.get(name, 0) + view.size
        waiting, full = list[int](), set(closed)
        for index in newest_first:
            item, name = self._items[index], self._share_of(index)
            most = shares.get(name, 0) * base
            view = None if name in full else self._fitting_view(item)
            if view is None or used.get(name, 0) + view.size > most:
                if not item.alone:
                    full.add(name)
                waiting.append(index)
            else:
                used[name] = used.get(name, 0) + view.size
                self._put(index, view)
        return waiting

    def _share_of(self, index: int) -> str:
        item = self._items[index]
        return item.messages[0].category.name if self._pools is None else item.pool

    def _admit_newest(self, newest_first: Sequence[int]) -> None:
        cut = False
        for index in newest_first:
            item = self._items[index]
            # What is older than a gap would be read as if it came right before what follows it.
            view = None if cut and not item.alone else self._fitting_view(item)
            if view is not None:
                self._put(index, view)
            elif item.alone:
                self._out[index] = TOO_LARGE
            else:
                self._out[index] = NO_ROOM
                cut = True

    def _fitting_view(self, item: Item) -> View | None:
        if item.fits is not None and self._level < CompactionLevel.LIGHT:
            view = item.fits
        else:
            view = self._view(item, FITS)
        if view.size <= self._room:
            return view
        # Of the current turn even a shortened result is worth more than none; so is high evidence.
        shorters = (shortening.light, shortening.stubbed) if item.now else ()
        if item.light is not None and item.priority is ContextPriority.HIGH:
            shorters = (item.light,)
        for shorter in shorters:
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
        messages, sizes, entries = list[Message](), list[int](), list[LedgerEntry]()
        stands_at = -1
        tells = {at for at, item in enumerate(self._items) if item.told and item.tells}
        told = not tells.isdisjoint((*self._placed, *self._under))
        placed, summaries = self._placed, self._summaries
        for index, item in enumerate(self._items):
            if index in summaries:
                made, size, pool = summaries[index]
                stands_at = len(messages) if not pool else stands_at
                messages.append(made)
                sizes.append(size)
            view = placed.get(index)
            if view is not None:
                if index in tells:
                    stands_at = len(messages)
                messages += view.messages
                sizes += view.tokens
                if view.account:
                    entries += view.account
                    continue
            if item.count:
                entries += [] if index in tells else [of_gap(item, told=told)]
            elif not item.pool:
                entries += self._entries(index, item, view)
        return Fitted(
            tuple(messages), tuple(sizes), self._budget - self._room, self._level,
            Ledger(tuple(entries)), stands_at, self._room, self._placed, self._out, self._under,
            {at: (made, size) for at, (made, size, _) in self._summaries.items()},
        )  # fmt: skip

    def _entries(self, index: int, item: Item, view: View | None) -> list[LedgerEntry]:
        if view is None:
            if index in self._under:
                return same(item, Fate.SUMMARISED, SUMMARISED)
            return same(item, Fate.LEFT_OUT, self._out[index])
        return shown(item, view)


def _told(item: Item) -> Summary:
    said = item.messages[0]
    return Summary(item.first, item.last, str(said.content), said.timestamp)
