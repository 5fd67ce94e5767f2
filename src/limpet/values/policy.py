"""The window policy of a session, the cuts it causes, and corrections of counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec
from msgspec.structs import force_setattr

from limpet import errors, limits
from limpet.values.frozen import EMPTY, checked_text, freeze
from limpet.values.message import Message, MessageCategory

PREFIXES: Final = {
    "en": "Summary of previous context: ",
    "ja": "前文の要約：",
    "zh": "前文摘要：",
}
"""The first words of a summary, by language."""

LANGUAGES: Final = tuple(PREFIXES)
"""The languages of those words."""


def checked_prefix(prefix: object) -> str:
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

    A window has `budget` tokens, counted as `model` does or by a named `counter`; `reserve` of them are for
    tool definitions and the answer. An append that takes the window past its `high`-water mark records a
    cut down to the `low`-water mark (both are parts of the budget without the reserve). With `stubs`, tool
    outputs from before the current turn are replaced by their size first; then the oldest turns go. With
    `summary`, a language, a rolling summary replaces them. Between two cuts the beginning of the window does
    not change. `shares` limit categories of messages to parts of the window, for example {"CONTEXT": 0.3},
    unless others leave room; with shares there are no cuts, and each window is fitted anew. A written summary
    is refused if it keeps less than `recall` of the names, numbers and identifiers of its messages. A summary
    begins with `summary_prefix`, or with the words of its language.
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
        for name, least in (("budget", 1), ("reserve", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise errors.InvalidRequest(
                    f"{name} is a number of tokens, {least} or more, not {value!r}."
                )
        if self.budget > limits.TOKENS_MAX:
            raise errors.InvalidRequest(
                f"budget is a number of tokens, at most {limits.TOKENS_MAX:,}."
            )
        if self.reserve >= self.budget:
            raise errors.InvalidRequest(
                f"a reserve of {self.reserve:,} leaves nothing of a budget of {self.budget:,}.",
                hint="Raise the budget, or lower the reserve.",
                facts={"reserve": self.reserve, "budget": self.budget},
            )
        self._check_counter()
        self._check_marks()
        if type(cast("object", self.stubs)) is not bool:
            raise errors.InvalidRequest("stubs is True or False.")
        if self.summary is not None and self.summary not in LANGUAGES:
            raise errors.InvalidRequest(
                f"summary is None or a language, one of {', '.join(LANGUAGES)}."
            )
        if type(cast("object", self.recall)) not in (int, float) or not 0 <= self.recall <= 1:
            raise errors.InvalidRequest("recall is a part from 0 to 1.")
        if self.summary_prefix is not None:
            force_setattr(self, "summary_prefix", checked_prefix(self.summary_prefix))
        force_setattr(self, "shares", _checked_shares(self.shares))

    def _check_counter(self) -> None:
        for name, value in (("model", self.model), ("counter", self.counter)):
            if value is not None and not isinstance(cast("object", value), str):
                raise errors.InvalidRequest(f"{name} is a name, not {type(value).__name__}.")
        if self.model is not None and self.counter is not None:
            raise errors.InvalidRequest(
                "model and counter are both given.", hint="A model has its own counter: give one."
            )

    def _check_marks(self) -> None:
        marks = (self.low, self.high)
        if any(type(cast("object", mark)) not in (int, float) for mark in marks) or not (
            0 < self.low < self.high <= 1
        ):
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
            f"the shares add up to {sum(names.values()):.2f}; 1 is the whole budget.",
            hint="Lower some of them.",
        )
    return freeze(names)


class Cut(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where windows of a session begin: messages before number `first` are out, except those that always stay.

    Tool results before number `stubs` are replaced by their size. The cut was made for windows of `budget`
    tokens; what was left had `tokens`. `asked` is the question of the turn that the cut fell into.
    """

    first: int
    stubs: int = 0
    budget: int = 0
    tokens: int = 0
    asked: int = 0


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A system message that replaces messages `first` to `last` in windows.

    `author` wrote it; without one it consists of extracted sentences until a better one is written. `recall` is
    the part of the names, numbers and identifiers of its messages that it keeps.
    """

    first: int
    last: int
    text: str
    timestamp: str
    tokens: int = 0
    author: str = ""
    recall: float | None = None

    def message(self) -> Message:
        """Return the summary as the model sees it; the same every time."""
        return Message(
            "system", self.text, MessageCategory.SYSTEM, f"summary_{self.first}_{self.last}", self.timestamp
        )  # fmt: skip


class Usage(msgspec.Struct, frozen=True):
    """The tokens that a provider charged for a request, and what a counter had estimated."""

    counter: str
    estimated: int
    reported: int

    def __post_init__(self) -> None:
        for value in (self.estimated, self.reported):
            if type(cast("object", value)) is not int or value <= 0:
                raise errors.InvalidRequest("a calibration compares two counts of 1 or more.")


class Correction(msgspec.Struct, frozen=True):
    """The factor by which a counter is corrected, from so many observations.

    Newer observations keep a minimum weight, because models change under their names.
    """

    counter: str
    factor: float = 1.0
    observations: int = 0

    def after(self, usage: Usage) -> Correction:
        """Return the correction after one more observation."""
        weight = 1 / (min(self.observations, limits.CALIBRATION_MEMORY) + 1)
        ratio = bounded(usage.reported / usage.estimated)
        factor = bounded(self.factor + (ratio - self.factor) * weight)
        return Correction(self.counter, factor, self.observations + 1)


def bounded(factor: float) -> float:
    """Return a factor limited to limits.CALIBRATION_FACTOR_MAX, up or down."""
    most = limits.CALIBRATION_FACTOR_MAX
    return min(most, max(1 / most, factor))


def corrected(known: tuple[Correction, ...], usage: Usage) -> tuple[Correction, ...]:
    """Return the corrections after one more observation."""
    others = tuple(one for one in known if one.counter != usage.counter)
    here = next((one for one in known if one.counter == usage.counter), Correction(usage.counter))
    return (*others, here.after(usage))
