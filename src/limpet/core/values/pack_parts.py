"""The parts of a context pack: segments, breadcrumbs, token summary, ledger, recorded selection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, cast

import msgspec
from msgspec.structs import force_setattr

from limpet import errors
from limpet.core.values.arguments import checked_str
from limpet.core.values.context import CompactionLevel, ContextPriority, Fate, HandleType, Ledger
from limpet.core.values.frame_state import FrameStatus, Scope
from limpet.core.values.json_values import EMPTY, Json, freeze


class SegmentType(StrEnum):
    """The kind of a segment of a pack."""

    CONVERSATION = "conversation"
    SUMMARY = "summary"
    EVIDENCE = "evidence"
    TOOL_OUTPUT = "tool_output"
    DOCUMENT = "document"
    MEMORY = "memory"
    FINDING = "finding"


SEGMENT_TYPE_OF_HANDLE: Final[Mapping[HandleType, SegmentType]] = {
    HandleType.EVENT_REF: SegmentType.EVIDENCE,
    HandleType.MESSAGE_RANGE: SegmentType.EVIDENCE,
    HandleType.TOOL_OUTPUT: SegmentType.TOOL_OUTPUT,
    HandleType.ARTIFACT: SegmentType.DOCUMENT,
    HandleType.DOCUMENT: SegmentType.DOCUMENT,
    HandleType.URL: SegmentType.DOCUMENT,
    HandleType.MEMORY: SegmentType.MEMORY,
    HandleType.WORKER_FINDING: SegmentType.FINDING,
    HandleType.WORKER_LEARNING: SegmentType.FINDING,
}
"""The kind of segment that a handle of each type becomes."""


class BriefContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first text of a pack: the role and its standing instructions."""

    role: str = ""
    system_prompt: str = ""
    invariants: tuple[str, ...] = ()
    working_context: Json = None
    available_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("role", "system_prompt"):
            force_setattr(self, name, checked_str(name, getattr(self, name)))
        for name in ("invariants", "available_tools"):
            given = cast("object", getattr(self, name))
            if not isinstance(given, (list, tuple)):
                raise errors.InvalidRequest(f"{name} is a list of texts.")
            texts = tuple(checked_str(name, one) for one in cast("list[object]", given))
            force_setattr(self, name, texts)
        force_setattr(self, "working_context", freeze(self.working_context))


class FrameBreadcrumb(msgspec.Struct, frozen=True):
    """A frame on the path from the root to the frame of a pack."""

    frame_id: str
    goal: str
    status: FrameStatus
    depth: int


class ContextSegment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of content in a pack, as the model sees it, and its tokens.

    It belongs to a handle or to a message of the conversation; a summary belongs to neither. `shortened`: it is
    not complete.
    """

    segment_type: SegmentType
    priority: ContextPriority
    content: str
    estimated_tokens: int
    handle_id: str | None = None
    message_id: str | None = None
    shortened: bool = False

    def __repr__(self) -> str:
        of = self.handle_id or self.message_id or "others"
        return f"<ContextSegment {self.segment_type} of {of}, {self.estimated_tokens:,} tokens>"


class TokenBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of each part of a pack; their sum is what is used."""

    brief: int
    breadcrumbs: int
    conversation: int
    evidence: int
    overhead: int


class TokenSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How a pack relates to its budget. Only a pack that was allowed to may `overflow` it."""

    budget: int
    used: int
    remaining: int
    breakdown: TokenBreakdown
    compaction_level: CompactionLevel
    overflow: bool
    counter: str
    exact: bool


class ContextPackMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The scope and time of a pack. The last two fields are ids in hints that the frame does not have."""

    frame_id: str
    scope: Scope
    role: str
    assembled_at: str
    unknown_includes: tuple[str, ...] = ()
    unknown_excludes: tuple[str, ...] = ()


class HandleEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to a handle, or to `count` handles that were not examined, and why.

    `tokens` is their size, counted or estimated; `used` is what they take in the pack.
    """

    fate: Fate
    rule: str
    priority: ContextPriority
    tokens: int
    used: int = 0
    handle_id: str | None = None
    count: int = 1


class PackLedger(msgspec.Struct, frozen=True):
    """The account of a pack: every handle of the frame in one line, and the conversation's own ledger."""

    handles: tuple[HandleEntry, ...]
    conversation: Ledger

    def __iter__(self) -> Iterator[HandleEntry]:
        return iter(self.handles)

    def count(self, fate: Fate | None = None) -> int:
        """How many handles there are, or how many had this fate."""
        return sum(e.count for e in self.handles if fate is None or e.fate is fate)

    def entry_of(self, handle_id: str) -> HandleEntry | None:
        """Return the line of one handle; None if it shares a line or is unknown."""
        return next((e for e in self.handles if e.handle_id == handle_id), None)

    def left_out(self) -> dict[str, tuple[int, int]]:
        """Return how many handles were left out by each rule, and their tokens."""
        reasons: dict[str, tuple[int, int]] = {}
        for entry in self.handles:
            if entry.fate is Fate.LEFT_OUT:
                count, size = reasons.get(entry.rule, (0, 0))
                reasons[entry.rule] = (count + entry.count, size + entry.tokens)
        return reasons


class PackSelection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recorded selection of a pack, from which it is rebuilt without deciding again.

    Each part names its content: the hash of a text kept beside the log, or messages of a session by number; and the
    sessions that a text was copied from. `about` holds the rest. `digest` is the hash of the whole pack.
    """

    digest: str
    budget: int
    used: int
    counter: str
    exact: bool = True
    level: CompactionLevel = CompactionLevel.NONE
    role: str = ""
    parts: tuple[Mapping[str, Json], ...] = ()
    about: Mapping[str, Json] = EMPTY

    @property
    def hashes(self) -> tuple[str, ...]:
        """The hashes of the texts that it refers to."""
        return tuple(str(part["hash"]) for part in self.parts if "hash" in part)

    @property
    def sessions(self) -> tuple[tuple[str, int], ...]:
        """The sessions, each at a version, that its texts were copied from."""
        found = ((str(name), int(at)) for part in self.parts for name, at in part.get("sessions", ()))
        return tuple(dict.fromkeys(found))
