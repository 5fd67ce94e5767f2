"""The state of a session, its window policy, cuts, summaries and counter corrections.

The size of the state does not depend on the length of the history: messages stay in the store. The state holds
versions, totals and open calls, which are all that the rules need.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self, cast

import msgspec
from msgspec.structs import force_setattr

from limpet import errors, limits
from limpet.core.values import ids
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.validation import (
    EMPTY,
    Json,
    checked_bool,
    checked_choice,
    checked_int,
    checked_number,
    checked_str,
    checked_text,
    freeze,
)

SUMMARY_PREFIXES: Final = {"en": "Summary of previous context: ", "ja": "前文の要約：", "zh": "前文摘要："}
"""The first words of a summary, by language."""

SUMMARY_LANGUAGES: Final = tuple(SUMMARY_PREFIXES)
"""The languages that have a summary prefix."""


def checked_summary_prefix(prefix: object) -> str:
    """Return the first words of summaries; raise InvalidRequest if they are not valid."""
    if not isinstance(prefix, str) or not prefix.strip():
        raise errors.InvalidRequest(
            "summary_prefix is the text that a summary begins with.", hint="Leave it out for the one of the language."
        )  # fmt: skip
    if len(prefix) > limits.SUMMARY_PREFIX_CHARS_MAX:
        raise errors.InvalidRequest(
            f"summary_prefix has {len(prefix):,} characters; it may have {limits.SUMMARY_PREFIX_CHARS_MAX}."
        )
    return checked_text(prefix)


class WindowPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How large a session's windows are and how they shrink. It is stored in the session's log.

    A window has `budget` tokens, counted with the counter of `model` or a named `counter`; `reserve` of them are for
    tool definitions and the answer. An append that exceeds the `high`-water mark records a cut down to the `low`-water
    mark (both are parts of the budget without the reserve). A cut first replaces tool outputs before the current turn by
    their size (`stubs`), then removes the oldest turns. With `summary`, a language, a rolling summary replaces them.
    Between two cuts the beginning of the window does not change. `shares` limit categories of messages to parts of the
    window, for example {"CONTEXT": 0.3}, unless others leave room; with shares there are no cuts, and each window is
    fitted anew. A written summary is refused if it keeps less than `recall` of the names, numbers and identifiers of
    its messages. A summary begins with `summary_prefix`, or with the prefix of its language.
    """

    budget: int
    model: str | None = None
    counter: str | None = None
    reserve: int = 0
    high: float = 1.0
    low: float = 0.6
    stubs: bool = True
    summary: str | None = None
    shares: Mapping[str, float] = EMPTY
    recall: float = 0.0
    summary_prefix: str | None = None

    def __post_init__(self) -> None:
        checked_int("budget", self.budget, 1, limits.TOKENS_MAX, unit="a number of tokens")
        checked_int("reserve", self.reserve, unit="a number of tokens")
        if self.reserve >= self.budget:
            raise errors.InvalidRequest(
                f"a reserve of {self.reserve:,} leaves nothing of a budget of {self.budget:,}.",
                hint="Raise the budget, or lower the reserve.",
                facts={"reserve": self.reserve, "budget": self.budget},
            )
        self._check_counter()
        self._check_marks()
        checked_bool("stubs", self.stubs)
        if self.summary is not None:
            checked_choice("summary", self.summary, SUMMARY_LANGUAGES)
        checked_number("recall", self.recall, most=1, unit="a part")
        if self.summary_prefix is not None:
            force_setattr(self, "summary_prefix", checked_summary_prefix(self.summary_prefix))
        force_setattr(self, "shares", _checked_shares(self.shares))

    def _check_counter(self) -> None:
        for name, value in (("model", self.model), ("counter", self.counter)):
            if value is not None:
                checked_str(name, value)
        if self.model is not None and self.counter is not None:
            raise errors.InvalidRequest(
                "model and counter are both given.", hint="A model has its own counter: give one."
            )

    def _check_marks(self) -> None:
        marks = (self.low, self.high)
        if any(type(cast("object", mark)) not in (int, float) for mark in marks) or not (0 < self.low < self.high <= 1):
            raise errors.InvalidRequest(
                f"the marks are parts of the budget, 0 < low < high <= 1, not {self.low!r} and {self.high!r}."
            )


def _checked_shares(shares: Mapping[str, float]) -> Mapping[str, float]:
    if not isinstance(cast("object", shares), Mapping):
        raise errors.InvalidRequest('shares is a mapping, for example {"DIALOG": 0.4}.')
    names = {
        name.name if isinstance(name, MessageCategory) else name: share
        for name, share in cast("Mapping[str | MessageCategory, float]", shares).items()
    }
    for name, share in names.items():
        if name not in MessageCategory.__members__:
            known = ", ".join(MessageCategory.__members__)
            raise errors.InvalidRequest(f"{name!r} is no category.", hint=f"There are {known}.")
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise errors.InvalidRequest(f"the share of {name} is a part from 0 to 1.")
    if sum(names.values()) > 1 + 1e-9:
        raise errors.InvalidRequest(
            f"the shares add up to {sum(names.values()):.2f}; 1 is the whole budget.", hint="Lower some of them."
        )
    return freeze(names)


class Cut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The beginning of a session's windows: messages before number `first` are left out, unless always visible.

    Tool results before number `stubs` are replaced by their size. The cut was made for windows of `budget` tokens;
    `tokens` were left. `asked` is the number of the question of a turn that the cut divides.
    """

    first: int
    stubs: int = 0
    budget: int = 0
    tokens: int = 0
    asked: int = 0


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A system message that replaces messages `first` to `last` in windows.

    `author` is the writer, for example a model; a summary without an author consists of extracted sentences. `recall`
    is the part of the names, numbers and identifiers of the messages that the summary contains.
    """

    first: int
    last: int
    text: str
    timestamp: str
    tokens: int = 0
    author: str = ""
    recall: float | None = None

    def message(self) -> Message:
        """Return the summary as the message that a model sees; it is the same every time."""
        return Message(
            "system", self.text, MessageCategory.SYSTEM, f"summary_{self.first}_{self.last}", self.timestamp
        )  # fmt: skip


class ReportedUsage(msgspec.Struct, frozen=True):
    """The tokens that a provider charged for a request, and the estimate of a counter."""

    counter: str
    estimated: int
    reported: int

    def __post_init__(self) -> None:
        for value in (self.estimated, self.reported):
            if type(cast("object", value)) is not int or value <= 0:
                raise errors.InvalidRequest("a calibration compares two counts of 1 or more.")


class CounterCorrection(msgspec.Struct, frozen=True):
    """The correction factor of a counter, and its number of observations.

    New observations keep a minimum weight, because providers change models without renaming them.
    """

    counter: str
    factor: float = 1.0
    observations: int = 0

    def with_usage(self, usage: ReportedUsage) -> Self:
        """Return the correction after one more observation."""
        weight = 1 / (min(self.observations, limits.CALIBRATION_OBSERVATIONS) + 1)
        ratio = bounded_factor(usage.reported / usage.estimated)
        factor = bounded_factor(self.factor + (ratio - self.factor) * weight)
        return type(self)(self.counter, factor, self.observations + 1)


def bounded_factor(factor: float) -> float:
    """Return a factor limited to limits.CALIBRATION_FACTOR_MAX, up or down."""
    most = limits.CALIBRATION_FACTOR_MAX
    return min(most, max(1 / most, factor))


def corrections_with_usage(known: tuple[CounterCorrection, ...], usage: ReportedUsage) -> tuple[CounterCorrection, ...]:
    """Return the corrections after one more observation."""
    found = {correction.counter: correction for correction in known}
    correction = found.pop(usage.counter, CounterCorrection(usage.counter))
    return (*found.values(), correction.with_usage(usage))


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

    `generation` counts resets; `began` and `ordinal_began` are the version and message ordinal at which the present
    generation starts. Ordinals count messages over the whole life of the stream. `kept` are the versions of system and
    context messages, which a continuation carries over; `pins` are the versions of other always visible messages.
    `turn` and `turn_ordinal` are the version and ordinal of the newest user message, `group` is the version of the
    newest message with calls. `preview` is the beginning of the first user message, for listings. `policy`, `cut` and
    `summary` define the windows; `live` are the tokens after the cut; `corrections` correct counters. `forked_from` is
    the session and version of a fork's source; `rebased` is the version of the fork or last rewind. Long-term memory has
    all generations below `handed` and those in `handed_more`. `until` is the version at which an import is complete;
    `erased` is the version of the last erasure event.
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
    corrections: tuple[CounterCorrection, ...] = ()
    forked_from: tuple[str, int] | None = None
    rebased: int = 0
    handed: int = 0
    handed_more: tuple[int, ...] = ()
    until: int = 0
    erased: int = 0

    @property
    def hidden(self) -> bool:
        """Whether the session is deleted or not imported completely."""
        return self.status is SessionStatus.DELETED or self.version < self.until

    @property
    def message_count(self) -> int:
        """The number of messages of the present generation."""
        return self.ordinal - self.ordinal_began

    @property
    def uncarried_count(self) -> int:
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
    """One row of a session listing."""

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


def session_info(state: SessionState) -> SessionInfo:
    """Return the fields of a listing row that are not columns of their own."""
    return SessionInfo(
        title=state.title or state.preview, status=state.status, metadata=state.metadata,
        created_us=state.created_us, message_count=state.message_count, total_tokens=state.tokens,
        version=state.version, generation=state.generation, continued_from=state.continued_from,
        continued_to=state.continued_to, continuation_index=state.continuation_index,
        pending_calls=len(state.open_calls), forked_from=state.forked_from[0] if state.forked_from else None,
    )  # fmt: skip
