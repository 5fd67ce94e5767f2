"""From a frame to its pack: brief context, breadcrumbs, conversation and evidence as items to be fitted.

Pure, but for asking for the content of handles, of which only those are asked for that can get in by
their estimated sizes. Estimates may be wrong: what is counted decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import compress, count
from operator import attrgetter
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.context import fitting, shortening, summary, wording
from limpet.context import items as rules
from limpet.context.items import Count, Fitted, Item, Pools, View
from limpet.context.packed import Talked
from limpet.context.window import Counted
from limpet.core.values.context import CompactionLevel, ContextHandle, ContextPriority
from limpet.core.values.frame_state import Frame, Scope
from limpet.core.values.messages import PREVALIDATED, Message, MessageCategory
from limpet.core.values.pack_parts import BriefContext

EVIDENCE: Final = "evidence"
FIXED: Final = "fixed"
SHARES: Final = {"": 0.6, EVIDENCE: 0.4}
"""What conversation and evidence have of what the must-haves leave, where both compete for it."""

CRITICAL: Final = "critical handle"
PINNED: Final = "pinned"
EXCLUDED: Final = "excluded by the caller"
UNSEEN: Final = "not looked at: by its estimated size there was no room"
UNRESOLVED: Final = "unresolved"

_BATCH = 64
"""Handles that are asked for at once."""

_LOOKED = 8
"""How many times its budget a pack looks at before it believes that estimates are wrong."""

_SEEN = 4
"""After how many handles it is believed that all take more than they say: at least what each of these did."""

_VAIN = 2
"""How many looks in vain, one after another, it takes to give up."""

_LIGHT_TOKENS = limits.LIGHT_CHARS // 3


class Found(msgspec.Struct, frozen=True):
    """The content of a handle, or why there is none; and the session, at a version, that it was copied from."""

    text: str | None
    fault: str = ""
    session: tuple[str, int] | None = None


Fetch = Callable[[Sequence[ContextHandle], bool], Mapping[str, Found]]
"""The content of handles by their ids. True: they must be there, so one that can't be found raises."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack is asked for: the frames from the root to its own, and all that goes into it.

    `conversation` are items of the session's messages, in order. `flag`: the pack may exceed its budget
    by what is critical, and says so.
    """

    ancestry: tuple[Frame, ...]
    scope: Scope
    brief: BriefContext
    budget: int
    assembled_at: str
    conversation: tuple[Item, ...] = ()
    talked: Talked | None = None
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    least: CompactionLevel = CompactionLevel.NONE
    flag: bool = False

    @property
    def frame(self) -> Frame:
        """The frame that the pack is for."""
        return self.ancestry[-1]


def checked_budget(budget: int) -> int:
    """Return the budget of a pack; raise BudgetTooSmall below limits.PACK_TOKENS_MIN."""
    if budget < limits.PACK_TOKENS_MIN:
        raise errors.BudgetTooSmall(
            f"a pack has at least {limits.PACK_TOKENS_MIN:,} tokens; {budget:,} are given.",
            hint="Give more, or release a reservation of the frame.",
            facts={"budget": budget, "budget_min": limits.PACK_TOKENS_MIN},
        )
    return budget


class Shown(msgspec.Struct, frozen=True):
    """A handle that was looked at: its number in the frame, its item, and the fence around its content.

    `session` is the one, at a version, that the content was copied from.
    """

    number: int
    handle: ContextHandle
    item: Item
    fence: wording.Fence
    session: tuple[str, int] | None = None


class Waiting:
    """Handles of one priority that nobody has to see, the newest first, by their indices in the frame."""

    def __init__(
        self, priority: ContextPriority, indices: Sequence[int], sizes: Sequence[int]
    ) -> None:
        self.priority = priority
        self.at = 0
        self._indices = indices
        self._sizes = sizes
        found = list(map(sizes.__getitem__, indices))
        self._smallest = min(found, default=0)
        self.count = len(found)
        self.tokens = sum(found)

    def within(
        self, room: int, spent: int, most: int, *, extra: int, each: int
    ) -> Iterator[tuple[int, int]]:
        """Yield indices and sizes, in order, of those that there is room for; `most` is what any takes at most.

        What is larger than the room is passed over; the first that would come too late waits. `extra` is
        what each takes besides, `each` is 0 if they are not added up.
        """
        if min(self._smallest, most) + extra > room:
            return
        indices, sizes = self._indices, self._sizes
        while self.at < len(indices):
            index = indices[self.at]
            size = min(sizes[index], most) + extra
            if size <= room:
                if spent + size > room:
                    return
                spent += size * each
                self.count -= 1
                self.tokens -= sizes[index]
                self.at += 1
                yield index, size
            else:
                self.at += 1


class Sorted:
    """The handles of a frame: those that must be in, and the rest by priority, then recency.

    There may be tens of thousands, so nothing is done for each that can be done for all.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.handles = handles = wanted.frame.context_handles
        self.excluded: list[ContextHandle] = []
        scores = bytes(map(attrgetter("priority"), handles))
        taken = set(compress(count(), map(attrgetter("pinned"), handles)))
        taken.update(_with(scores, ContextPriority.CRITICAL))
        if wanted.include or wanted.exclude:
            names = [handle.handle_id for handle in handles]
            out = {at for at, name in enumerate(names) if name in wanted.exclude}
            self.excluded = [handles[at] for at in sorted(out)]
            taken = (taken | {at for at, name in enumerate(names) if name in wanted.include}) - out
            gone = taken | out
        else:
            gone = taken
        self.musts = sorted(taken)
        sizes = list(map(attrgetter("size"), handles))
        self.waiting = [
            Waiting(priority, _newest(scores, priority, gone), sizes)
            for priority in ContextPriority
            if priority in scores
        ]


def _with(scores: bytes, priority: ContextPriority) -> list[int]:
    """Return the indices at which there is a score."""
    there = bytes(score == priority for score in range(256))
    return list(compress(range(len(scores)), scores.translate(there)))


def _newest(scores: bytes, priority: ContextPriority, gone: Set[int]) -> list[int]:
    found = _with(scores, priority)
    found.reverse()
    return [at for at in found if at not in gone] if gone else found


class Assembling:
    """One pack in the making."""

    def __init__(self, wanted: Wanted, fetch: Fetch, sized: Count, counted: Counted) -> None:
        self.wanted = wanted
        self.counted = counted
        self._fetch = fetch
        self._count = sized
        self.sorted = Sorted(wanted)
        self.shown: dict[int, Shown] = {}
        self.faults: list[tuple[ContextHandle, str]] = []
        self._looked = self._vain = self._seen = 0
        self._extra = limits.TOKENS_MAX
        # The frame's own moment, so that the same pack is the same whenever it is made.
        self._moment = wanted.frame.created_at

    def fitted(self) -> Fitted:
        """Return what fits; raise ContextOverflow if the critical items do not, unless flagged."""
        self._look(self.sorted.musts, must=True)
        free = self.wanted.budget - self.counted.overhead
        free -= sum(item.size for item in self.items if item.priority is ContextPriority.CRITICAL)
        # With a conversation beside it, evidence has its share first; what is left over comes later.
        first = int(free * SHARES[EVIDENCE]) if self.wanted.conversation else free
        self._look(self._next(first, self.wanted.least), must=False)
        placed = 0
        while True:
            fitted = fitting.fit(
                self.items,
                self.wanted.budget,
                count=self._count,
                least=self.wanted.least,
                overhead=self.counted.overhead,
                pools=Pools(SHARES, self._summary),
                flag=self.wanted.flag,
            )
            self._vain = 0 if len(fitted.placed) > placed else self._vain + 1
            placed = len(fitted.placed)
            more = self._next(self._room(fitted), fitted.level)
            if not more:
                return fitted
            self._look(more, must=False)

    @property
    def items(self) -> list[Item]:
        """What is fitted, in the order in which it is read."""
        evidence = [self.shown[number].item for number in sorted(self.shown)]
        told, rest = self._talk
        if self.asks:
            return [self._brief, *told, *evidence, *rest, self._crumbs]
        return [self._brief, self._crumbs, *told, *evidence, *rest]

    @cached_property
    def asks(self) -> bool:
        """Whether nobody asks anything in the conversation, so that the frame's goal is the question."""
        said = (m for item in self.wanted.conversation for m in item.messages if not item.barred)
        return all(message.role != "user" for message in said)

    @cached_property
    def _talk(self) -> tuple[list[Item], list[Item]]:
        """The conversation: the system messages that it begins with, and the rest."""
        talk = list(self.wanted.conversation)
        at = 0
        while at < len(talk) and all(m.role == "system" for m in talk[at].messages):
            at += 1
        return talk[:at], talk[at:]

    @cached_property
    def _brief(self) -> Item:
        return _fixed("brief context", self._brief_view)

    def _brief_view(self, level: CompactionLevel) -> View:
        given, scope = self.wanted.brief, self.wanted.scope
        view = self._system("pack_brief", wording.brief(given, scope, level))
        if level < CompactionLevel.MODERATE:
            return view
        for chars in (1_000, 500, 250, 120):
            if view.size <= limits.BRIEF_TOKENS:
                return view
            view = self._system("pack_brief", wording.brief(given, scope, level, chars))
        text = str(view.messages[0].content)
        for chars in (2_000, 1_400, 1_000, 700, 500, 300, 150):
            if view.size <= limits.BRIEF_TOKENS:
                break
            view = self._system("pack_brief", shortening.abbreviated(text, chars))
        return view

    @cached_property
    def _crumbs(self) -> Item:
        return _fixed("breadcrumbs", self._crumbs_view)

    def _crumbs_view(self, level: CompactionLevel) -> View:
        ancestry = self.wanted.ancestry
        text = wording.breadcrumbs(ancestry, level, asks=self.asks)
        view = self._system("pack_breadcrumbs", text, role="user" if self.asks else "system")
        if level < CompactionLevel.CRITICAL:
            size = max(view.size, limits.BREADCRUMB_TOKENS * len(ancestry))
            view = View(view.messages, (size,), size, view.rule)
        return view

    def _system(self, name: str, text: str, role: str = "system") -> View:
        message = self._message(name, text, role, MessageCategory.SYSTEM)
        size = self._count(message)
        return View((message,), (size,), size, name)

    def _message(self, name: str, text: str, role: str, category: MessageCategory) -> Message:
        # Nothing that callers wrote is in its fields but the text, which is checked where it comes in.
        return Message(role, text, category, name, self._moment, extra=PREVALIDATED)

    def _next(self, room: int, level: CompactionLevel) -> list[int]:
        """Return the next handles that can get in by their estimated sizes, in order, by their indices."""
        batch: list[int] = []
        spent = 0
        if room <= 0 or level is CompactionLevel.CRITICAL or self._weary():
            return batch
        # After a look in vain estimates are too small here: several at once may have one that fits.
        each, most_of = (0, 4**self._vain) if self._vain else (1, _BATCH)
        for waiting in self.sorted.waiting:
            if level >= CompactionLevel.AGGRESSIVE and waiting.priority <= ContextPriority.LOW:
                break
            high = waiting.priority is ContextPriority.HIGH
            most = _LIGHT_TOKENS if level or high else limits.TOKENS_MAX
            extra = self._extra if self._seen >= _SEEN else 0
            for index, size in waiting.within(room, spent, most, extra=extra, each=each):
                spent += size * each
                batch.append(index)
                if len(batch) >= most_of:
                    return batch
        return batch

    def _weary(self) -> bool:
        return self._vain > _VAIN or self._looked > _LOOKED * self.wanted.budget

    def _room(self, fitted: Fitted) -> int:
        """Return what is left for evidence: what nobody took, or what is left of its share."""
        talk = evidence = 0
        items = self.items
        for index, view in fitted.placed.items():
            item = items[index]
            if item.priority is not ContextPriority.CRITICAL and view.rule != rules.INCLUDED:
                talk += view.size if not item.pool else 0
                evidence += view.size if item.pool else 0
        share = int((talk + evidence + max(0, fitted.room)) * SHARES[EVIDENCE])
        return max(fitted.room, share - evidence)

    def _look(self, indices: Sequence[int], *, must: bool) -> None:
        if not indices:
            return
        handles = [self.sorted.handles[index] for index in indices]
        found = self._fetch(handles, must)
        for index, handle in zip(indices, handles, strict=True):
            content = found[handle.handle_id]
            if content.text is None:
                self.faults.append((handle, content.fault))
                continue
            shown = self._shown(index + 1, handle, content.text, content.session)
            self.shown[index + 1] = shown
            self._looked += shown.item.size
            self._seen += 1
            self._extra = max(0, min(self._extra, shown.item.size - handle.size))

    def _shown(
        self, number: int, handle: ContextHandle, text: str, session: tuple[str, int] | None
    ) -> Shown:
        fence = wording.fence(handle, text, number, len(self.sorted.handles))
        name = f"pack_{hashlib.sha256(handle.handle_id.encode()).hexdigest()[:24]}"
        message = self._message(name, fence.around(text), "user", MessageCategory.CONTEXT)
        size = self._count(message)
        priority, rule = handle.priority, ""
        if priority is ContextPriority.CRITICAL:
            rule = CRITICAL
        elif handle.pinned:
            priority, rule = ContextPriority.CRITICAL, PINNED
        elif handle.handle_id in self.wanted.include:
            rule = rules.INCLUDED

        def light(whole: Message) -> Message:
            shorter = fence.around(shortening.lighter(text))
            return msgspec.structs.replace(whole, content=shorter)

        item = Item(
            number, (message,), (size,), size, priority, rule,
            pool=EVIDENCE, name=f"handle {handle.handle_id}", alone=True, light=light,
        )  # fmt: skip
        return Shown(number, handle, item, fence, session)

    def _summary(self, under: Sequence[Item], chars: int) -> Message:
        """Return what stands for some of the evidence."""
        shown = [self.shown[item.first] for item in under]
        texts = [
            (one.handle.handle_id, one.fence.inside(str(one.item.messages[0].content)))
            for one in shown
        ]
        told = summary.extract_named(texts, chars)
        ids = [one.handle.handle_id for one in shown]
        step = len(self.sorted.handles)
        text = wording.summary_of(told, ids, step)
        return self._message("pack_summary", text, "user", MessageCategory.CONTEXT)


def _fixed(name: str, view: Callable[[CompactionLevel], View]) -> Item:
    """Return an item that is always there, in the form that each level has of it."""
    known: dict[CompactionLevel, View] = {}

    def ladder(level: CompactionLevel) -> View:
        if level not in known:
            made = view(level)
            # A counter may find fewer characters to be more tokens.
            below = ladder(CompactionLevel(level - 1)) if level else made
            known[level] = made if made.size < below.size else below
        return known[level]

    whole = ladder(CompactionLevel.NONE)
    return Item(
        0, whole.messages, whole.tokens, whole.size, ContextPriority.CRITICAL, "always there",
        pool=FIXED, name=name, alone=True, ladder=ladder,
    )  # fmt: skip
