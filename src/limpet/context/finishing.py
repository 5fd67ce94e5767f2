"""The end of a pack: what was fitted as typed segments with their account, and the hash of it all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from limpet import errors
from limpet.context import items as rules
from limpet.context import pack as packs
from limpet.context.items import Count, Fitted, Item, View
from limpet.context.pack import Assembling, Fetch, Shown, Wanted
from limpet.context.packed import (
    BREADCRUMBS,
    BRIEF,
    EVIDENCE_SUMMARY,
    HANDLE,
    SAID,
    SUMMARY,
    ContextPack,
    Source,
    context_hash,
)
from limpet.context.summary import text_of
from limpet.context.window import Counted
from limpet.core.values.context import CompactionLevel, ContextHandle, ContextPriority, Fate
from limpet.core.values.frame_state import Frame
from limpet.core.values.messages import Message
from limpet.core.values.pack_parts import (
    SEGMENT_TYPE_OF_HANDLE,
    ContextPackMetadata,
    ContextSegment,
    FrameBreadcrumb,
    HandleEntry,
    PackLedger,
    SegmentType,
    TokenBreakdown,
    TokenSummary,
)


def assemble(wanted: Wanted, fetch: Fetch, *, count: Count, counted: Counted) -> ContextPack:
    """Return the pack of a frame: at most its budget, or what is critical of it if flagged.

    Raises BudgetTooSmall, HandleUnresolved for content that must be there, and ContextOverflow with what
    is required if the critical items do not fit.
    """
    packs.checked_budget(wanted.budget)
    work = Assembling(wanted, fetch, count, counted)
    try:
        fitted = work.fitted()
    except errors.ContextOverflow as error:
        kept = [one.handle.handle_id for one in work.shown.values() if _critical(one.item)]
        error.facts |= {"frame": wanted.frame.frame_id, "critical_handles": sorted(kept)}
        raise
    return _Finishing(work, fitted).pack()


def _critical(item: Item) -> bool:
    return item.priority is ContextPriority.CRITICAL


class _Finishing:
    """What became of each item, put into words and numbers."""

    def __init__(self, work: Assembling, fitted: Fitted) -> None:
        self._work = work
        self._wanted = work.wanted
        self._fitted = fitted
        self._items = work.items
        self._segments: list[ContextSegment] = []
        self._messages: list[Message] = []
        self._sizes: list[int] = []
        self._sources: list[Source] = []

    def pack(self) -> ContextPack:
        """Return the pack."""
        for index, item in enumerate(self._items):
            if index in self._fitted.summaries:
                self._add_summary(index, item)
            view = self._fitted.placed.get(index)
            if view is not None:
                self._add(item, view)
        frame, wanted = self._wanted.frame, self._wanted
        made = ContextPack(
            metadata=self._metadata(),
            brief_context=str(self._message(BRIEF).content),
            breadcrumbs=_crumbs(wanted.ancestry, self._fitted.level),
            segments=tuple(self._segments),
            token_summary=self._told(),
            context_hash="",
            ledger=PackLedger(tuple(self._entries()), self._fitted.ledger),
            messages=tuple(self._messages),
            sizes=tuple(self._sizes),
            sources=tuple(self._sources),
            talked=wanted.talked,
        )
        return replace(made, context_hash=context_hash(frame.frame_id, made))

    def _message(self, kind: str) -> Message:
        at = next(i for i, source in enumerate(self._sources) if source.kind == kind)
        return self._messages[at]

    def _put(self, message: Message, size: int, source: Source) -> None:
        self._messages.append(message)
        self._sizes.append(size)
        self._sources.append(source)

    def _add_summary(self, index: int, item: Item) -> None:
        message, size = self._fitted.summaries[index]
        source = Source(SUMMARY)
        if item.pool:
            under = (one for at, one in enumerate(self._items) if at in self._fitted.under)
            shown = [self._work.shown[one.first] for one in under if one.pool == packs.EVIDENCE]
            source = Source(EVIDENCE_SUMMARY, sessions=_sessions(shown))
        self._put(message, size, source)
        self._segments.append(
            ContextSegment(
                segment_type=SegmentType.SUMMARY,
                priority=ContextPriority.MEDIUM,
                content=str(message.content),
                estimated_tokens=size,
                shortened=True,
            )
        )

    def _add(self, item: Item, view: View) -> None:
        if item.pool == packs.FIXED:
            kind = BRIEF if item is self._items[0] else BREADCRUMBS
            self._put(view.messages[0], view.size, Source(kind))
        elif item.pool:
            self._add_evidence(item, view)
        elif item.tells:
            self._put(view.messages[0], view.size, Source(SUMMARY))
            self._segments.append(_said(item, view.messages[0], view.size, shortened=False))
        else:
            for at, message in enumerate(view.messages):
                came = message is item.messages[at] and not (item.whole and item.whole[at])
                source = Source(SAID, None, item.first + at, not came)
                self._put(message, view.tokens[at], source)
                self._segments.append(_said(item, message, view.tokens[at], shortened=not came))

    def _add_evidence(self, item: Item, view: View) -> None:
        shown = self._work.shown[item.first]
        message, handle = view.messages[0], shown.handle
        shortened = message is not item.messages[0]
        source = Source(HANDLE, handle.handle_id, 0, shortened, _sessions([shown]))
        self._put(message, view.size, source)
        self._segments.append(
            ContextSegment(
                segment_type=SEGMENT_TYPE_OF_HANDLE[handle.handle_type],
                priority=handle.priority,
                content=shown.fence.inside(str(message.content)),
                estimated_tokens=view.size,
                handle_id=handle.handle_id,
                shortened=shortened,
            )
        )

    def _metadata(self) -> ContextPackMetadata:
        wanted, known = self._wanted, set[str]()
        if wanted.include or wanted.exclude:
            known = {handle.handle_id for handle in wanted.frame.context_handles}
        return ContextPackMetadata(
            frame_id=wanted.frame.frame_id,
            scope=wanted.scope,
            role=wanted.brief.role,
            assembled_at=wanted.assembled_at,
            unknown_includes=tuple(sorted(wanted.include - known)),
            unknown_excludes=tuple(sorted(wanted.exclude - known)),
        )

    def _told(self) -> TokenSummary:
        counted = self._work.counted
        parts = breakdown(self._sources, self._sizes, counted.overhead)
        return token_summary(
            self._wanted.budget,
            parts,
            self._fitted.level,
            counter=counted.name,
            exact=counted.exact,
        )

    def _entries(self) -> Iterator[HandleEntry]:
        for index, item in enumerate(self._items):
            if item.pool == packs.EVIDENCE:
                yield self._entry(index, item)
        for handle, fault in self._work.faults:
            yield _out(handle, f"{packs.UNRESOLVED}: {fault}")
        for handle in self._work.sorted.excluded:
            yield _out(handle, packs.EXCLUDED)
        yield from self._unseen()

    def _entry(self, index: int, item: Item) -> HandleEntry:
        handle = self._work.shown[item.first].handle
        view = self._fitted.placed.get(index)
        fate, rule, used = Fate.LEFT_OUT, "", 0
        if view is not None:
            same = view.messages[0] is item.messages[0]
            fate, rule = Fate.KEPT if same else Fate.SHORTENED, view.rule
            used = view.size
        elif index in self._fitted.under:
            fate, rule = Fate.SUMMARISED, rules.SUMMARISED
        else:
            rule = self._fitted.out[index]
        return HandleEntry(
            fate=fate, rule=rule, priority=handle.priority, tokens=item.size, used=used,
            handle_id=handle.handle_id,
        )  # fmt: skip

    def _unseen(self) -> Iterator[HandleEntry]:
        """Yield one line for all handles of a priority that nobody looked at."""
        level = self._fitted.level
        for waiting in self._work.sorted.waiting:
            if not waiting.count:
                continue
            priority = waiting.priority
            rule = packs.UNSEEN
            if level is CompactionLevel.CRITICAL:
                rule = rules.NOT_CRITICAL
            elif level is CompactionLevel.AGGRESSIVE and priority <= ContextPriority.LOW:
                rule = rules.LOW
            yield HandleEntry(
                fate=Fate.LEFT_OUT,
                rule=rule,
                priority=priority,
                tokens=waiting.tokens,
                count=waiting.count,
            )


def breakdown(sources: Sequence[Source], sizes: Sequence[int], overhead: int) -> TokenBreakdown:
    """Return what the parts of a pack take."""
    sums: dict[str, int] = {}
    for source, size in zip(sources, sizes, strict=True):
        sums[source.kind] = sums.get(source.kind, 0) + size
    return TokenBreakdown(
        brief=sums.get(BRIEF, 0),
        breadcrumbs=sums.get(BREADCRUMBS, 0),
        conversation=sums.get(SAID, 0) + sums.get(SUMMARY, 0),
        evidence=sums.get(HANDLE, 0) + sums.get(EVIDENCE_SUMMARY, 0),
        overhead=overhead,
    )


def token_summary(
    budget: int, parts: TokenBreakdown, level: CompactionLevel, *, counter: str, exact: bool
) -> TokenSummary:
    """Return how a pack stands to its budget."""
    used = parts.brief + parts.breadcrumbs + parts.conversation + parts.evidence + parts.overhead
    return TokenSummary(
        budget=budget,
        used=used,
        remaining=max(0, budget - used),
        breakdown=parts,
        compaction_level=level,
        overflow=used > budget,
        counter=counter,
        exact=exact,
    )


def _said(item: Item, message: Message, size: int, *, shortened: bool) -> ContextSegment:
    return ContextSegment(
        segment_type=SegmentType.SUMMARY if item.tells else SegmentType.CONVERSATION,
        priority=item.priority,
        content=text_of(message),
        estimated_tokens=size,
        message_id=None if item.tells else message.id,
        shortened=shortened,
    )


def _sessions(shown: Sequence[Shown]) -> tuple[tuple[str, int], ...]:
    """Return the sessions that the content of handles was copied from, each once."""
    return tuple(dict.fromkeys(one.session for one in shown if one.session is not None))


def _out(handle: ContextHandle, rule: str) -> HandleEntry:
    return HandleEntry(
        fate=Fate.LEFT_OUT, rule=rule, priority=handle.priority, tokens=handle.size,
        handle_id=handle.handle_id,
    )  # fmt: skip


def _crumbs(ancestry: Sequence[Frame], level: CompactionLevel) -> tuple[FrameBreadcrumb, ...]:
    frames = list(ancestry)
    if level is CompactionLevel.CRITICAL and len(frames) > 2:
        frames = [frames[0], frames[-1]]
    return tuple(FrameBreadcrumb(f.frame_id, f.goal, f.status, f.depth) for f in frames)
