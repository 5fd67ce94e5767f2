"""Windows that were recorded with answers: found by their events, newest first, without reading the rest."""

from __future__ import annotations

from typing import cast

import msgspec

from limpet import errors, limits
from limpet.core.values import ids
from limpet.core.values.context import CompactionLevel
from limpet.core.values.events import MessageAddedEvent, WindowRecordedEvent
from limpet.core.values.session_state import SessionState
from limpet.engine.windows import AsyncWindowed, Windowed
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.state_cache import decode_session_events


class RecordedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What the log says of a recorded window; `window_of(message_id)` makes the window itself again.

    `version` is the number of its event in the session, `answer` that of the message that followed it,
    which has this id and this `number` in the conversation. `seen` is the version of the session
    `session_id` that the window shows, `messages` how many it has.
    """

    version: int
    recorded_at: str
    message_id: str
    number: int
    session_id: str
    seen: int
    messages: int
    budget: int
    tokens: int
    counter: str
    exact: bool
    level: CompactionLevel
    digest: str

    @property
    def answer(self) -> int:
        """The number of the answer's event."""
        return self.version + 1


class _Log(SessionEventSearch):
    """One session's events, looked through for recorded windows."""

    def at(self, version: int) -> RecordedWindow | None:
        """Return the window that was recorded with this event; None if it holds none."""
        found = self.read(version - 1, version + 1)
        if len(found) < 2 or found[0].kind != WindowRecordedEvent.kind:
            return None
        window, said = (
            fact.event for fact in decode_session_events(self._store, self._tenant, found)
        )
        if not isinstance(window, WindowRecordedEvent) or not isinstance(said, MessageAddedEvent):
            return None
        chosen, answer = window.selection, found[1]
        began = 0
        if version > self.state.began:
            began = self.state.ordinal_began
        elif chosen.session_id == self.state.id:
            began = chosen.began
        return RecordedWindow(
            version=version, recorded_at=ids.iso(found[0].time_us), message_id=said.message.id,
            number=answer.ordinal - began, session_id=chosen.session_id, seen=chosen.version,
            messages=len(chosen.sizes), budget=chosen.budget, tokens=chosen.tokens, counter=chosen.counter,
            exact=chosen.exact, level=chosen.level, digest=chosen.digest,
        )  # fmt: skip

    def near(self, version: int) -> tuple[int | None, int | None]:
        """Return the events of the nearest recorded windows before and after one."""
        low, end = self.floor(), self.state.version
        place = min(max(version, low), end)
        before = self.versions(WindowRecordedEvent.kind, low, place, newest=True)
        after = self.versions(WindowRecordedEvent.kind, place, end, newest=False)
        return next(before, None), next(after, None)


def _event(name: str, version: int) -> int:
    if type(cast("object", version)) is not int or version < 1:
        raise errors.InvalidRequest(f"{name} is the number of an event: an int, 1 or more.")
    return version


def one(engine: Engine, tenant: str, state: SessionState, version: int) -> RecordedWindow:
    """Return the window that was recorded with an event: its own, or that of a message said with it."""
    engine.check()
    log = _Log(engine.store, tenant, state)
    if _event("version", version) <= state.version:
        behind = log.recorded_for(version)
        found = log.at(version) or (log.at(behind[0]) if behind else None)
        if found is not None and found.version > log.floor():
            return found
        what = f"no window was recorded with event {version:,}."
    else:
        what = f"the session has no event {version:,}; its last is {state.version:,}."
    before, after = log.near(version)
    near = [f"{event:,}" for event in (before, after) if event is not None]
    hint = "Give it along when adding an answer: add_message(reply, window=window)."
    if near:
        hint = f"The nearest that have one: {', '.join(near)}."
    raise errors.WindowNotFound(
        what, hint=hint, facts={"version": version, "before": before, "after": after}
    )


def page(
    engine: Engine, tenant: str, state: SessionState, limit: int, before: int | None
) -> list[RecordedWindow]:
    """Return recorded windows, newest first."""
    if type(cast("object", limit)) is not int or not 1 <= limit <= limits.PAGE_SIZE_MAX:
        raise errors.InvalidRequest(f"limit is a number from 1 to {limits.PAGE_SIZE_MAX:,}.")
    end = state.version
    if before is not None:
        end = min(end, _event("before", before) - 1)
    engine.check()
    log = _Log(engine.store, tenant, state)
    made: list[RecordedWindow] = []
    for version in log.versions(WindowRecordedEvent.kind, log.floor(), end, newest=True):
        found = log.at(version)
        if found is not None:
            made.append(found)
        if len(made) == limit:
            break
    return made


class Recalling(Windowed):
    """A handle that finds recorded windows, for blocking callers."""

    __slots__ = ()

    def recorded_windows(
        self, limit: int = limits.RECORDED_PAGE, *, before: int | None = None
    ) -> list[RecordedWindow]:
        """Return what was recorded of windows, newest first; those before an event, if one is given."""
        return self._looked(lambda state: page(self._engine, self._tenant, state, limit, before))

    def recorded_window(self, version: int) -> RecordedWindow:
        """Return what was recorded with an event: the window's own, or that of the answer right after it.

        Raises WindowNotFound, which names the nearest events that have one.
        """
        return self._looked(lambda state: one(self._engine, self._tenant, state, version))


class AsyncRecalling(AsyncWindowed):
    """The same, awaited."""

    __slots__ = ()

    async def recorded_windows(
        self, limit: int = limits.RECORDED_PAGE, *, before: int | None = None
    ) -> list[RecordedWindow]:
        """Return what was recorded of windows, newest first; those before an event, if one is given."""
        # Imported here: asyncio takes longer to import than all of Limpet.
        import asyncio  # noqa: PLC0415

        return await asyncio.to_thread(page, self._engine, self._tenant, self.state, limit, before)

    async def recorded_window(self, version: int) -> RecordedWindow:
        """Return what was recorded with an event: the window's own, or that of the answer right after it."""
        import asyncio  # noqa: PLC0415

        return await asyncio.to_thread(one, self._engine, self._tenant, self.state, version)
