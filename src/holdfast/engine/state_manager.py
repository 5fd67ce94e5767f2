"""The stateless form: message lists in, message lists out. Nothing is kept, inputs stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast import errors
from holdfast.context import window as windows
from holdfast.context.window import Piece, Window
from holdfast.engine.requests import MessageLike
from holdfast.engine.windows import Asked
from holdfast.history import pairing
from holdfast.values.context import CompactionLevel
from holdfast.values.frozen import Json
from holdfast.values.message import Message
from holdfast.values.session import OpenCall
from holdfast.wire import intake

if TYPE_CHECKING:
    from holdfast import tokens


class StateManager:
    """Keeps message lists within a token limit. Pure: the same list gives the same answer.

    Lists hold messages or provider dicts, and may be broken: a result without its call, or a call
    without its results, is never handed on to a model. With `keep_system=False` the first system
    prompt goes like any other message when it is old.
    """

    def __init__(
        self,
        limit: int,
        *,
        model: str | None = None,
        counter: str | tokens.Counter | None = None,
        keep_system: bool = True,
    ) -> None:
        self._asked = Asked(budget=limit, model=model, counter=counter)
        self._measure = self._asked.measure()
        self._keep_system = keep_system

    @property
    def limit(self) -> int:
        """Tokens that a list may have."""
        return self._asked.budget

    def count(self, messages: Iterable[MessageLike]) -> int:
        """Return the tokens of a list, with what a request takes besides."""
        return sum(map(self._measure.count, _accepted(messages))) + self._measure.counted.overhead

    def fits(self, messages: Iterable[MessageLike], message: MessageLike) -> bool:
        """Whether a list stays within the limit with one more message."""
        return self.count((*_accepted(messages), message)) <= self.limit

    def add(self, messages: Sequence[MessageLike], message: MessageLike) -> list[Message]:
        """Return the list with one more message, its oldest part left out if it would exceed the limit.

        Raises a PairingError if the message may not follow, ContextOverflow if it can't fit.
        """
        said = _accepted(messages)
        new = intake.accept(message)
        pairing.check(*_calls(said), new)
        return list(self.window([*said, new]).messages)

    def truncate(self, messages: Iterable[MessageLike]) -> list[Message]:
        """Return the list with its oldest part left out, so that it is within the limit."""
        return list(self.window(messages).messages)

    def window(
        self,
        messages: Iterable[MessageLike],
        *,
        tools: Sequence[Mapping[str, Json]] = (),
        reserve: int = 0,
        min_compaction: CompactionLevel = CompactionLevel.NONE,
    ) -> Window:
        """Return what a model should see of a list, with the account of every message."""
        measure = msgspec.structs.replace(
            self._asked, tools=tools, reserve=reserve, least=min_compaction
        ).measure()
        said = enumerate(_accepted(messages), 1)
        pieces = [Piece(number, message, measure.count(message)) for number, message in said]
        return windows.make(
            pieces,
            self.limit,
            count=measure.count,
            counted=measure.counted,
            least=min_compaction,
            keep_prompt=self._keep_system,
        )


def _accepted(messages: Iterable[MessageLike]) -> list[Message]:
    if not isinstance(cast("object", messages), Iterable) or isinstance(messages, (str, Mapping)):
        raise errors.InvalidRequest("messages come in a list.")
    return [intake.accept(message) for message in messages]


def _calls(messages: Sequence[Message]) -> tuple[tuple[OpenCall, ...], tuple[str, ...]]:
    open_calls, answered = tuple[OpenCall, ...](), tuple[str, ...]()
    for message in messages:
        open_calls, answered = pairing.after(open_calls, answered, message)
    return open_calls, answered
