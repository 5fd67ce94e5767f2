"""The fitting mechanism: prioritised items into a token budget, with a ledger entry for each item.

Pure: the same items, budget and counter give the same result. Required items are placed first. If they do not fit, the
compaction level rises until they do. The other items are admitted by priority, then recency. Items are never split: a
tool call stays with all of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import msgspec

from limpet import errors, limits
from limpet.core.values.context import CompactionLevel, ContextPriority, Fate, Ledger, LedgerEntry
from limpet.core.values.messages import Message
from limpet.core.values.session_state import Summary
from limpet.core.values.validation import EMPTY
from limpet.core.windows import summary

CountMessage = Callable[[Message], int]
"""Returns the tokens of a message, by the counter of the budget."""

BudgetShares = Mapping[str, float]
"""Parts of a budget by category or pool name."""

RULE_FITS = "newest first, while there is room"
RULE_NO_ROOM = "older than what there is room for"
RULE_TURN_CUT = "the question that it belongs to did not fit"
RULE_LOW_PRIORITY = "low priority at this level of compaction"
RULE_NOT_CRITICAL = "only critical items at this level of compaction"
RULE_SUMMARISED = "under the summary"
RULE_STUBBED = "output from before the current turn, named by its size"
RULE_SUMMARY_OF_CUT = "summary of what was cut"
RULE_CONTEXT = "context"
RULE_CUT_TURN_QUESTION = "question of a turn whose beginning was cut"
RULE_INCLUDED = "asked for by name"
RULE_TOO_LARGE = "larger than the room that was left"


class ItemView(msgspec.Struct, frozen=True, gc=False):
    """The form of an item in a context: its messages, whole or shortened, and their tokens.

    `entries` are its ledger entries, if they were made in advance.
    """

    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    size: int
    rule: str = ""
    entries: tuple[LedgerEntry, ...] = ()


class ContextItem(msgspec.Struct, frozen=True):
    """Messages that stay together, with their tokens. `first` is the number of the first message.

    An item without messages is a gap of `gap_count` messages that were not read; `summarised` if the session's summary
    covers them. The summary itself is an item with one message and the numbers that it covers. `original_sizes` are the
    sizes in the conversation of messages that were altered before, 0 for the others; it is empty if none was. `rule` is
    the reason of the priority or, if `excluded`, of the exclusion. `cached_view` is the view of the whole item with its
    ledger entries, if it was made in advance.

    An item outside the conversation has a `name` and a `pool` that it is counted in. A `standalone` item may be left out
    without leaving out older items. `shorten` is the item's own way to shorten its message. `view_at_level` returns the
    view of a critical item at each level, if it may be compacted.
    """

    first: int
    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    size: int
    priority: ContextPriority
    rule: str = ""
    excluded: bool = False
    begins_turn: bool = False
    in_current_turn: bool = False
    gap_count: int = 0
    summarised: bool = False
    original_sizes: tuple[int, ...] = ()
    cached_view: ItemView | None = None
    pool: str = ""
    name: str = ""
    standalone: bool = False
    shorten: Callable[[Message], Message] | None = None
    view_at_level: Callable[[CompactionLevel], ItemView] | None = None

    @property
    def last(self) -> int:
        return self.first + (self.gap_count or len(self.messages)) - 1

    @property
    def is_summary(self) -> bool:
        """Whether the item is the session's summary."""
        return self.summarised and bool(self.messages)


class ItemPools(msgspec.Struct, frozen=True):
    """Rules for items of several pools in one context.

    `shares` are parts, by pool, of the budget that required items leave. `summarise` returns the summary of items of a
    pool, with at most a number of characters.
    """

    shares: BudgetShares
    summarise: Callable[[Sequence[ContextItem], int], Message]


class FitResult(msgspec.Struct, frozen=True):
    """A fitted context: the messages in order, the tokens of each and of all, the level, and the ledger.

    `room` are the tokens that are left. By item index, `placed` are the views in the context, `left_out` the rules of
    items that are not in it, and `summarised` the items under a summary. `summaries` are keyed by the index of their
    first item.
    """

    messages: tuple[Message, ...]
    sizes: tuple[int, ...]
    tokens: int
    level: CompactionLevel
    ledger: Ledger
    summary_at: int
    room: int
    placed: Mapping[int, ItemView]
    left_out: Mapping[int, str]
    summarised: Set[int]
    summaries: Mapping[int, tuple[Message, int]]


def placed_entries(item: ContextItem, view: ItemView) -> list[LedgerEntry]:
    """Return the ledger entries of an item in the context."""
    if view.messages is item.messages and not item.original_sizes:
        return uniform_entries(item, Fate.KEPT, view.rule)
    entries: list[LedgerEntry] = []
    for number, message in enumerate(item.messages):
        at, used, rule = item.first + number, view.tokens[number], view.rule
        size, came = _original_size(item, number), view.messages[number] is message
        fate = Fate.KEPT if came and size == item.tokens[number] else Fate.SHORTENED
        if came and fate is Fate.SHORTENED:
            rule = RULE_STUBBED
        entries.append(LedgerEntry(at, at, fate, size, used, rule, message.category))
    return entries


def with_cached_view(item: ContextItem) -> ContextItem:
    """Return the item with its whole view and ledger entries made in advance."""
    account = tuple(placed_entries(item, whole_view(item, RULE_FITS)))
    fits = ItemView(item.messages, item.tokens, item.size, RULE_FITS, account)
    return msgspec.structs.replace(item, cached_view=fits)


def whole_view(item: ContextItem, rule: str) -> ItemView:
    """Return the view of the unchanged item."""
    return ItemView(item.messages, item.tokens, item.size, rule)


def _gap_entry(item: ContextItem, *, has_summary: bool) -> LedgerEntry:
    under = has_summary and item.summarised
    fate, rule = (Fate.SUMMARISED, RULE_SUMMARISED) if under else (Fate.LEFT_OUT, item.rule)
    return LedgerEntry(item.first, item.last, fate, item.size, 0, rule)


def _original_size(item: ContextItem, number: int) -> int:
    return (item.original_sizes[number] if item.original_sizes else 0) or item.tokens[number]


def uniform_entries(item: ContextItem, fate: Fate, rule: str) -> list[LedgerEntry]:
    """Return the ledger entries of an item whose messages all have the same fate."""
    entries: list[LedgerEntry] = []
    at, kept = item.first, fate is Fate.KEPT
    for number, message in enumerate(item.messages):
        size = _original_size(item, number) if item.original_sizes else item.tokens[number]
        entries.append(LedgerEntry(at, at, fate, size, size if kept else 0, rule, message.category))
        at += 1
    return entries


def fit(
    items: Sequence[ContextItem],
    budget: int,
    *,
    count: CountMessage,
    least: CompactionLevel = CompactionLevel.NONE,
    overhead: int = 0,
    shares: BudgetShares = EMPTY,
    pools: ItemPools | None = None,
    flag: bool = False,
) -> FitResult:
    """Return the context of at most `budget` tokens; raise ContextOverflow if the critical items exceed it.

    `least` is the lowest level to try, `overhead` the part of the budget that is not for items. `shares` limit
    categories to parts of the budget; remaining room is free for all. With `pools`, items of high priority are admitted
    first, but the level does not rise for them. With `flag`, critical items are returned even if they exceed the budget;
    `room` is negative then.
    """
    for level in CompactionLevel:
        if level < least:
            continue
        fitting = _FittingAttempt(items, budget - overhead, level, count, shares=shares, pools=pools)
        if fitting.place_required() or (flag and level is CompactionLevel.CRITICAL):
            fitting.admit()
            return fitting.result()
    raise _overflow_error(items, budget, overhead)


def _overflow_error(items: Sequence[ContextItem], budget: int, overhead: int) -> errors.ContextOverflow:
    needed = [
        (_critical_view(item).size, item)
        for item in items
        if item.priority is ContextPriority.CRITICAL and not item.excluded
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


def _critical_view(item: ContextItem) -> ItemView:
    return item.view_at_level(CompactionLevel.CRITICAL) if item.view_at_level else whole_view(item, item.rule)


class _FittingAttempt:
    def __init__(
        self,
        items: Sequence[ContextItem],
        budget: int,
        level: CompactionLevel,
        count: CountMessage,
        *,
        shares: BudgetShares,
        pools: ItemPools | None,
    ) -> None:
        self._items = items
        self._level = level
        self._count = count
        self._shares = shares
        self._pools = pools
        self._budget = self._room = budget
        self._placed: dict[int, ItemView] = {}
        self._required: frozenset[int] = frozenset()
        self._left_out: dict[int, str] = {}
        self._summaries: dict[int, tuple[Message, int, str]] = {}
        self._summarised: set[int] = set()

    def place_required(self) -> bool:
        critical = ContextPriority.CRITICAL
        for index, item in enumerate(self._items):
            if item.excluded:
                self._left_out[index] = item.rule
            elif item.priority is critical:
                at_level = item.view_at_level
                self._place(index, at_level(self._level) if at_level else whole_view(item, item.rule))
        if self._level >= CompactionLevel.CRITICAL:
            return self._room >= 0
        if self._pools is not None:
            if self._room < 0:
                return False
            self._place_included()
        if self._level >= CompactionLevel.MODERATE:
            self._summarise()
        high = ContextPriority.HIGH
        found = [index for index, item in enumerate(self._items) if item.priority is high]
        for index in self._undecided(found):
            item = self._items[index]
            if self._is_required(item):
                view = self._summary_view(item) if item.is_summary else self._view(item, item.rule)
                self._place(index, view)
        return self._room >= 0

    def _is_required(self, item: ContextItem) -> bool:
        if self._pools is not None:
            return item.is_summary or item.rule == RULE_CUT_TURN_QUESTION
        return not (self._shares and item.rule == RULE_CONTEXT)

    def _place_included(self) -> None:
        """Place items that the caller included, while all items but the fixed ones take at most three quarters."""
        fixed = sum(self._placed[i].size for i in self._placed if self._items[i].view_at_level)
        most = (self._budget - fixed) * 3 // 4
        wanted = [i for i in self._undecided() if self._items[i].rule == RULE_INCLUDED]
        for index in sorted(wanted, key=lambda i: (-self._items[i].priority, -i)):
            view = self._view(self._items[index], RULE_INCLUDED)
            if self._budget - self._room - fixed + view.size <= most:
                self._place(index, view)

    def _summary_view(self, item: ContextItem) -> ItemView:
        if self._level < CompactionLevel.MODERATE:
            return whole_view(item, item.rule)
        # A summary for a larger window must not displace the newer messages.
        chars = int(self._budget * limits.SUMMARY_SHARE) * 2
        return self._shortened(item, lambda message: summary.shorten_summary(message, chars), item.rule)

    def _undecided(self, among: Iterable[int] | None = None) -> list[int]:
        """Return the indices, of some items or of all, that are not placed, left out or summarised."""
        under, placed, out = self._summarised, self._placed, self._left_out
        some = range(len(self._items)) if among is None else among
        return [i for i in some if i not in placed and i not in out and i not in under]

    def _place(self, index: int, view: ItemView) -> None:
        self._placed[index] = view
        self._room -= view.size

    def _view(self, item: ContextItem, rule: str) -> ItemView:
        if self._level >= CompactionLevel.LIGHT:
            return self._shortened(item, item.shorten or summary.lighten_message, rule)
        return whole_view(item, rule)

    def _shortened(self, item: ContextItem, shorter: Callable[[Message], Message], rule: str) -> ItemView:
        messages, tokens = list[Message](), list[int]()
        for message, size in zip(item.messages, item.tokens, strict=True):
            made = shorter(message)
            made_size = size if made is message else self._count(made)
            # Fewer characters may be more tokens.
            messages.append(made if made_size < size else message)
            tokens.append(min(made_size, size))
        return ItemView(tuple(messages), tuple(tokens), sum(tokens), rule)

    def _summarise(self) -> None:
        for pool in dict.fromkeys(item.pool for item in self._items):
            newest, old, before = 0, list[int](), -1
            for index in range(len(self._items) - 1, -1, -1):
                item = self._items[index]
                if item.pool != pool:
                    continue
                if item.is_summary:
                    before = index
                    continue
                late = newest >= limits.NEWEST_MESSAGES
                if late and index not in self._placed and not item.excluded:
                    old.append(index)
                newest += len(item.messages)
            if old:
                self._place_summary(pool, old[::-1], before)

    def _place_summary(self, pool: str, old: list[int], before: int) -> None:
        """Replace items of a pool, and the session's summary, by one summary."""
        chars = int(self._budget * limits.SUMMARY_SHARE) * 2
        if pool and self._pools is not None:
            made = self._pools.summarise([self._items[index] for index in old], chars)
            told = None
        else:
            messages = [m for index in old for m in self._items[index].messages]
            numbers = [(self._items[index].first, self._items[index].last) for index in old]
            told = _item_summary(self._items[before]) if before >= 0 else None
            made = summary.summarise_messages(messages, numbers, chars=chars, before=told).message()
        size = self._count(made)
        # The session's summary is part of the new one, so that a context has one summary at most.
        under = {*old, before} if told else set(old)
        self._summaries[min(under)] = (made, size, pool)
        self._summarised |= under
        self._room -= size

    def admit(self) -> None:
        """Place the items for which there is room, by priority, then recency."""
        self._required = frozenset(self._placed)
        items, waiting = self._items, self._undecided()
        size = sum([items[index].size for index in waiting])
        # If all items fit, their order does not matter.
        if size <= self._room and self._level < CompactionLevel.LIGHT:
            views = {index: items[index].cached_view or whole_view(items[index], RULE_FITS) for index in waiting}
            self._placed.update(views)
            self._room -= size
        else:
            self._admit_by_priority(waiting)
        cut = [index for index, rule in self._left_out.items() if rule == RULE_NO_ROOM]
        if cut:
            self._drop_turn_without_question(max(cut) + 1)

    def _admit_by_priority(self, waiting: Sequence[int]) -> None:
        free = self._room
        classes: dict[ContextPriority, list[int]] = {}
        critical = self._level >= CompactionLevel.CRITICAL
        aggressive = self._level >= CompactionLevel.AGGRESSIVE
        for index in reversed(waiting):
            priority = self._items[index].priority
            if critical:
                self._left_out[index] = RULE_NOT_CRITICAL
            elif aggressive and priority <= ContextPriority.LOW:
                self._left_out[index] = RULE_LOW_PRIORITY
            else:
                classes.setdefault(priority, []).append(index)
        shares = self._shares if self._pools is None else self._pools.shares
        base, full = self._budget if self._pools is None else free, set[str]()
        for priority in sorted(classes, reverse=True) if shares else ():
            left = classes[priority] = self._admit_shares(classes[priority], shares, base, full)
            if self._pools is not None:
                # Less important items of a share wait until its waiting items were tried with the remaining room.
                full.update(self._share_of(index) for index in left)
        for priority in sorted(classes, reverse=True):
            self._admit_newest(classes[priority])

    def _admit_shares(
        self, newest_first: Sequence[int], shares: BudgetShares, base: int, closed: Set[str]
    ) -> list[int]:
        """Place the newest items within the share of their category or pool; return the indices of the others.

        Nothing is placed in the `closed` shares.
        """
        used: dict[str, float] = {}
        for index, view in self._placed.items():
            # Pools share the room beside required items; categories share the whole budget.
            if self._pools is None or index not in self._required:
                name = self._share_of(index)
                used[name] = used.get(name, 0) + view.size
        waiting, full = list[int](), set(closed)
        for index in newest_first:
            item, name = self._items[index], self._share_of(index)
            most = shares.get(name, 0) * base
            view = None if name in full else self._fitting_view(item)
            if view is None or used.get(name, 0) + view.size > most:
                if not item.standalone:
                    full.add(name)
                waiting.append(index)
            else:
                used[name] = used.get(name, 0) + view.size
                self._place(index, view)
        return waiting

    def _share_of(self, index: int) -> str:
        item = self._items[index]
        return item.messages[0].category.name if self._pools is None else item.pool

    def _admit_newest(self, newest_first: Sequence[int]) -> None:
        cut = False
        for index in newest_first:
            item = self._items[index]
            # A model would read an item before a gap as if it came right before the item after it.
            view = None if cut and not item.standalone else self._fitting_view(item)
            if view is not None:
                self._place(index, view)
            elif item.standalone:
                self._left_out[index] = RULE_TOO_LARGE
            else:
                self._left_out[index] = RULE_NO_ROOM
                cut = True

    def _fitting_view(self, item: ContextItem) -> ItemView | None:
        if item.cached_view is not None and self._level < CompactionLevel.LIGHT:
            view = item.cached_view
        else:
            view = self._view(item, RULE_FITS)
        if view.size <= self._room:
            return view
        # Items of the current turn and evidence of high priority are shortened rather than left out.
        shorters = (summary.lighten_message, summary.stub_tool_output) if item.in_current_turn else ()
        if item.shorten is not None and item.priority is ContextPriority.HIGH:
            shorters = (item.shorten,)
        for shorter in shorters:
            view = self._shortened(item, shorter, RULE_FITS)
            if view.size <= self._room:
                return view
        return None

    def _drop_turn_without_question(self, start: int) -> None:
        before = [i for i in range(start) if i in self._placed and not self._items[i].is_summary]
        if before and self._items[before[-1]].rule == RULE_CUT_TURN_QUESTION:
            return
        for index in range(start, len(self._items)):
            item = self._items[index]
            if item.begins_turn or item.in_current_turn:
                return
            view = self._placed.get(index)
            if view is not None and view.rule == RULE_FITS:
                del self._placed[index]
                self._left_out[index] = RULE_TURN_CUT
                self._room += view.size

    def result(self) -> FitResult:
        messages, sizes, entries = list[Message](), list[int](), list[LedgerEntry]()
        stands_at = -1
        tells = {at for at, item in enumerate(self._items) if item.summarised and item.is_summary}
        has_summary = not tells.isdisjoint((*self._placed, *self._summarised))
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
                if view.entries:
                    entries += view.entries
                    continue
            if item.gap_count:
                entries += [] if index in tells else [_gap_entry(item, has_summary=has_summary)]
            elif not item.pool:
                entries += self._entries(index, item, view)
        return FitResult(
            tuple(messages), tuple(sizes), self._budget - self._room, self._level,
            Ledger(tuple(entries)), stands_at, self._room, self._placed, self._left_out, self._summarised,
            {at: (made, size) for at, (made, size, _) in self._summaries.items()},
        )  # fmt: skip

    def _entries(self, index: int, item: ContextItem, view: ItemView | None) -> list[LedgerEntry]:
        if view is None:
            if index in self._summarised:
                return uniform_entries(item, Fate.SUMMARISED, RULE_SUMMARISED)
            return uniform_entries(item, Fate.LEFT_OUT, self._left_out[index])
        return placed_entries(item, view)


def _item_summary(item: ContextItem) -> Summary:
    said = item.messages[0]
    return Summary(item.first, item.last, str(said.content), said.timestamp)
