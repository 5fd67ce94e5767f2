"""Assembly of a pack: brief, breadcrumbs, conversation and evidence, fitted into a budget.

Pure, except for the callback that reads the content of handles. Only handles whose estimated size can fit are read.
Estimates may be wrong: the counted size decides.
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
from limpet.core.values.context import CompactionLevel, ContextHandle, ContextPriority, Fate
from limpet.core.values.frame_state import Frame, Scope
from limpet.core.values.messages import PREVALIDATED, Message, MessageCategory
from limpet.core.windows import fitter, pack, summary
from limpet.core.windows.fitter import ContextItem, CountMessage, FitResult, ItemPools, ItemView
from limpet.core.windows.pack import (
    SEGMENT_TYPE_OF_HANDLE,
    SOURCE_BREADCRUMBS,
    SOURCE_BRIEF,
    SOURCE_EVIDENCE_SUMMARY,
    SOURCE_HANDLE,
    SOURCE_MESSAGE,
    SOURCE_SUMMARY,
    BriefContext,
    ContextPack,
    ContextPackMetadata,
    ContextSegment,
    ConversationMoment,
    FrameBreadcrumb,
    HandleEntry,
    PackDraft,
    PackLedger,
    PackSource,
    SegmentType,
    message_segment,
)
from limpet.core.windows.window import CounterInfo

EVIDENCE_POOL: Final = "evidence"
FIXED_POOL: Final = "fixed"
POOL_SHARES: Final = {"": 0.6, EVIDENCE_POOL: 0.4}
"""The shares of conversation and evidence in the budget beside required items, if both compete for it."""

RULE_CRITICAL_HANDLE: Final = "critical handle"
RULE_PINNED: Final = "pinned"
RULE_EXCLUDED: Final = "excluded by the caller"
RULE_NOT_READ: Final = "not looked at: by its estimated size there was no room"
RULE_UNRESOLVED: Final = "unresolved"

_BATCH_HANDLES_MAX = 64
"""Handles that are read at once."""

_READ_BUDGETS_MAX = 8
"""Tokens that a pack reads, in multiples of its budget, before it stops: the estimates are wrong then."""

_SIZE_SAMPLES_MIN = 4
"""Handles after whose reading the smallest excess over an estimate is added to all estimates."""

_FRUITLESS_READS_MAX = 2
"""Consecutive reads without a fitting handle after which reading stops."""

_LIGHT_TOKENS = limits.LIGHT_CHARS // 3


class HandleContent(msgspec.Struct, frozen=True):
    """The content of a handle or a fault, and the session, with a version, that the content was copied from."""

    text: str | None
    fault: str = ""
    session: tuple[str, int] | None = None


FetchContents = Callable[[Sequence[ContextHandle], bool], Mapping[str, HandleContent]]
"""Returns the content of handles by id. With True, a handle without content raises HandleUnresolved."""


class PackInput(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a pack: the frames from the root to its own, the brief, the conversation and the options.

    `conversation` are items of the session's messages, in order. With `allow_overflow`, critical items may exceed the
    budget.
    """

    ancestry: tuple[Frame, ...]
    scope: Scope
    brief: BriefContext
    budget: int
    assembled_at: str
    conversation: tuple[ContextItem, ...] = ()
    conversation_moment: ConversationMoment | None = None
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    level_min: CompactionLevel = CompactionLevel.NONE
    allow_overflow: bool = False

    @property
    def frame(self) -> Frame:
        """The frame of the pack."""
        return self.ancestry[-1]


def checked_pack_budget(budget: int) -> int:
    """Return the budget of a pack; raise BudgetTooSmall below limits.PACK_TOKENS_MIN."""
    if budget < limits.PACK_TOKENS_MIN:
        raise errors.BudgetTooSmall(
            f"a pack has at least {limits.PACK_TOKENS_MIN:,} tokens; {budget:,} are given.",
            hint="Give more, or release a reservation of the frame.",
            facts={"budget": budget, "budget_min": limits.PACK_TOKENS_MIN},
        )
    return budget


class EvidenceItem(msgspec.Struct, frozen=True):
    """A handle that was read: its item and fence, and the session, with a version, that it was copied from."""

    handle: ContextHandle
    item: ContextItem
    fence: pack.EvidenceFence
    session: tuple[str, int] | None = None


class HandleQueue:
    """Optional handles of one priority, newest first, by their indices in the frame."""

    def __init__(self, priority: ContextPriority, indices: Sequence[int], sizes: Sequence[int]) -> None:
        self.priority = priority
        self.position = 0
        self._indices = indices
        self._sizes = sizes
        found = list(map(sizes.__getitem__, indices))
        self._smallest = min(found, default=0)
        self.count = len(found)
        self.tokens = sum(found)

    def take_within(self, room: int, spent: int, most: int, *, extra: int, each: int) -> Iterator[tuple[int, int]]:
        """Yield index and size of the next handles that fit into `room`, of which `spent` is used.

        Handles larger than the whole room are skipped; the first handle larger than the rest of it stays in the queue.
        A handle takes at most `most` tokens plus `extra`. `each` is 0 if sizes are not added up, else 1.
        """
        if min(self._smallest, most) + extra > room:
            return
        indices, sizes = self._indices, self._sizes
        while self.position < len(indices):
            index = indices[self.position]
            size = min(sizes[index], most) + extra
            if size <= room:
                if spent + size > room:
                    return
                spent += size * each
                self.count -= 1
                self.tokens -= sizes[index]
                self.position += 1
                yield index, size
            else:
                self.position += 1


class SortedHandles:
    """The handles of a frame: the required ones, and queues of the others by priority, then recency.

    A frame may have tens of thousands of handles, so this uses C-level loops instead of a Python loop.
    """

    def __init__(self, wanted: PackInput) -> None:
        self.handles = handles = wanted.frame.context_handles
        self.excluded: list[ContextHandle] = []
        scores = bytes(map(attrgetter("priority"), handles))
        taken = set(compress(count(), map(attrgetter("pinned"), handles)))
        taken.update(_indices_with_priority(scores, ContextPriority.CRITICAL))
        if wanted.include or wanted.exclude:
            names = [handle.handle_id for handle in handles]
            out = {at for at, name in enumerate(names) if name in wanted.exclude}
            self.excluded = [handles[at] for at in sorted(out)]
            taken = (taken | {at for at, name in enumerate(names) if name in wanted.include}) - out
            gone = taken | out
        else:
            gone = taken
        self.required = sorted(taken)
        sizes = list(map(attrgetter("size"), handles))
        self.queues = [
            HandleQueue(priority, _newest_first(scores, priority, gone), sizes)
            for priority in ContextPriority
            if priority in scores
        ]


def _indices_with_priority(scores: bytes, priority: ContextPriority) -> list[int]:
    there = bytes(score == priority for score in range(256))
    return list(compress(range(len(scores)), scores.translate(there)))


def _newest_first(scores: bytes, priority: ContextPriority, gone: Set[int]) -> list[int]:
    found = _indices_with_priority(scores, priority)
    found.reverse()
    return [at for at in found if at not in gone] if gone else found


class PackAssembler:
    """Reads and fits the items of one pack."""

    def __init__(self, wanted: PackInput, fetch: FetchContents, sized: CountMessage, counted: CounterInfo) -> None:
        self.wanted = wanted
        self.counted = counted
        self._fetch = fetch
        self._count = sized
        self.handles = SortedHandles(wanted)
        self.evidence: dict[int, EvidenceItem] = {}
        self.faults: list[tuple[ContextHandle, str]] = []
        self._tokens_read = self._fruitless_reads = self._handles_read = 0
        self._extra = limits.TOKENS_MAX
        # The frame's time, so that equal packs are equal whenever they are made.
        self._timestamp = wanted.frame.created_at

    def fit(self) -> FitResult:
        """Return the fitted items; raise ContextOverflow if the critical items do not fit, unless that is allowed."""
        self._read_handles(self.handles.required, must=True)
        free = self.wanted.budget - self.counted.overhead
        free -= sum(item.size for item in self.items if item.priority is ContextPriority.CRITICAL)
        # Beside a conversation, evidence is read for its share first, and for the remaining room later.
        first = int(free * POOL_SHARES[EVIDENCE_POOL]) if self.wanted.conversation else free
        self._read_handles(self._next_handles(first, self.wanted.level_min), must=False)
        placed = 0
        while True:
            fitted = fitter.fit(
                self.items,
                self.wanted.budget,
                count=self._count,
                least=self.wanted.level_min,
                overhead=self.counted.overhead,
                pools=ItemPools(POOL_SHARES, self._summary),
                flag=self.wanted.allow_overflow,
            )
            self._fruitless_reads = 0 if len(fitted.placed) > placed else self._fruitless_reads + 1
            placed = len(fitted.placed)
            more = self._next_handles(self._evidence_room(fitted), fitted.level)
            if not more:
                return fitted
            self._read_handles(more, must=False)

    @property
    def items(self) -> list[ContextItem]:
        """The items of the pack, in the order of its messages."""
        evidence = [self.evidence[number].item for number in sorted(self.evidence)]
        told, rest = self._split_conversation
        if self.goal_is_question:
            return [self._brief, *told, *evidence, *rest, self._breadcrumbs]
        return [self._brief, self._breadcrumbs, *told, *evidence, *rest]

    @cached_property
    def goal_is_question(self) -> bool:
        """Whether the frame's goal is the question, because the conversation has no user message."""
        said = (m for item in self.wanted.conversation for m in item.messages if not item.excluded)
        return all(message.role != "user" for message in said)

    @cached_property
    def _split_conversation(self) -> tuple[list[ContextItem], list[ContextItem]]:
        """The system messages at the beginning of the conversation, and the other messages."""
        talk = list(self.wanted.conversation)
        at = 0
        while at < len(talk) and all(m.role == "system" for m in talk[at].messages):
            at += 1
        return talk[:at], talk[at:]

    @cached_property
    def _brief(self) -> ContextItem:
        return _fixed_item("brief context", self._brief_view)

    def _brief_view(self, level: CompactionLevel) -> ItemView:
        given, scope = self.wanted.brief, self.wanted.scope
        view = self._text_view("pack_brief", pack.brief_text(given, scope, level))
        if level < CompactionLevel.MODERATE:
            return view
        for chars in (1_000, 500, 250, 120):
            if view.size <= limits.BRIEF_TOKENS:
                return view
            view = self._text_view("pack_brief", pack.brief_text(given, scope, level, chars))
        text = str(view.messages[0].content)
        for chars in (2_000, 1_400, 1_000, 700, 500, 300, 150):
            if view.size <= limits.BRIEF_TOKENS:
                break
            view = self._text_view("pack_brief", summary.abbreviate(text, chars))
        return view

    @cached_property
    def _breadcrumbs(self) -> ContextItem:
        return _fixed_item("breadcrumbs", self._breadcrumbs_view)

    def _breadcrumbs_view(self, level: CompactionLevel) -> ItemView:
        ancestry = self.wanted.ancestry
        text = pack.breadcrumbs_text(ancestry, level, asks=self.goal_is_question)
        view = self._text_view("pack_breadcrumbs", text, role="user" if self.goal_is_question else "system")
        if level < CompactionLevel.CRITICAL:
            size = max(view.size, limits.BREADCRUMB_TOKENS * len(ancestry))
            view = ItemView(view.messages, (size,), size, view.rule)
        return view

    def _text_view(self, name: str, text: str, role: str = "system") -> ItemView:
        message = self._message(name, text, role, MessageCategory.SYSTEM)
        size = self._count(message)
        return ItemView((message,), (size,), size, name)

    def _message(self, name: str, text: str, role: str, category: MessageCategory) -> Message:
        # The text was checked at its intake, and all other fields are made here.
        return Message(role, text, category, name, self._timestamp, extra=PREVALIDATED)

    def _next_handles(self, room: int, level: CompactionLevel) -> list[int]:
        """Return the indices of the next handles that can fit by their estimated sizes."""
        batch: list[int] = []
        spent = 0
        gives_up = (
            self._fruitless_reads > _FRUITLESS_READS_MAX or self._tokens_read > _READ_BUDGETS_MAX * self.wanted.budget
        )
        if room <= 0 or level is CompactionLevel.CRITICAL or gives_up:
            return batch
        # After a fruitless read the estimates are too small: of several handles at once, one may fit.
        each, most_of = (0, 4**self._fruitless_reads) if self._fruitless_reads else (1, _BATCH_HANDLES_MAX)
        for waiting in self.handles.queues:
            if level >= CompactionLevel.AGGRESSIVE and waiting.priority <= ContextPriority.LOW:
                break
            high = waiting.priority is ContextPriority.HIGH
            most = _LIGHT_TOKENS if level or high else limits.TOKENS_MAX
            extra = self._extra if self._handles_read >= _SIZE_SAMPLES_MIN else 0
            for index, size in waiting.take_within(room, spent, most, extra=extra, each=each):
                spent += size * each
                batch.append(index)
                if len(batch) >= most_of:
                    return batch
        return batch

    def _evidence_room(self, fitted: FitResult) -> int:
        """Return the room for evidence: the free room or the rest of its share, whichever is larger."""
        talk = evidence = 0
        items = self.items
        for index, view in fitted.placed.items():
            item = items[index]
            if item.priority is not ContextPriority.CRITICAL and view.rule != fitter.RULE_INCLUDED:
                talk += view.size if not item.pool else 0
                evidence += view.size if item.pool else 0
        share = int((talk + evidence + max(0, fitted.room)) * POOL_SHARES[EVIDENCE_POOL])
        return max(fitted.room, share - evidence)

    def _read_handles(self, indices: Sequence[int], *, must: bool) -> None:
        if not indices:
            return
        handles = [self.handles.handles[index] for index in indices]
        found = self._fetch(handles, must)
        for index, handle in zip(indices, handles, strict=True):
            content = found[handle.handle_id]
            if content.text is None:
                self.faults.append((handle, content.fault))
                continue
            shown = self._evidence_item(index + 1, handle, content.text, content.session)
            self.evidence[index + 1] = shown
            self._tokens_read += shown.item.size
            self._handles_read += 1
            self._extra = max(0, min(self._extra, shown.item.size - handle.size))

    def _evidence_item(
        self, number: int, handle: ContextHandle, text: str, session: tuple[str, int] | None
    ) -> EvidenceItem:
        fence = pack.make_fence(handle, text, number, len(self.handles.handles))
        name = f"pack_{hashlib.sha256(handle.handle_id.encode()).hexdigest()[:24]}"
        message = self._message(name, fence.wrap(text), "user", MessageCategory.CONTEXT)
        size = self._count(message)
        priority, rule = handle.priority, ""
        if priority is ContextPriority.CRITICAL:
            rule = RULE_CRITICAL_HANDLE
        elif handle.pinned:
            priority, rule = ContextPriority.CRITICAL, RULE_PINNED
        elif handle.handle_id in self.wanted.include:
            rule = fitter.RULE_INCLUDED

        def light(whole: Message) -> Message:
            shorter = fence.wrap(summary.lighten_text(text))
            return msgspec.structs.replace(whole, content=shorter)

        item = ContextItem(
            number, (message,), (size,), size, priority, rule,
            pool=EVIDENCE_POOL, name=f"handle {handle.handle_id}", standalone=True, shorten=light,
        )  # fmt: skip
        return EvidenceItem(handle, item, fence, session)

    def _summary(self, under: Sequence[ContextItem], chars: int) -> Message:
        shown = [self.evidence[item.first] for item in under]
        texts = [(one.handle.handle_id, one.fence.unwrap(str(one.item.messages[0].content))) for one in shown]
        told = summary.extract_named_sentences(texts, chars)
        ids = [one.handle.handle_id for one in shown]
        step = len(self.handles.handles)
        text = pack.evidence_summary_text(told, ids, step)
        return self._message("pack_summary", text, "user", MessageCategory.CONTEXT)


def _fixed_item(name: str, view: Callable[[CompactionLevel], ItemView]) -> ContextItem:
    known: dict[CompactionLevel, ItemView] = {}

    def ladder(level: CompactionLevel) -> ItemView:
        if level not in known:
            made = view(level)
            # Fewer characters may be more tokens.
            below = ladder(CompactionLevel(level - 1)) if level else made
            known[level] = made if made.size < below.size else below
        return known[level]

    whole = ladder(CompactionLevel.NONE)
    return ContextItem(
        0, whole.messages, whole.tokens, whole.size, ContextPriority.CRITICAL, "always there",
        pool=FIXED_POOL, name=name, standalone=True, view_at_level=ladder,
    )  # fmt: skip


def assemble(wanted: PackInput, fetch: FetchContents, *, count: CountMessage, counted: CounterInfo) -> ContextPack:
    """Return the pack of a frame, within its budget unless critical items may exceed it.

    Raises BudgetTooSmall, HandleUnresolved for a required handle without content, and ContextOverflow if the critical
    items do not fit.
    """
    checked_pack_budget(wanted.budget)
    work = PackAssembler(wanted, fetch, count, counted)
    try:
        fitted = work.fit()
    except errors.ContextOverflow as error:
        critical = ContextPriority.CRITICAL
        kept = [one.handle.handle_id for one in work.evidence.values() if one.item.priority is critical]
        error.facts |= {"frame": wanted.frame.frame_id, "critical_handles": sorted(kept)}
        raise
    return _PackBuilder(work, fitted).build()


class _PackBuilder:
    def __init__(self, work: PackAssembler, fitted: FitResult) -> None:
        self._work = work
        self._wanted = work.wanted
        self._fitted = fitted
        self._items = work.items
        self._draft = PackDraft()

    def build(self) -> ContextPack:
        for index, item in enumerate(self._items):
            if index in self._fitted.summaries:
                self._add_summary(index, item)
            view = self._fitted.placed.get(index)
            if view is not None:
                self._add(item, view)
        level = self._fitted.level
        shown = pack.shown_frames(self._wanted.ancestry, level)
        return self._draft.finish(
            self._metadata(),
            tuple(FrameBreadcrumb(f.frame_id, f.goal, f.status, f.depth) for f in shown),
            PackLedger(tuple(self._entries()), self._fitted.ledger),
            budget=self._wanted.budget,
            level=level,
            counted=self._work.counted,
            moment=self._wanted.conversation_moment,
        )

    def _add_summary(self, index: int, item: ContextItem) -> None:
        message, size = self._fitted.summaries[index]
        source = PackSource(SOURCE_SUMMARY)
        if item.pool:
            under = (one for at, one in enumerate(self._items) if at in self._fitted.summarised)
            shown = [self._work.evidence[one.first] for one in under if one.pool == EVIDENCE_POOL]
            source = PackSource(SOURCE_EVIDENCE_SUMMARY, sessions=_source_sessions(shown))
        segment = ContextSegment(
            segment_type=SegmentType.SUMMARY,
            priority=ContextPriority.MEDIUM,
            content=str(message.content),
            estimated_tokens=size,
            shortened=True,
        )
        self._draft.append(message, size, source, segment)

    def _add(self, item: ContextItem, view: ItemView) -> None:
        if item.pool == FIXED_POOL:
            kind = SOURCE_BRIEF if item is self._items[0] else SOURCE_BREADCRUMBS
            self._draft.append(view.messages[0], view.size, PackSource(kind))
        elif item.pool:
            self._add_evidence(item, view)
        elif item.is_summary:
            segment = message_segment(view.messages[0], view.size, item.priority, SegmentType.SUMMARY, shortened=False)
            self._draft.append(view.messages[0], view.size, PackSource(SOURCE_SUMMARY), segment)
        else:
            for at, message in enumerate(view.messages):
                came = message is item.messages[at] and not (item.original_sizes and item.original_sizes[at])
                source, size = PackSource(SOURCE_MESSAGE, None, item.first + at, not came), view.tokens[at]
                kind = SegmentType.CONVERSATION
                segment = message_segment(message, size, item.priority, kind, shortened=not came)
                self._draft.append(message, size, source, segment)

    def _add_evidence(self, item: ContextItem, view: ItemView) -> None:
        shown = self._work.evidence[item.first]
        message, handle = view.messages[0], shown.handle
        shortened = message is not item.messages[0]
        source = PackSource(SOURCE_HANDLE, handle.handle_id, 0, shortened, _source_sessions([shown]))
        segment = ContextSegment(
            segment_type=SEGMENT_TYPE_OF_HANDLE[handle.handle_type],
            priority=handle.priority,
            content=shown.fence.unwrap(str(message.content)),
            estimated_tokens=view.size,
            handle_id=handle.handle_id,
            shortened=shortened,
        )
        self._draft.append(message, view.size, source, segment)

    def _metadata(self) -> ContextPackMetadata:
        wanted, known = self._wanted, set[str]()
        if wanted.include or wanted.exclude:
            known = {handle.handle_id for handle in wanted.frame.context_handles}
        return ContextPackMetadata(
            frame_id=wanted.frame.frame_id, scope=wanted.scope, role=wanted.brief.role,
            assembled_at=wanted.assembled_at, unknown_includes=tuple(sorted(wanted.include - known)),
            unknown_excludes=tuple(sorted(wanted.exclude - known)),
        )  # fmt: skip

    def _entries(self) -> Iterator[HandleEntry]:
        for index, item in enumerate(self._items):
            if item.pool == EVIDENCE_POOL:
                yield self._entry(index, item)
        for handle, fault in self._work.faults:
            yield _left_out_entry(handle, f"{RULE_UNRESOLVED}: {fault}")
        for handle in self._work.handles.excluded:
            yield _left_out_entry(handle, RULE_EXCLUDED)
        yield from self._unread_entries()

    def _entry(self, index: int, item: ContextItem) -> HandleEntry:
        handle = self._work.evidence[item.first].handle
        view = self._fitted.placed.get(index)
        fate, rule, used = Fate.LEFT_OUT, "", 0
        if view is not None:
            same = view.messages[0] is item.messages[0]
            fate, rule = Fate.KEPT if same else Fate.SHORTENED, view.rule
            used = view.size
        elif index in self._fitted.summarised:
            fate, rule = Fate.SUMMARISED, fitter.RULE_SUMMARISED
        else:
            rule = self._fitted.left_out[index]
        return HandleEntry(
            fate=fate, rule=rule, priority=handle.priority, tokens=item.size, used=used, handle_id=handle.handle_id
        )

    def _unread_entries(self) -> Iterator[HandleEntry]:
        """Yield one entry for all handles of a priority that were not read."""
        level = self._fitted.level
        for waiting in self._work.handles.queues:
            if not waiting.count:
                continue
            priority = waiting.priority
            rule = RULE_NOT_READ
            if level is CompactionLevel.CRITICAL:
                rule = fitter.RULE_NOT_CRITICAL
            elif level is CompactionLevel.AGGRESSIVE and priority <= ContextPriority.LOW:
                rule = fitter.RULE_LOW_PRIORITY
            yield HandleEntry(
                fate=Fate.LEFT_OUT, rule=rule, priority=priority, tokens=waiting.tokens, count=waiting.count
            )


def _source_sessions(shown: Sequence[EvidenceItem]) -> tuple[tuple[str, int], ...]:
    return tuple(dict.fromkeys(one.session for one in shown if one.session is not None))


def _left_out_entry(handle: ContextHandle, rule: str) -> HandleEntry:
    return HandleEntry(
        fate=Fate.LEFT_OUT, rule=rule, priority=handle.priority, tokens=handle.size, handle_id=handle.handle_id
    )
