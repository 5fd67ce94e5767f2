"""Priorities, compaction levels and strategies, ledgers, recorded selections, and handles.

A handle points at content that a frame may take into its context. A ledger lists what happened
to each message and why. A selection is what is recorded of a window or pack to rebuild it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import force_setattr

from limpet import errors, limits
from limpet.core.values.messages import MessageCategory
from limpet.core.values.validation import (
    EMPTY,
    Json,
    checked_bool,
    checked_id,
    checked_int,
    checked_str,
    checked_token_count,
    enum_member,
    freeze_object,
)


class ContextPriority(IntEnum):
    """How important an item is. Critical items are never changed and never left out."""

    CRITICAL = 100
    HIGH = 75
    MEDIUM = 50
    LOW = 25
    BACKGROUND = 10

    def score(self) -> int:
        """Return the score: the higher, the more important."""
        return int(self)

    @property
    def label(self) -> str:
        """The name for output: critical, high, medium, low, background."""
        return self.name.lower()


PRIORITY_OF_CATEGORY: Final = {
    MessageCategory.SYSTEM: ContextPriority.CRITICAL,
    MessageCategory.CONTEXT: ContextPriority.HIGH,
    MessageCategory.DIALOG: ContextPriority.MEDIUM,
    MessageCategory.SYSTEM_OUTPUT: ContextPriority.LOW,
}


def priority_of_metadata(metadata: Mapping[str, Json]) -> tuple[ContextPriority, str] | None:
    """Return the priority in a message's metadata and its rule (`pinned` or `priority …`); None if there is none."""
    if metadata.get("pinned") is True:
        return ContextPriority.CRITICAL, "pinned"
    name = metadata.get("priority")
    if isinstance(name, str) and name.upper() in ContextPriority.__members__:
        return ContextPriority[name.upper()], f"priority {name.lower()}"
    return None


def has_high_priority(metadata: Mapping[str, Json]) -> bool:
    """Return whether windows consider a message of any age."""
    chosen = priority_of_metadata(metadata)
    return chosen is not None and chosen[0] >= ContextPriority.HIGH


class CompactionLevel(IntEnum):
    """How strongly a context is compacted. Each level includes the ones before.

    Light shortens long texts. Moderate replaces older messages by a summary. Aggressive drops low and background
    priorities. Critical keeps critical items only.
    """

    NONE = 0
    LIGHT = 1
    MODERATE = 2
    AGGRESSIVE = 3
    CRITICAL = 4

    @property
    def label(self) -> str:
        """The name for output: none, light, moderate, aggressive, critical."""
        return self.name.lower()


class Fate(StrEnum):
    """What happened to a message or handle: kept, shortened, summarised, left out."""

    KEPT = "kept"
    SHORTENED = "shortened"
    SUMMARISED = "summarised"
    LEFT_OUT = "left out"


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """One line of a ledger: a range of message numbers (from 1) and what happened to them.

    `tokens` is their size in the conversation, `used` their size in the context, `rule` the reason.
    """

    first: int
    last: int
    fate: Fate
    tokens: int
    used: int
    rule: str
    category: MessageCategory | None = None

    @property
    def count(self) -> int:
        """How many messages the line covers."""
        return self.last - self.first + 1


class WindowSelection(msgspec.Struct, frozen=True, omit_defaults=True):
    """The recorded selection of a window, from which it is rebuilt without deciding again.

    `parts` are, in order, [first, last] for unchanged messages, by number, or the dict of a message that was
    changed or made (a summary). Numbers count from `began`, the ordinal before the first message of the
    generation. `digest` is the hash of the whole window.
    """

    session_id: str
    version: int
    began: int
    budget: int
    tokens: int
    overhead: int
    counter: str
    exact: bool
    level: CompactionLevel
    parts: tuple[tuple[int, int] | Mapping[str, Json], ...]
    sizes: tuple[int, ...]
    digest: str


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
        """The hashes of the texts that the parts refer to."""
        return tuple(str(part["hash"]) for part in self.parts if "hash" in part)

    @property
    def sessions(self) -> tuple[tuple[str, int], ...]:
        """The sessions, each with a version, that the texts were copied from."""
        found = ((str(name), int(at)) for part in self.parts for name, at in part.get("sessions", ()))
        return tuple(dict.fromkeys(found))


class Ledger(msgspec.Struct, frozen=True):
    """The ledger of a window: every message of the conversation is in exactly one entry, in order."""

    entries: tuple[LedgerEntry, ...]

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def used(self) -> int:
        """The tokens of the conversation's messages in the window."""
        return sum(entry.used for entry in self.entries)

    def messages(self, fate: Fate | None = None) -> int:
        """Return the number of messages, of all or of one fate."""
        return sum(e.count for e in self.entries if fate is None or e.fate is fate)

    def tokens(self, fate: Fate | None = None) -> int:
        """Return the tokens of the messages in the conversation, of all or of one fate."""
        return sum(e.tokens for e in self.entries if fate is None or e.fate is fate)

    def left_out(self) -> dict[str, tuple[int, int]]:
        """Return, for each rule, how many messages it left out and their tokens."""
        return sums_by_rule((e.rule, e.count, e.tokens) for e in self.entries if e.fate is Fate.LEFT_OUT)

    def entry_of(self, number: int) -> LedgerEntry | None:
        """Return the entry of a message by its number; None if there is no such message."""
        found = (entry for entry in self.entries if entry.first <= number <= entry.last)
        return next(found, None)


def sums_by_rule(entries: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    """Return, for each rule, the sums of counts and tokens."""
    sums: dict[str, tuple[int, int]] = {}
    for rule, count, tokens in entries:
        before = sums.get(rule, (0, 0))
        sums[rule] = (before[0] + count, before[1] + tokens)
    return sums


class CompactionStrategy(msgspec.Struct, frozen=True):
    """Decides which handles are dropped. Critical and pinned ones are kept; a tool call and its result stay together.

    PRIORITY_BASED drops the least important handles, the oldest first among equals, until the rest fits.
    SUMMARIZE_OLDEST replaces all but the newest ten by one summary. `truncate_at(n)` keeps the newest n.
    `custom(fn)` takes a function that removes segments from a complete ContextPack and returns the rest.
    """

    PRIORITY_BASED: ClassVar[CompactionStrategy]
    SUMMARIZE_OLDEST: ClassVar[CompactionStrategy]

    name: str
    message_count: int | None = None
    function: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.name not in _STRATEGY_NAMES:
            raise errors.InvalidRequest(
                f"a strategy is one of {', '.join(_STRATEGY_NAMES)}, not {self.name!r}.",
                hint="For example CompactionStrategy.PRIORITY_BASED.",
            )
        if self.name == _TRUNCATE_AT:
            checked_int("truncate_at", self.message_count, unit="a number of handles")
        if self.name == _CUSTOM and not callable(self.function):
            raise errors.InvalidRequest("custom takes a function from a ContextPack to another one.")

    @classmethod
    def truncate_at(cls, message_count: int) -> CompactionStrategy:
        """Keep the newest `message_count` handles, and those that are never dropped."""
        return cls(_TRUNCATE_AT, message_count)

    @classmethod
    def custom(cls, function: Callable[[Any], Any]) -> CompactionStrategy:
        """Drop the handles whose segments the function removes from a ContextPack."""
        return cls(_CUSTOM, None, function)

    def __repr__(self) -> str:
        return f"<CompactionStrategy {self.label}>"

    @property
    def label(self) -> str:
        """The name for output, for example truncate_at(5)."""
        return self.name if self.message_count is None else f"{self.name}({self.message_count})"


_TRUNCATE_AT = "truncate_at"
_CUSTOM = "custom"
_STRATEGY_NAMES = ("priority_based", "summarize_oldest", _TRUNCATE_AT, _CUSTOM)

CompactionStrategy.PRIORITY_BASED = CompactionStrategy("priority_based")
CompactionStrategy.SUMMARIZE_OLDEST = CompactionStrategy("summarize_oldest")


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction, in tokens and handles. `target_met`: the remaining handles fit.

    `items_removed` handles were dropped, `items_summarized` handles were summarised or shortened.
    """

    original_tokens: int
    final_tokens: int
    compaction_level: CompactionLevel
    items_removed: int = 0
    items_summarized: int = 0
    target_met: bool = True


class HandleType(StrEnum):
    """The kind of content that a handle points at. It selects the resolver."""

    EVENT_REF = "event_ref"
    MESSAGE_RANGE = "message_range"
    TOOL_OUTPUT = "tool_output"
    ARTIFACT = "artifact"
    DOCUMENT = "document"
    URL = "url"
    MEMORY = "memory"
    WORKER_FINDING = "worker_finding"
    WORKER_LEARNING = "worker_learning"


REQUIRED_TARGET_KEYS: Final[Mapping[HandleType, Mapping[str, type]]] = {
    HandleType.EVENT_REF: {"position": int},
    HandleType.MESSAGE_RANGE: {"session_id": str, "first": int, "last": int},
    HandleType.TOOL_OUTPUT: {"frame_id": str, "tool_id": str},
}
"""The keys that the target of a handle into the log must have."""

TARGET_VERSION_KEY: Final = "at"
"""The target key for the session version that message numbers refer to."""


class ContextHandle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pointer to content that a frame may take into its context.

    `target` names the content: {"position": 12} for an event, {"session_id", "first", "last"} for messages by
    number, {"frame_id", "tool_id"} for a tool's output; for other types what their resolver needs. Message numbers
    refer to the session's version "at", by default the version when the handle is added. `content` is stored beside
    the log and needs no resolver; a stored handle has its hash in `content_hash` instead. The default of
    `estimated_tokens` is the size of the content, or 100.
    """

    handle_id: str
    handle_type: HandleType
    description: str = ""
    priority: ContextPriority = ContextPriority.MEDIUM
    estimated_tokens: int | None = None
    target: Mapping[str, Json] = EMPTY
    content: str | None = None
    content_hash: str | None = None
    pinned: bool = False

    def __post_init__(self) -> None:
        checked_id("a handle's id", self.handle_id)
        force_setattr(self, "handle_type", enum_member("a handle's type", HandleType, self.handle_type))
        force_setattr(self, "priority", parse_priority(self.priority))
        described = checked_str("a handle's description", self.description, limits.TITLE_BYTES_MAX)
        force_setattr(self, "description", described)
        if self.estimated_tokens is not None:
            checked_token_count("estimated_tokens", self.estimated_tokens)
        force_setattr(self, "target", freeze_object("a handle's target", self.target))
        if self.content is not None:
            kept = checked_str("a handle's content", self.content, limits.MESSAGE_BYTES_MAX)
            force_setattr(self, "content", kept)
        checked_bool("pinned", self.pinned)
        self._check_target()

    def _check_target(self) -> None:
        if self.content is not None or self.content_hash is not None:
            return
        for name, kind in REQUIRED_TARGET_KEYS.get(self.handle_type, EMPTY).items():
            if type(self.target.get(name)) is not kind:
                raise errors.InvalidRequest(
                    f"a handle of type {self.handle_type} needs {name!r} in its target.",
                    hint=f"For example target={_target_example(self.handle_type)}, or give its content.",
                )

    @property
    def never_dropped(self) -> bool:
        """Whether compaction keeps the handle in any case."""
        return self.pinned or self.priority is ContextPriority.CRITICAL

    @property
    def session_version(self) -> int | None:
        """The session version that the message numbers refer to, if it is known."""
        at = self.target.get(TARGET_VERSION_KEY) if self.handle_type is HandleType.MESSAGE_RANGE else None
        return at if type(at) is int else None

    @property
    def size(self) -> int:
        """The estimated size in tokens."""
        return limits.HANDLE_TOKENS if self.estimated_tokens is None else self.estimated_tokens


HandlePages = tuple[tuple[ContextHandle, ...], ...]
"""Handles in order, on pages that are full except the last: an append copies one page only."""

HANDLES_PER_PAGE: Final = 64


def handle_pages(handles: Sequence[ContextHandle]) -> HandlePages:
    """Return handles as pages."""
    return tuple(tuple(handles[at : at + HANDLES_PER_PAGE]) for at in range(0, len(handles), HANDLES_PER_PAGE))


def pages_with_handle(pages: HandlePages, handle: ContextHandle) -> HandlePages:
    """Return pages with one more handle."""
    if not pages or len(pages[-1]) >= HANDLES_PER_PAGE:
        return (*pages, (handle,))
    return (*pages[:-1], (*pages[-1], handle))


def _target_example(kind: HandleType) -> str:
    return repr({name: 1 if of is int else "…" for name, of in REQUIRED_TARGET_KEYS[kind].items()})


class ResultRef(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A result of a frame: its kind, where it is, and a short description."""

    result_type: str
    ref_id: str
    summary: str = ""

    def __post_init__(self) -> None:
        checked_id("a result's type", self.result_type)
        checked_id("a result's reference", self.ref_id)
        force_setattr(self, "summary", checked_str("a result's summary", self.summary, limits.FRAME_TEXT_BYTES_MAX))


def parse_priority(value: Any) -> ContextPriority:
    """Return the priority of a ContextPriority, a name or a score."""
    if isinstance(value, str) and value.upper() in ContextPriority.__members__:
        return ContextPriority[value.upper()]
    try:
        return ContextPriority(value)
    except ValueError:
        names = ", ".join(name.lower() for name in ContextPriority.__members__)
        raise errors.InvalidRequest(f"a priority is one of {names}, not {value!r}.") from None
