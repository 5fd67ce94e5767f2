"""What an agent is made of: tools, a model, pieces of work, and how a run of it can end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from limpet import Message, ToolCallRequest
from limpet.frames import Suspension, ToolEffect


class ToolFailed(Exception):
    """A tool could not do what it was asked for; the model is told why."""


class WorkFailed(Exception):
    """A piece of work was given up, and its frame says why."""


class AwaitingDecision(Exception):
    """The work stands still until somebody has decided; then run it again."""

    def __init__(self, suspension: Suspension) -> None:
        super().__init__(suspension.reason)
        self.suspension = suspension


class Tool(NamedTuple):
    """What the loop knows of a tool. `do` takes the call's arguments by name, and `key`.

    The key is the same for every attempt at one call. `effect` says what a second attempt does; a destructive
    tool runs only after somebody has said yes. `parameters` are names and JSON types, for models that are told.
    """

    do: Callable[..., Any]
    effect: ToolEffect = ToolEffect.DESTRUCTIVE
    description: str = ""
    parameters: Mapping[str, Any] = MappingProxyType({})

    @property
    def asks(self) -> bool:
        """Whether somebody is asked before it runs."""
        return self.effect is ToolEffect.DESTRUCTIVE


class Work(NamedTuple):
    """A piece of work. The same id again is the same work: begun, half done or finished."""

    id: str
    goal: str
    session_id: str
    budget: int = 20_000
    parent: str | None = None


class Reply(NamedTuple):
    """What a model said, and the tokens that its provider reports for it."""

    text: str
    calls: Sequence[ToolCallRequest] = ()
    tokens: int = 0


class Shown(Protocol):
    """What a model is shown: a window, or a pack."""

    @property
    def messages(self) -> Sequence[Message]:
        """The messages, in order."""
        ...

    def to_openai(self) -> Sequence[Mapping[str, Any]]:
        """Return them as OpenAI's endpoints take them."""
        ...


Model = Callable[[Shown, Mapping[str, Tool]], Reply]
