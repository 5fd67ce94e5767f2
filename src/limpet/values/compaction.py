"""How a frame drops or summarises handles, and the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import msgspec

from limpet import errors
from limpet.values.context import CompactionLevel


class CompactionStrategy(msgspec.Struct, frozen=True):
    """Which handles go. Critical and pinned ones never do; a tool call goes together with its result.

    PRIORITY_BASED drops the least important first, the oldest first among equals, until the rest fits.
    SUMMARIZE_OLDEST replaces all but the newest ten by one summary. `truncate_at(n)` keeps the newest n.
    `custom(fn)` takes a function from a complete ContextPack to one without the segments to drop.
    """

    PRIORITY_BASED: ClassVar[CompactionStrategy]
    SUMMARIZE_OLDEST: ClassVar[CompactionStrategy]

    name: str
    message_count: int | None = None
    function: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise errors.InvalidRequest(
                f"a strategy is one of {', '.join(_NAMES)}, not {self.name!r}.",
                hint="For example CompactionStrategy.PRIORITY_BASED.",
            )
        count = cast("object", self.message_count)
        if self.name == _TRUNCATE and (
            not isinstance(count, int) or type(count) is bool or count < 0
        ):
            raise errors.InvalidRequest("truncate_at takes a number of handles, 0 or more.")
        if self.name == _CUSTOM and not callable(self.function):
            raise errors.InvalidRequest(
                "custom takes a function from a ContextPack to another one."
            )

    @classmethod
    def truncate_at(cls, message_count: int) -> CompactionStrategy:
        """Keep the newest `message_count` handles, and those that are never dropped."""
        return cls(_TRUNCATE, message_count)

    @classmethod
    def custom(cls, function: Callable[[Any], Any]) -> CompactionStrategy:
        """Drop the handles whose segments the function removes from a ContextPack."""
        return cls(_CUSTOM, None, function)

    def __repr__(self) -> str:
        return f"<CompactionStrategy {self.label}>"

    @property
    def label(self) -> str:
        """The name for output: priority_based, summarize_oldest, truncate_at(5), custom."""
        return self.name if self.message_count is None else f"{self.name}({self.message_count})"


_TRUNCATE = "truncate_at"
_CUSTOM = "custom"
_NAMES = ("priority_based", "summarize_oldest", _TRUNCATE, _CUSTOM)

CompactionStrategy.PRIORITY_BASED = CompactionStrategy("priority_based")
CompactionStrategy.SUMMARIZE_OLDEST = CompactionStrategy("summarize_oldest")


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction, in tokens and handles. `target_met`: the rest fits.

    `items_removed` were dropped; `items_summarized` are under a summary or were shortened.
    """

    original_tokens: int
    final_tokens: int
    compaction_level: CompactionLevel
    items_removed: int = 0
    items_summarized: int = 0
    target_met: bool = True
