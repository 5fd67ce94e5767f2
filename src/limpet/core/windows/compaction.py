"""Compaction plans: which handles of a frame a strategy removes or replaces.

Pure, except for the callbacks that read content and assemble the whole pack. A plan is carried out as one command.
Compaction does not refund spent tokens to the frame's budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec
from limpet.core.values import messages
from limpet.core.values.commands import CompactFrame
from limpet.core.values.context import (
    CompactionLevel,
    CompactionResult,
    CompactionStrategy,
    ContextHandle,
    ContextPriority,
    HandleType,
)
from limpet.core.values.frame_state import Frame
from limpet.core.values.validation import checked_token_count
from limpet.core.windows import summary
from limpet.core.windows.pack import ContextPack

SUMMARY_ID_PREFIX: Final = "summary_"

CallGroups = Mapping[str, int]
"""A group number for handles of messages of one tool call; other handles are missing."""

ReadContents = Callable[[Sequence[ContextHandle]], Mapping[str, str]]
"""Returns the content of handles by id; handles without content are missing."""

AssembleWholePack = Callable[[], ContextPack]
"""Returns the pack with all handles of the frame."""


class CompactionPlan(msgspec.Struct, frozen=True):
    """The command of a compaction, None if nothing changes, and its result."""

    command: CompactFrame | None
    result: CompactionResult


class _HandleGroup(msgspec.Struct, frozen=True):
    """Handles that are kept or dropped together, oldest first, with the index of the newest."""

    handles: tuple[ContextHandle, ...]
    newest: int

    @property
    def must_stay(self) -> bool:
        return any(handle.never_dropped for handle in self.handles)

    @property
    def priority(self) -> ContextPriority:
        return max(handle.priority for handle in self.handles)

    @property
    def size(self) -> int:
        return sum(handle.size for handle in self.handles)


def plan_compaction(
    frame: Frame,
    target: int,
    strategy: CompactionStrategy,
    *,
    together: CallGroups,
    contents: ReadContents,
    whole: AssembleWholePack,
) -> CompactionPlan:
    """Return the plan by which a strategy reduces a frame's handles to at most `target` tokens.

    Raises InvalidRequest if a custom strategy drops a handle that must stay, or adds a handle.
    """
    checked_token_count("target_budget", target)
    planning = _CompactionPlanner(frame, target, strategy, _handle_groups(frame, together))
    match strategy.name:
        case "priority_based":
            planning.drop_by_priority()
        case "summarize_oldest":
            planning.summarise(contents)
        case "truncate_at":
            planning.truncate(strategy.message_count or 0)
        case _:
            planning.apply_custom(strategy, whole)
    return planning.plan()


def _handle_groups(frame: Frame, together: CallGroups) -> list[_HandleGroup]:
    found: dict[int | str, list[tuple[int, ContextHandle]]] = {}
    for index, handle in enumerate(frame.context_handles):
        key = together.get(handle.handle_id, handle.handle_id)
        found.setdefault(key, []).append((index, handle))
    made = [_HandleGroup(tuple(handle for _, handle in unit), unit[-1][0]) for unit in found.values()]
    return sorted(made, key=lambda unit: unit.newest)


class _CompactionPlanner:
    def __init__(self, frame: Frame, target: int, strategy: CompactionStrategy, units: list[_HandleGroup]) -> None:
        self._frame = frame
        self._target = target
        self._strategy = strategy
        self._units = units
        self._original = sum(handle.size for handle in frame.context_handles)
        self._removed: list[ContextHandle] = []
        self._summarised: list[ContextHandle] = []
        self._replacements: list[ContextHandle] = []

    def drop_by_priority(self) -> None:
        """Drop the least important groups, the oldest first among equals, until the rest fits."""
        current = self._original
        for unit in sorted(self._units, key=lambda unit: unit.priority):
            if current <= self._target:
                return
            if not unit.must_stay:
                self._removed += unit.handles
                current = max(0, current - unit.size)

    def truncate(self, most: int) -> None:
        """Keep the newest groups with at most `most` handles in total."""
        kept, over = 0, False
        for unit in reversed(self._units):
            if unit.must_stay:
                continue
            over = over or kept + len(unit.handles) > most
            if over:
                self._removed += unit.handles
            else:
                kept += len(unit.handles)

    def summarise(self, contents: ReadContents) -> None:
        """Replace all but the newest handles by one summary, if it is smaller."""
        if self._original <= self._target:
            return
        newest = self._frame.handle_count - limits.NEWEST_MESSAGES
        old = [handle for unit in self._units if unit.newest < newest and not unit.must_stay for handle in unit.handles]
        if not old or (len(old) == 1 and old[0].handle_id.startswith(SUMMARY_ID_PREFIX)):
            return
        made = self._summary(old, contents(old[-limits.SUMMARISED_HANDLES_MAX :]))
        if made.size < sum(handle.size for handle in old):
            self._summarised = old
            self._replacements = [made]

    def _summary(self, old: Sequence[ContextHandle], contents: Mapping[str, str]) -> ContextHandle:
        texts = [(handle.handle_id, contents.get(handle.handle_id, handle.description)) for handle in old]
        chars = max(400, int(self._target * limits.SUMMARY_SHARE) * 2)
        text = f"Summary of {len(old):,} handles:\n{summary.extract_named_sentences(texts, chars)}".rstrip()
        ids = [handle.handle_id for handle in old]
        name = codec.digest(codec.canonical_json([ids, text])).hex()[:24]
        return ContextHandle(
            handle_id=f"{SUMMARY_ID_PREFIX}{name}",
            handle_type=HandleType.DOCUMENT,
            description=f"summary of {len(old):,} handles",
            priority=max(handle.priority for handle in old),
            estimated_tokens=messages.estimate_text_tokens(text),
            content=text,
        )

    def apply_custom(self, strategy: CompactionStrategy, whole: AssembleWholePack) -> None:
        """Drop the handles whose segments a function removes; store the content of segments that it shortens."""
        before = whole()
        assert strategy.function is not None, "a custom strategy has a function"
        after = cast("object", strategy.function(before))
        if not isinstance(after, ContextPack):
            raise errors.InvalidRequest(f"a custom strategy returns a ContextPack, not {type(after).__name__}.")
        was = {s.handle_id: s.content for s in before.segments if s.handle_id is not None}
        now = {s.handle_id: s.content for s in after.segments if s.handle_id is not None}
        if made_up := sorted(now.keys() - was.keys()):
            raise errors.InvalidRequest(
                f"the strategy put in {made_up[0]!r}, which is no handle of the frame.", facts={"handles": made_up}
            )
        gone = was.keys() - now.keys()
        for unit in self._units:
            names = {handle.handle_id for handle in unit.handles}
            if lost := sorted(h.handle_id for h in unit.handles if h.never_dropped and h.handle_id in gone):
                raise errors.InvalidRequest(
                    f"the strategy dropped {lost[0]!r}, which is critical or pinned.",
                    hint="Nothing was changed. Keep critical and pinned segments.",
                    facts={"handles": lost},
                )
            if names <= gone:
                self._removed += unit.handles
            else:
                self._shorten(unit, {name: now[name] for name in names & now.keys() if now[name] != was[name]})

    def _shorten(self, unit: _HandleGroup, texts: Mapping[str, str]) -> None:
        for handle in unit.handles:
            text = texts.get(handle.handle_id)
            if text is None:
                continue
            if handle.never_dropped:
                raise errors.InvalidRequest(
                    f"the strategy altered {handle.handle_id!r}, which is critical or pinned.",
                    facts={"handles": [handle.handle_id]},
                )
            self._summarised.append(handle)
            self._replacements.append(
                msgspec.structs.replace(
                    handle, content=text, content_hash=None, estimated_tokens=messages.estimate_text_tokens(text)
                )
            )  # fmt: skip

    def plan(self) -> CompactionPlan:
        out = [*self._removed, *self._summarised]
        final = self._original - sum(handle.size for handle in out)
        final = max(0, final + sum(handle.size for handle in self._replacements))
        result = CompactionResult(
            original_tokens=self._original, final_tokens=final, compaction_level=self._level(final, out),
            items_removed=len(self._removed), items_summarized=len(self._summarised),
            target_met=final <= self._target,
        )  # fmt: skip
        if not out:
            return CompactionPlan(None, result)
        command = CompactFrame(
            frame_id=self._frame.frame_id, removed=tuple(handle.handle_id for handle in out),
            replaced=tuple(self._replacements), strategy=self._strategy.label, target_budget=self._target,
            original_tokens=self._original, final_tokens=final, level=result.compaction_level,
        )  # fmt: skip
        return CompactionPlan(command, result)

    def _level(self, final: int, out: Sequence[ContextHandle]) -> CompactionLevel:
        gone = {handle.handle_id for handle in out}
        rest = [h for h in self._frame.context_handles if h.handle_id not in gone]
        return resulting_level(
            self._original,
            final,
            changed=bool(gone),
            summarised=bool(self._summarised),
            only_critical=all(handle.never_dropped for handle in rest) and not self._replacements,
        )


def resulting_level(
    original: int, final: int, *, changed: bool, summarised: bool, only_critical: bool
) -> CompactionLevel:
    """Return the level of a compaction.

    NONE: nothing changed. CRITICAL: only critical and pinned handles are left. Otherwise by the part of the tokens that
    is left: LIGHT from three quarters, MODERATE from a half, AGGRESSIVE below; with a summary at least MODERATE.
    """
    if not changed:
        return CompactionLevel.NONE
    if only_critical:
        return CompactionLevel.CRITICAL
    if final * 2 < original:
        return CompactionLevel.AGGRESSIVE
    light = final * 4 >= original * 3 and not summarised
    return CompactionLevel.LIGHT if light else CompactionLevel.MODERATE
