"""What the acceptance tests have in common: short ways to say what happens in a conversation."""

from __future__ import annotations

from typing import Any, Protocol

from limpet import Limpet, Message, Session, ToolCallRequest, ToolCallResult
from limpet.core.values import ids
from limpet.core.values.events import MessageAddedEvent, RecordedEvent
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings


class Opener(Protocol):
    def __call__(self, **options: Any) -> Limpet: ...


def user(text: str = "q") -> Message:
    return Message("user", text)


def answer(text: str = "a") -> Message:
    return Message("assistant", text)


def asking(*call_ids: str) -> Message:
    calls = [ToolCallRequest(id_, f"tool_{id_}", {"of": id_}) for id_ in call_ids]
    return Message("assistant", tool_calls=calls)


def giving(*call_ids: str) -> Message:
    return Message("tool", tool_results=[ToolCallResult(id_, "r") for id_ in call_ids])


def texts(session: Session) -> list[Any]:
    return [message.content for message in session.messages]


def own_texts(session: Session) -> list[Any]:
    """Without what was carried over from another session."""
    return [message.content for message in session.messages if message.origin is None]


def engine_of(lp: Limpet) -> Engine:
    return lp._opened.engine


def neighbour(lp: Limpet, tenant: str) -> Sessions:
    """Another tenant's manager over the very same store."""
    return Sessions(SessionService(engine_of(lp), Settings(tenant=tenant)))


def set_clock(lp: Limpet, now_us: int) -> None:
    """Let the engine's clock stand at a moment."""
    engine = engine_of(lp)
    engine.now_us = lambda: now_us
    engine.factory = ids.Factory(now_us=lambda: now_us, random=engine.factory.random)


def feed(lp: Limpet) -> list[RecordedEvent]:
    """The whole log, after a look at its numbering: 1, 2, 3 … in the feed and in each session."""
    whole = list(lp.events.feed())
    assert [event.position for event in whole] == list(range(1, len(whole) + 1))
    events = [event for event in whole if isinstance(event, RecordedEvent)]
    seen: dict[str, int] = {}
    for event in events:
        assert event.version == seen.get(event.session_id, 0) + 1
        seen[event.session_id] = event.version
    return events


def said(lp: Limpet) -> list[Any]:
    """Contents of every message in the log, in order."""
    return [e.event.message.content for e in feed(lp) if isinstance(e.event, MessageAddedEvent)]
