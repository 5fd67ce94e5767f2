"""The state of a session: small, whatever the length of its history.

Messages stay in the store. The state holds versions, totals and open calls, which is all the rules need.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from limpet.values import ids
from limpet.values.frozen import EMPTY, Json
from limpet.values.policy import Correction, Cut, Summary, WindowPolicy

DERIVED_METADATA: Final = (
    "message_count", "continued_from", "continued_to", "continuation_index", "forked_from",
)  # fmt: skip
"""Keys of a session's metadata that Limpet computes; callers can't set them."""


class SessionStatus(StrEnum):
    """Whether a session is active, ended or deleted."""

    ACTIVE = "active"
    ENDED = "ended"
    DELETED = "deleted"


class EndReason(StrEnum):
    """Why a session ended."""

    ENDED = "ended"
    TIMEOUT = "timeout"
    DELETED = "deleted"


class OpenCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call without a result, identified by its message and its own id."""

    message_id: str
    call_id: str
    name: str


class SessionState(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The state of a session, folded from its events up to `version`.

    `generation` counts resets; `began` and `ordinal_began` are the version and message ordinal at which the
    present generation starts. Ordinals count messages over the whole life of the stream.
    `kept` are the versions of system and context messages, which a continuation carries over; `pins` are those
    of other messages that every window looks at. `turn` and `turn_ordinal` are the newest user message, `group`
    is the newest message with calls. `preview` is the beginning of the first user message, for listings.
    `policy`, `cut` and `summary` say how windows are made; `live` is the tokens of what the cut leaves in;
    `corrections` correct counters. `forked_from` is the session and version of a fork; `rebased` is the version
    at which it was forked or last rewound. Long-term memory has taken all generations below `handed` and those
    in `handed_more`. `until` is the version at which an import is complete; `erased` is the version of the last
    erasure notice.
    """

    id: str
    version: int = 0
    status: SessionStatus = SessionStatus.ACTIVE
    end_reason: EndReason | None = None
    user_id: str | None = None
    title: str | None = None
    preview: str | None = None
    metadata: Mapping[str, Json] = EMPTY
    created_us: int = 0
    active_us: int = 0
    generation: int = 0
    began: int = 0
    ordinal: int = 0
    ordinal_began: int = 0
    tokens: int = 0
    carried: int = 0
    carried_tokens: int = 0
    open_calls: tuple[OpenCall, ...] = ()
    answered: tuple[str, ...] = ()
    kept: tuple[int, ...] = ()
    pins: tuple[int, ...] = ()
    turn: int = 0
    turn_ordinal: int = 0
    group: int = 0
    root_id: str | None = None
    continued_from: str | None = None
    continuations: tuple[str, ...] = ()
    continuation_index: int = 0
    policy: WindowPolicy | None = None
    cut: Cut | None = None
    summary: Summary | None = None
    written: Summary | None = None
    live: int = 0
    corrections: tuple[Correction, ...] = ()
    forked_from: tuple[str, int] | None = None
    rebased: int = 0
    handed: int = 0
    handed_more: tuple[int, ...] = ()
    until: int = 0
    erased: int = 0

    @property
    def gone(self) -> bool:
        """Whether it is hidden: deleted, or not imported completely."""
        return self.status is SessionStatus.DELETED or self.version < self.until

    @property
    def message_count(self) -> int:
        """The number of messages of the present generation."""
        return self.ordinal - self.ordinal_began

    @property
    def own_count(self) -> int:
        """The number of messages of the present generation that were not carried over."""
        return self.ordinal - self.ordinal_began - self.carried

    @property
    def continued_to(self) -> str | None:
        """The newest session that continues this one."""
        return self.continuations[-1] if self.continuations else None

    @property
    def created_at(self) -> str:
        """When the present generation began, as ISO 8601."""
        return ids.iso(self.created_us)

    @property
    def last_active(self) -> str:
        """When the session last changed, as ISO 8601."""
        return ids.iso(self.active_us)

    def full_metadata(self) -> dict[str, Json]:
        """Return the caller's metadata together with the derived keys."""
        links = {
            "continued_from": self.continued_from,
            "continued_to": self.continued_to,
            "continuation_index": self.continuation_index if self.continued_from else None,
            "forked_from": self.forked_from[0] if self.forked_from else None,
        }
        present = {key: value for key, value in links.items() if value is not None}
        return {**self.metadata, **present, "message_count": self.message_count}

    def __repr__(self) -> str:
        return (
            f"<SessionState {self.id} {self.status} {self.message_count:,} messages,"
            f" {self.tokens:,} tokens, v{self.version}>"
        )


class SessionInfo(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One row of a listing: the projection of a session's state."""

    id: str = ""
    user_id: str | None = None
    title: str | None = None
    status: SessionStatus = SessionStatus.ACTIVE
    metadata: Mapping[str, Json] = EMPTY
    created_us: int = 0
    active_us: int = 0
    message_count: int = 0
    total_tokens: int = 0
    version: int = 0
    generation: int = 0
    continued_from: str | None = None
    continued_to: str | None = None
    continuation_index: int = 0
    pending_calls: int = 0
    forked_from: str | None = None

    def to_dict(self) -> dict[str, Json]:
        """Return the row as plain JSON, with times as ISO 8601."""
        row: dict[str, Json] = {name: getattr(self, name) for name in self.__struct_fields__}
        row["status"] = str(self.status)
        row["metadata"] = dict(self.metadata)
        row["created_at"] = ids.iso(row.pop("created_us"))
        row["last_active"] = ids.iso(row.pop("active_us"))
        return row


def info(state: SessionState) -> SessionInfo:
    """Return the fields of a listing row that are not columns of their own."""
    return SessionInfo(
        title=state.title or state.preview,
        status=state.status,
        metadata=state.metadata,
        created_us=state.created_us,
        message_count=state.message_count,
        total_tokens=state.tokens,
        version=state.version,
        generation=state.generation,
        continued_from=state.continued_from,
        continued_to=state.continued_to,
        continuation_index=state.continuation_index,
        pending_calls=len(state.open_calls),
        forked_from=state.forked_from[0] if state.forked_from else None,
    )
