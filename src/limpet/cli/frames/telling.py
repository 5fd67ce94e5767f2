"""What an event says, in a few words: one line of the log for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from limpet.cli.showing import flat
from limpet.core.values import events as s

if TYPE_CHECKING:
    from limpet.admin.log import Fact


Naming = Callable[[str], str]
"""How an id is shown."""


def told(fact: Fact, dot: str, named: Naming = str) -> str:
    """Return what happened, without its kind and whom it happened to."""
    return f" {dot} ".join(part for part in _parts(fact, named) if part)


def _parts(fact: Fact, named: Naming) -> Iterator[str]:
    match fact.event:
        case s.SessionCreatedEvent(user_id=user, title=title):
            yield user or ""
            yield title or ""
        case s.MessageAddedEvent(message=message):
            yield f"{message.role}: {flat(message)}"
        case s.WindowRecordedEvent(selection=selection):
            yield f"a window of {selection.tokens:,} tokens"
        case s.WindowCutEvent(cut=cut):
            yield f"windows begin at #{cut.first:,}"
        case s.SessionContinuedEvent(to=to):
            yield f"goes on in {named(to)}"
        case s.SessionForkedEvent(source=source, version=version):
            yield f"from {named(source)} at event {version:,}"
        case s.SessionRewoundEvent(to=to_version):
            yield f"to event {to_version:,}"
        case s.SessionEndedEvent(reason=reason):
            yield str(reason)
        case s.SessionOffloadedEvent(generation=generation):
            yield f"generation {generation:,}"
        case s.SessionUpdatedEvent(title=title) if isinstance(title, str):
            yield f"title {title}"
        case (
            s.SessionSummarizedEvent()
            | s.SessionUpdatedEvent()
            | s.SessionResetEvent()
            | s.SessionErasedEvent()
            | s.ErasedEvent()
        ):
            pass
        case _:
            yield from _of_frame(fact.event, named)


def _of_frame(event: s.FrameEvent, named: Naming) -> Iterator[str]:
    match event:
        case s.FramePushedEvent():
            yield event.goal
            yield f"{event.budget.total:,} tokens"
            yield f"under {named(event.parent_frame_id)}" if event.parent_frame_id else ""
        case s.FrameUpdatedEvent():
            yield from _updated(event, named)
        case s.FramePoppedEvent():
            yield str(event.status)
            yield event.result_summary or event.reason
        case s.FrameSuspendedEvent():
            yield f"{named(event.suspension_id)} {event.purpose}".strip()
            yield event.reason
        case s.FrameResumedEvent():
            yield f"{named(event.suspension_id)} {event.decision}" + (
                f", {event.by}" if event.by else ""
            )
            yield event.reason
        case s.HandleAddedEvent():
            yield f"{event.handle.handle_id} {event.handle.description}".strip()
        case s.ResultAddedEvent():
            yield f"{event.result.result_type} {event.result.ref_id}"
            yield event.result.summary
        case s.FrameCompactedEvent():
            yield f"{len(event.removed):,} handles removed, {len(event.replaced):,} replaced"
        case s.ActorResumedEvent():
            yield event.scope.actor_id
            yield f"{len(event.unknown):,} tools of unknown outcome" if event.unknown else ""
        case s.TreeErasedEvent():
            yield f"{event.events:,} events"


def _updated(event: s.FrameUpdatedEvent, named: Naming) -> Iterator[str]:
    if isinstance(event.goal, str):
        yield f"goal {event.goal}"
    if event.status is not None:
        yield str(event.status)
    if event.used:
        yield f"{event.used:,} tokens used"
    for purpose, amount in event.reserved.items():
        yield f"{amount:,} tokens reserved {purpose}".rstrip()
    for purpose, amount in event.released.items():
        yield f"{amount:,} tokens released {purpose}".rstrip()
    if event.tool is not None:
        yield f"tool {event.tool.name} {event.tool.status}, {named(event.tool.tool_id)}"
    if event.suspension is not None:
        yield f"suspension {event.suspension}" + (f", {event.by}" if event.by else "")
    for child in event.handled:
        yield f"{named(child)} dealt with"
    yield event.reason
