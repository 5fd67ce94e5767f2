"""`limpet events tail`: a tenant's log, a line for each event of a session or a frame."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from limpet import errors, limits
from limpet.cli import again, exits, target, visible
from limpet.cli.frames import naming, telling
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values import ids
from limpet.core.values.events import FramePushedEvent, MessageAddedEvent
from limpet.runtime.state_cache import TreeEvent

if TYPE_CHECKING:
    from limpet.admin.log import Fact
    from limpet.core.values.frame_state import Frame
    from limpet.core.values.json_values import Json
    from limpet.wiring import Limpet

POLL_S: Final = 0.2
"""How often the log is looked at for more."""

TAIL: Final = 20
"""How many of the last events are shown if nobody says from where on."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which events: of a session, of a frame, after a position, how many; and whether to wait for more."""

    session: str | None = None
    frame: str | None = None
    since: int | None = None
    limit: int | None = None
    follow: bool = False


class Tail:
    """Finds events of one tenant, and prints them."""

    def __init__(self, lp: Limpet, wanted: Wanted, surface: Surface, common: Common) -> None:
        self._lp = lp
        self._surface = surface
        self._session = naming.session(lp, wanted.session)
        self._frame = naming.frame(lp, wanted.frame).frame_id if wanted.frame else None
        self._frames: dict[str, Frame | None] = {}
        heads: Mapping[str, Mapping[str, int]] = lp.admin.status().get("heads", {})
        self._head = heads.get(common.tenant, {}).get("position", 0)
        self.seen = self._head if wanted.since is None else wanted.since

    def last(self, count: int) -> list[Fact]:
        """Return the last so many events that are wanted, oldest first; read from the end of the log."""
        found: list[Fact] = []
        until = self._head
        while until > 0 and len(found) < count:
            after = max(0, until - limits.READ_CHUNK)
            page = self._lp.events.page(after, until - after)
            found = [fact for fact in page if self._wants(fact)] + found
            until = after
        return found[-count:]

    def new(self) -> Iterator[Fact]:
        """Yield events after the last one seen that are wanted; all count as seen."""
        for fact in self._lp.events.feed(self.seen):
            if self._wants(fact):
                yield fact
            self.seen = fact.position

    def _wants(self, fact: Fact) -> bool:
        if isinstance(fact, TreeEvent):
            if self._frame is not None:
                return fact.event.frame_id == self._frame
            frame = self._of(fact.event.frame_id) if self._session is not None else None
            return self._session is None or (
                frame is not None and frame.scope.session_id == self._session
            )
        return self._frame is None and self._session in (None, fact.session_id)

    def _of(self, frame_id: str) -> Frame | None:
        if frame_id not in self._frames:
            try:
                self._frames[frame_id] = self._lp.index.get_frame(frame_id)
            except errors.FrameNotFound:
                self._frames[frame_id] = None
        return self._frames[frame_id]

    def print(self, fact: Fact) -> None:
        """Print one event."""
        surface, of_frame = self._surface, isinstance(fact, TreeEvent)
        about = fact.event.frame_id if isinstance(fact, TreeEvent) else fact.session_id
        if surface.face is Face.JSON:
            print(visible.json_text(json.dumps(_document(fact), ensure_ascii=surface.ascii)))
            return
        frame = self._of(about) if of_frame else None
        if surface.face is Face.PIPE:
            what = telling.told(fact, surface.glyphs.dot)
            surface.row(fact.position, ids.iso(fact.time_us), fact.kind, about, what)
            return
        self._show(fact, about, frame)

    def _show(self, fact: Fact, about: str, frame: Frame | None) -> None:
        glyphs, width = self._surface.glyphs, self._surface.console.width
        moment = datetime.fromtimestamp(fact.time_us / 1e6, UTC).astimezone()
        head = (
            f"{fact.position:>7,}  {moment:%H:%M:%S}  {fact.kind:<15}  {_short(about, glyphs.cut)}"
        )
        goal = frame.goal if frame and not isinstance(fact.event, FramePushedEvent) else ""
        # What happened says more than what it is all for.
        room = max((width - len(head)) // 3, 8)
        goal = goal if len(goal) <= room else f"{goal[: room - 1]}{glyphs.cut}"
        what = telling.told(fact, glyphs.dot, lambda id_: _short(id_, glyphs.cut))
        between = f" {glyphs.dot} " if goal and what else " "
        _line(self._surface, f"{head}{' ' if goal else ''}{goal}{between}{what}")


def _short(id_: str, cut: str) -> str:
    return naming.shortened([id_], cut)[id_]


def _line(surface: Surface, text: str) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    shown = Text(visible.line(text))
    shown.truncate(surface.console.width, overflow="crop" if surface.ascii else "ellipsis")
    surface.console.print(shown, soft_wrap=True)


def _document(fact: Fact) -> dict[str, Json]:
    event = fact.event
    data: dict[str, Json] = msgspec.to_builtins(event)
    if isinstance(event, MessageAddedEvent):
        data["message"] = event.message.to_dict()
    # What is kept of a token is for checking it, and for nobody's eyes.
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


def run(wanted: Wanted, common: Common) -> int:
    """Print events; with follow until interrupted, which ends with how to go on."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        tail = Tail(lp, wanted, surface, common)
        if not wanted.follow:
            return _once(tail, wanted, surface, common)
        try:
            _follow(tail, wanted, surface, patient=target.is_server(common.url))
        except KeyboardInterrupt:
            print(f"resumable: --since {tail.seen}", file=sys.stderr)
            return exits.INTERRUPTED
    return exits.DONE


def _once(tail: Tail, wanted: Wanted, surface: Surface, common: Common) -> int:
    if wanted.since is None:
        for fact in tail.last(wanted.limit or TAIL):
            tail.print(fact)
        return exits.DONE
    last: int | None = None
    for number, fact in enumerate(tail.new(), 1):
        if wanted.limit is not None and number > wanted.limit:
            surface.note(f"There are more: {_following(wanted, last or 0, common)}")
            break
        tail.print(fact)
        last = fact.position
    return exits.DONE


def _following(wanted: Wanted, since: int, common: Common) -> str:
    given = [
        ("--session", wanted.session), ("--frame", wanted.frame), ("--since", since), ("--limit", wanted.limit),
    ]  # fmt: skip
    words = [
        word for name, value in given if value is not None for word in again.option(name, value)
    ]
    return again.command("events tail", *words, on=common.on)


def _follow(tail: Tail, wanted: Wanted, surface: Surface, *, patient: bool) -> None:
    left = itertools.count() if wanted.limit is None else iter(range(wanted.limit))
    if wanted.since is None:
        for fact in tail.last(wanted.limit or TAIL):
            tail.print(fact)
        left = itertools.count()
    away = False
    while True:
        try:
            for fact in tail.new():
                if next(left, None) is None:
                    return
                tail.print(fact)
                away = False
        except errors.Unavailable as error:
            if not patient:
                raise
            if not away:
                surface.note(f"{error.message} Goes on after position {tail.seen} when it is back.")
            away = True
        sys.stdout.flush()
        time.sleep(POLL_S)
