"""Handles, by which a frame points at content, and references to its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, cast

import msgspec
from msgspec.structs import force_setattr

from limpet import errors, limits
from limpet.values.budget import checked_tokens
from limpet.values.context import ContextPriority
from limpet.values.frozen import EMPTY, Json, checked_text, freeze_object
from limpet.values.message import checked_id


class HandleType(StrEnum):
    """What a handle points at; it decides which resolver finds the content."""

    EVENT_REF = "event_ref"
    MESSAGE_RANGE = "message_range"
    TOOL_OUTPUT = "tool_output"
    ARTIFACT = "artifact"
    DOCUMENT = "document"
    URL = "url"
    MEMORY = "memory"
    WORKER_FINDING = "worker_finding"
    WORKER_LEARNING = "worker_learning"


NEEDED: Final[Mapping[HandleType, Mapping[str, type]]] = {
    HandleType.EVENT_REF: {"position": int},
    HandleType.MESSAGE_RANGE: {"session_id": str, "first": int, "last": int},
    HandleType.TOOL_OUTPUT: {"frame_id": str, "tool_id": str},
}
"""The keys that the target of a handle into the log must have."""

AT: Final = "at"
"""The target key for the version of the session in which messages are numbered."""


class ContextHandle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pointer to content that a frame may take into its context.

    `target` names the content: {"position": 12} for an event, {"session_id", "first", "last"} for messages by
    number, {"frame_id", "tool_id"} for a tool's output; for other types what their resolver needs. Messages are
    numbered in the session's version "at", or else in its version when the handle is added. `content` is stored
    beside the log and no resolver is asked for it; a stored handle has its hash in `content_hash` instead. Without
    `estimated_tokens` its size is that of its content, or 100.
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
        force_setattr(self, "handle_type", one_of("a handle's type", HandleType, self.handle_type))
        force_setattr(self, "priority", priority(self.priority))
        described = bounded("a handle's description", self.description, limits.TITLE_BYTES_MAX)
        force_setattr(self, "description", described)
        if self.estimated_tokens is not None:
            checked_tokens("estimated_tokens", self.estimated_tokens)
        force_setattr(self, "target", freeze_object("a handle's target", self.target))
        if self.content is not None:
            kept = bounded("a handle's content", self.content, limits.MESSAGE_BYTES_MAX)
            force_setattr(self, "content", kept)
        if type(cast("object", self.pinned)) is not bool:
            raise errors.InvalidRequest("pinned is True or False.")
        self._check_target()

    def _check_target(self) -> None:
        if self.content is not None or self.content_hash is not None:
            return
        for name, kind in NEEDED.get(self.handle_type, EMPTY).items():
            if type(self.target.get(name)) is not kind:
                raise errors.InvalidRequest(
                    f"a handle of type {self.handle_type} needs {name!r} in its target.",
                    hint=f"For example target={_example(self.handle_type)}, or give its content.",
                )

    @property
    def stays(self) -> bool:
        """Whether compaction never drops it."""
        return self.pinned or self.priority is ContextPriority.CRITICAL

    @property
    def at(self) -> int | None:
        """The version of the session in which its messages are numbered, if there is one."""
        at = self.target.get(AT) if self.handle_type is HandleType.MESSAGE_RANGE else None
        return at if type(at) is int else None

    @property
    def size(self) -> int:
        """Its size in tokens until it is counted."""
        return limits.HANDLE_TOKENS if self.estimated_tokens is None else self.estimated_tokens


Pages = tuple[tuple[ContextHandle, ...], ...]
"""Handles in order, on full pages but the last: adding one does not copy the others."""

PAGE: Final = 64


def paged(handles: Sequence[ContextHandle]) -> Pages:
    """Return handles as pages."""
    return tuple(tuple(handles[at : at + PAGE]) for at in range(0, len(handles), PAGE))


def turned(pages: Pages, handle: ContextHandle) -> Pages:
    """Return pages with one more handle."""
    if not pages or len(pages[-1]) >= PAGE:
        return (*pages, (handle,))
    return (*pages[:-1], (*pages[-1], handle))


def _example(kind: HandleType) -> str:
    made = {name: 1 if of is int else "…" for name, of in NEEDED[kind].items()}
    return repr(made)


class ResultRef(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A result of a frame: its kind, where it is, and a short description."""

    result_type: str
    ref_id: str
    summary: str = ""

    def __post_init__(self) -> None:
        checked_id("a result's type", self.result_type)
        checked_id("a result's reference", self.ref_id)
        told = bounded("a result's summary", self.summary, limits.FRAME_TEXT_BYTES_MAX)
        force_setattr(self, "summary", told)


def bounded(what: str, text: str, size_max: int) -> str:
    """Return a text; raise TooLarge beyond its limit, InvalidRequest if it is no text."""
    if not isinstance(cast("object", text), str):
        raise errors.InvalidRequest(f"{what} is text, not {type(text).__name__}.")
    plain = checked_text(text)
    size = len(plain) if plain.isascii() else len(plain.encode())
    if size > size_max:
        raise errors.TooLarge(
            f"{what} has {size:,} bytes; at most {size_max:,} are kept.",
            facts={"bytes": size, "bytes_max": size_max},
        )
    return plain


def one_of(what: str, kind: type[StrEnum], value: Any) -> StrEnum:
    """Return a member of an enumeration, given itself or its value; raise InvalidRequest otherwise."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind)
        raise errors.InvalidRequest(f"{what} is one of {names}, not {value!r}.") from None


def priority(value: Any) -> ContextPriority:
    """Return a priority, given itself, its name or its score."""
    if isinstance(value, str) and value.upper() in ContextPriority.__members__:
        return ContextPriority[value.upper()]
    try:
        return ContextPriority(value)
    except ValueError:
        names = ", ".join(name.lower() for name in ContextPriority.__members__)
        raise errors.InvalidRequest(f"a priority is one of {names}, not {value!r}.") from None
