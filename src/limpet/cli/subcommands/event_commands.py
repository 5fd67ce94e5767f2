"""`limpet events tail`: the event log of a tenant, one line for each event."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from limpet import errors, limits
from limpet.cli import exit_codes, hints, output, target
from limpet.cli.options import FLAG, CommonOptions, NonNegative, Positive
from limpet.cli.output import Output, OutputMode
from limpet.cli.subcommands.session_commands import message_text
from limpet.core.values import events, ids
from limpet.core.values.events import FramePushedEvent, MessageAddedEvent
from limpet.runtime.state_cache import TreeEvent

if TYPE_CHECKING:
    from limpet.admin.log import LogEvent
    from limpet.core.values.frame_state import Frame
    from limpet.core.values.validation import Json
    from limpet.wiring import Limpet


def event_text(fact: LogEvent, dot: str, named: Callable[[str], str] = str) -> str:
    """Return the details of an event, without its kind and its session or frame."""
    return f" {dot} ".join(part for part in _event_parts(fact, named) if part)


def _event_parts(fact: LogEvent, named: Callable[[str], str]) -> Iterator[str]:
    match fact.event:
        case events.SessionCreatedEvent(user_id=user, title=title):
            yield user or ""
            yield title or ""
        case events.MessageAddedEvent(message=message):
            yield f"{message.role}: {message_text(message)}"
        case events.WindowRecordedEvent(selection=selection):
            yield f"a window of {selection.tokens:,} tokens"
        case events.WindowCutEvent(cut=cut):
            yield f"windows begin at #{cut.first:,}"
        case events.SessionContinuedEvent(to=to):
            yield f"continues in {named(to)}"
        case events.SessionForkedEvent(source=source, version=version):
            yield f"from {named(source)} at event {version:,}"
        case events.SessionRewoundEvent(to=to_version):
            yield f"to event {to_version:,}"
        case events.SessionEndedEvent(reason=reason):
            yield str(reason)
        case events.SessionOffloadedEvent(generation=generation):
            yield f"generation {generation:,}"
        case events.SessionUpdatedEvent(title=title) if isinstance(title, str):
            yield f"title {title}"
        case (
            events.SessionSummarizedEvent()
            | events.SessionUpdatedEvent()
            | events.SessionResetEvent()
            | events.SessionErasedEvent()
            | events.ErasedEvent()
        ):
            pass
        case _:
            yield from _frame_event_parts(fact.event, named)


def _frame_event_parts(event: events.FrameEvent, named: Callable[[str], str]) -> Iterator[str]:
    match event:
        case events.FramePushedEvent():
            yield event.goal
            yield f"{event.budget.total:,} tokens"
            yield f"under {named(event.parent_frame_id)}" if event.parent_frame_id else ""
        case events.FrameUpdatedEvent():
            yield from _frame_update_parts(event, named)
        case events.FramePoppedEvent():
            yield str(event.status)
            yield event.result_summary or event.reason
        case events.FrameSuspendedEvent():
            yield f"{named(event.suspension_id)} {event.purpose}".strip()
            yield event.reason
        case events.FrameResumedEvent():
            yield f"{named(event.suspension_id)} {event.decision}" + (f", {event.by}" if event.by else "")
            yield event.reason
        case events.HandleAddedEvent():
            yield f"{event.handle.handle_id} {event.handle.description}".strip()
        case events.ResultAddedEvent():
            yield f"{event.result.result_type} {event.result.ref_id}"
            yield event.result.summary
        case events.FrameCompactedEvent():
            yield f"{len(event.removed):,} handles removed, {len(event.replaced):,} replaced"
        case events.ActorResumedEvent():
            yield event.scope.actor_id
            yield f"{len(event.unknown):,} tools of unknown outcome" if event.unknown else ""
        case events.TreeErasedEvent():
            yield f"{event.events:,} events"


def _frame_update_parts(event: events.FrameUpdatedEvent, named: Callable[[str], str]) -> Iterator[str]:
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
        yield f"{named(child)} handled"
    yield event.reason


POLL_INTERVAL_S: Final = 0.2
"""The interval at which --follow polls the log."""

EVENTS_SHOWN: Final = 20
"""The number of events shown without --since and --limit."""


@dataclass(frozen=True, kw_only=True)
class TailOptions(CommonOptions):
    """Which events to show, and whether to wait for more."""

    session: str | None = None
    """Only events of this session and its frames: its id, a prefix of it, or @last."""
    frame: str | None = None
    """Only events of this frame."""
    since: NonNegative | None = None
    """Only events after this position of the log. Default: the last events."""
    limit: Positive | None = None
    """The largest number of events. Default: 20, or all with --since."""
    follow: Annotated[bool, FLAG, Parameter(name=["--follow", "-f"])] = False
    """Wait for more events until interrupted; then print the position to continue from."""


class EventTail:
    """Finds and prints the events of one tenant."""

    def __init__(self, lp: Limpet, wanted: TailOptions, surface: Output) -> None:
        self._lp = lp
        self._surface = surface
        self._session = target.session_id_or_reference(lp, wanted.session)
        self._frame = target.find_frame(lp, wanted.frame).frame_id if wanted.frame else None
        self._frames: dict[str, Frame | None] = {}
        self._head = target.head_position(lp, wanted.tenant)
        self.position = self._head if wanted.since is None else wanted.since

    def last_events(self, count: int) -> list[LogEvent]:
        """Return the last `count` matching events, oldest first. Reads the log backwards."""
        found: list[LogEvent] = []
        until = self._head
        while until > 0 and len(found) < count:
            after = max(0, until - limits.READ_CHUNK)
            page = self._lp.events.page(after, until - after)
            found = [fact for fact in page if self._matches(fact)] + found
            until = after
        return found[-count:]

    def new_events(self) -> Iterator[LogEvent]:
        """Yield the matching events after `position`, and advance `position` over all events."""
        for fact in self._lp.events.feed(self.position):
            if self._matches(fact):
                yield fact
            self.position = fact.position

    def _matches(self, fact: LogEvent) -> bool:
        if isinstance(fact, TreeEvent):
            if self._frame is not None:
                return fact.event.frame_id == self._frame
            frame = self._frame_of(fact.event.frame_id) if self._session is not None else None
            return self._session is None or (frame is not None and frame.scope.session_id == self._session)
        return self._frame is None and self._session in (None, fact.session_id)

    def _frame_of(self, frame_id: str) -> Frame | None:
        if frame_id not in self._frames:
            try:
                self._frames[frame_id] = self._lp.index.get_frame(frame_id)
            except errors.FrameNotFound:
                self._frames[frame_id] = None
        return self._frames[frame_id]

    def print_event(self, fact: LogEvent) -> None:
        surface = self._surface
        about = fact.event.frame_id if isinstance(fact, TreeEvent) else fact.session_id
        if surface.mode is OutputMode.JSON:
            print(output.escape_json(json.dumps(_event_document(fact), ensure_ascii=surface.ascii)))
        elif surface.mode is OutputMode.PIPE:
            what = event_text(fact, surface.symbols.dot)
            surface.print_row(fact.position, ids.iso(fact.time_us), fact.kind, about, what)
        else:
            self._print_for_terminal(fact, about, self._frame_of(about) if isinstance(fact, TreeEvent) else None)

    def _print_for_terminal(self, fact: LogEvent, about: str, frame: Frame | None) -> None:
        glyphs, width = self._surface.symbols, self._surface.console.width

        def short(id_: str) -> str:
            return target.short_ids([id_], glyphs.cut)[id_]

        moment = datetime.fromtimestamp(fact.time_us / 1e6, UTC).astimezone()
        head = f"{fact.position:>7,}  {moment:%H:%M:%S}  {fact.kind:<15}  {short(about)}"
        goal = frame.goal if frame and not isinstance(fact.event, FramePushedEvent) else ""
        # The details of the event need more room than the goal of its frame.
        room = max((width - len(head)) // 3, 8)
        goal = goal if len(goal) <= room else f"{goal[: room - 1]}{glyphs.cut}"
        what = event_text(fact, glyphs.dot, short)
        between = f" {glyphs.dot} " if goal and what else " "
        self._surface.print_truncated(f"{head}{' ' if goal else ''}{goal}{between}{what}")


def _event_document(fact: LogEvent) -> dict[str, Json]:
    event = fact.event
    data: dict[str, Json] = msgspec.to_builtins(event)
    if isinstance(event, MessageAddedEvent):
        data["message"] = event.message.to_dict()
    # The hash of a token is only for checking the token and is never shown.
    data.pop("token_hash", None)
    where: dict[str, Json] = (
        {"frame": fact.event.frame_id, "tree": fact.root_id}
        if isinstance(fact, TreeEvent)
        else {"session": fact.session_id}
    )
    return {
        "position": fact.position, "time": ids.iso(fact.time_us), "kind": fact.kind, **where,
        "version": fact.version, "data": data,
    }  # fmt: skip


def tail_events(wanted: TailOptions = TailOptions()) -> int:
    """Show the event log, one line for each event. With --json each line is one object.

    Example: limpet events tail --session @last --follow
    """
    surface = Output(wanted)
    with target.open_store(wanted) as lp:
        tail = EventTail(lp, wanted, surface)
        if not wanted.follow:
            _print_recorded_events(tail, wanted, surface)
            return exit_codes.DONE
        try:
            _follow_log(tail, wanted, surface)
        except KeyboardInterrupt:
            print(f"resumable: --since {tail.position}", file=sys.stderr)
            return exit_codes.INTERRUPTED
    return exit_codes.DONE


def _print_recorded_events(tail: EventTail, wanted: TailOptions, surface: Output) -> None:
    if wanted.since is None:
        for fact in tail.last_events(wanted.limit or EVENTS_SHOWN):
            tail.print_event(fact)
        return
    last = 0
    for number, fact in enumerate(tail.new_events(), 1):
        if wanted.limit is not None and number > wanted.limit:
            surface.note(f"There are more: {_next_page_command(wanted, last)}")
            return
        tail.print_event(fact)
        last = fact.position


def _next_page_command(wanted: TailOptions, since: int) -> str:
    given = [
        ("--session", wanted.session), ("--frame", wanted.frame), ("--since", since), ("--limit", wanted.limit),
    ]  # fmt: skip
    return hints.command_line("events tail", *hints.given_options(given), on=wanted.store_options)


def _follow_log(tail: EventTail, wanted: TailOptions, surface: Output) -> None:
    # A server may be unavailable for a while; a file that cannot be read ends the command.
    patient = target.on_server(wanted.url)
    left = itertools.count()
    if wanted.since is None:
        for fact in tail.last_events(wanted.limit or EVENTS_SHOWN):
            tail.print_event(fact)
    elif wanted.limit is not None:
        left = iter(range(wanted.limit))
    away = False
    while True:
        try:
            for fact in tail.new_events():
                if next(left, None) is None:
                    return
                tail.print_event(fact)
                away = False
        except errors.Unavailable as error:
            if not patient:
                raise
            if not away:
                surface.note(f"{error.message} Continues after position {tail.position} when the server is back.")
            away = True
        sys.stdout.flush()
        time.sleep(POLL_INTERVAL_S)
