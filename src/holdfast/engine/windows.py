"""From a session to a window: the newest messages, what must be there beside them, and a counter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast import errors, limits
from holdfast.context import selecting
from holdfast.context import window as windows
from holdfast.context.window import Counted, Gap, Piece, Window
from holdfast.engine.engine import Engine
from holdfast.engine.handles import Handle
from holdfast.engine.states import message_of, recorded, stream_of
from holdfast.engine.tails import Said, Tail
from holdfast.store import port
from holdfast.values.context import CompactionLevel, Selection
from holdfast.values.event import MessageAdded, WindowRecorded
from holdfast.values.frozen import Json, freeze
from holdfast.values.message import Message, checked_id
from holdfast.values.session import SessionState

if TYPE_CHECKING:
    from holdfast import tokens

DEFAULT_COUNTER = "o200k_base"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants a window to be: `reserve` and `tools` are taken off its budget."""

    budget: int
    model: str | None = None
    counter: str | tokens.Counter | None = None
    tools: Sequence[Mapping[str, Json]] = ()
    reserve: int = 0
    least: CompactionLevel = CompactionLevel.NONE
    stable: bool = True

    def __post_init__(self) -> None:
        windows.checked_budget(self.budget)
        for name, value in (("model", self.model), ("counter", self.counter)):
            if (
                value is not None
                and not isinstance(cast("object", value), str)
                and (name == "model" or not hasattr(value, "message"))
            ):
                raise errors.InvalidRequest(f"{name} is a name, not {type(value).__name__}.")
        if not isinstance(cast("object", self.tools), (list, tuple)) or not all(
            isinstance(cast("object", tool), Mapping) for tool in self.tools
        ):
            raise errors.InvalidRequest("tools is a list of definitions, each an object.")
        if self.model is not None and self.counter is not None:
            raise errors.InvalidRequest(
                "model and counter are both given.", hint="A model has its own counter: give one."
            )
        if type(cast("object", self.reserve)) is not int or self.reserve < 0:
            raise errors.InvalidRequest("reserve is a number of tokens, 0 or more.")
        if not isinstance(cast("object", self.least), CompactionLevel):
            raise errors.InvalidRequest("min_compaction is a CompactionLevel.")

    def measure(self) -> Measure:
        """Return the counter at work."""
        # Imported here: whoever makes no window does not pay for what counts tokens.
        from holdfast import tokens  # noqa: PLC0415

        if self.model is not None:
            counter = tokens.for_model(self.model)
        elif self.counter is None or isinstance(self.counter, str):
            counter = tokens.named(DEFAULT_COUNTER if self.counter is None else self.counter)
        else:
            counter = self.counter
        return Measure(counter, self.tools, self.reserve)


class Measure:
    """A counter at work: with its margin, so that what fits by it fits."""

    def __init__(
        self, counter: tokens.Counter, tools: Sequence[Mapping[str, Json]], reserve: int
    ) -> None:
        self._counter = counter
        self.name = counter.name
        besides = counter.reply + (counter.tools(freeze(list(tools))) if tools else 0)
        self.counted = Counted(counter.name, counter.exact, reserve + self._safe(besides))

    def _safe(self, size: int) -> int:
        if type(cast("object", size)) is not int or size < 0:
            raise errors.InvalidRequest(
                f"the counter {self.name!r} gave {size!r}; a count is an int, 0 or more."
            )
        return size if self._counter.exact else math.ceil(size * (1 + self._counter.margin))

    def count(self, message: Message) -> int:
        """Return what a message takes, at most."""
        return self._safe(self._counter.message(message))


def of_session(engine: Engine, tenant: str, state: SessionState, asked: Asked) -> Window:
    """Return the window of a session as it was at a state."""
    engine.check()
    measure = asked.measure()
    parts = _Parts(engine, tenant, state, measure).upto(asked.budget, stable=asked.stable)
    made = windows.make(
        parts, asked.budget, count=measure.count, counted=measure.counted, least=asked.least
    )
    return msgspec.structs.replace(
        made, tenant=tenant, session_id=state.id, version=state.version, began=state.ordinal_began
    )


def of_message(engine: Engine, tenant: str, state: SessionState, message_id: str) -> Window:
    """Return the window that was recorded with a message of a session."""
    engine.check()
    stream = stream_of(state.id)
    version = engine.store.find_claim(tenant, stream, checked_id("a message's id", message_id))
    if not version:
        raise errors.UnknownMessage(f"there is no message {message_id!r} in the session.")
    found = engine.store.read(tenant, stream, after=version - 2, until=version - 1, limit=1)
    event = recorded(found[0]).event if found else None
    if not isinstance(event, WindowRecorded):
        raise errors.NotFound(
            f"no window was recorded with the message {message_id!r}.",
            hint="Give it along when adding an answer: add_message(reply, window=window).",
            facts={"message": message_id},
        )
    chosen = event.selection
    spoken = _Spoken(engine.store, tenant, chosen)
    return selecting.rebuilt(chosen, spoken.count(), spoken.read)


class _Spoken:
    """Messages of a session as they were numbered when a window was recorded."""

    def __init__(self, store: port.Store, tenant: str, chosen: Selection) -> None:
        self._store = store
        self._tenant = tenant
        self._stream = stream_of(chosen.session_id)
        self._chosen = chosen

    def count(self) -> int:
        """Return how many there were."""
        version = self._chosen.version
        found = self._store.read(
            self._tenant, self._stream, after=version - 1, until=version, limit=1
        )
        return found[0].ordinal - self._chosen.began if found else 0

    def read(self, first: int, last: int) -> list[Message]:
        """Return some of them by their numbers."""
        after = self._store.seek(self._tenant, self._stream, self._chosen.began + first) - 1
        messages: list[Message] = []
        while len(messages) <= last - first:
            found = self._store.read(
                self._tenant, self._stream, after=after, until=self._chosen.version, limit=limits.READ_CHUNK
            )  # fmt: skip
            if not found:
                break
            messages += [message_of(one) for one in found if one.kind == MessageAdded.kind]
            after = found[-1].version
        return messages[: last - first + 1]


class _Parts:
    """What a window of one session is made from."""

    def __init__(self, engine: Engine, tenant: str, state: SessionState, measure: Measure) -> None:
        self._state = state
        self._measure = measure
        self._tail: Tail = engine.tails.of(tenant, state)
        kept = [self._tail.group(version, state.version) for version in (*state.kept, *state.pins)]
        # Two of one group bring it once.
        self._always = {said.version: said for group in kept for said in group}
        self._stay = list(self._always.values())

    def upto(self, budget: int, *, stable: bool) -> list[Piece | Gap]:
        """Return the newest messages, with those that stay from before, and gaps between."""
        free = budget - self._measure.counted.overhead - sum(map(self._count, self._stay))
        said = self._tail.upto(self._state)
        while (start := self._start(said, free)) is None and self._tail.older():
            said = self._tail.upto(self._state)
        if stable and start:
            said, start = self._with_marks(said, start)
            start = self._mark_after(said, start, max(1.0, free * limits.WINDOW_STEP))
        newest = said[start or 0 :]
        return self._with_gaps([*self._before(newest), *newest])

    def _with_marks(self, said: list[Said], start: int) -> tuple[list[Said], int]:
        """Read on until the marks after an index can be told, whatever was in memory."""
        while not {"user", "assistant"} <= {one.message.role for one in said[:start]}:
            if not self._tail.older():
                break
            before, said = len(said), self._tail.upto(self._state)
            start += len(said) - before
        return said, start

    def _start(self, said: Sequence[Said], room: float) -> int | None:
        """Return where the newest messages begin that there is room for; None if more have to be read."""
        for at in range(len(said) - 1, -1, -1):
            if said[at].version not in self._always:
                size = self._count(said[at])
                # A large result of the current turn is shortened rather than left out.
                now = said[at].version > self._state.turn and said[at].message.role == "tool"
                room -= min(size, limits.LIGHT_CHARS // 3) if now else size
            if room < 0:
                return self._whole(said, at)
        return None

    @staticmethod
    def _whole(said: Sequence[Said], at: int) -> int | None:
        """Return where the first group begins after an index; the newest group is looked at in any case."""
        for index in range(at + 1, len(said)):
            if said[index].message.role != "tool":
                return index
        while at and said[at].message.role == "tool":
            at -= 1
        return at if said[at].message.role != "tool" else None

    def _mark_after(self, said: Sequence[Said], start: int, step: float) -> int:
        """Return the first mark of the conversation at or after an index, where a stable window may begin.

        A window that loses one message for each new one shares no beginning with the one before, and a
        provider's prompt cache is of no use. So a window begins at a mark: the first question after
        every so many tokens, as they were counted when they came. It moves to the next only when it is
        full, and every process finds the same marks. A long turn has them at its calls.
        """
        spoken = self._state.tokens - sum(one.tokens for one in self._stay)
        for role in ("user", "assistant"):
            before, mark = spoken, -1
            cell, last = -1.0, -1
            for at in range(len(said) - 1, -1, -1):
                before -= 0 if said[at].version in self._always else said[at].tokens
                if said[at].message.role != role:
                    continue
                if last >= start and before // step != cell:
                    mark = last
                cell, last = before // step, at
                if at < start:
                    break
            if mark >= 0:
                return mark
        return start

    def _count(self, said: Said) -> int:
        found = said.counts.get(self._measure.name)
        if found is None:
            found = said.counts[self._measure.name] = self._measure.count(said.message)
        return found

    def _before(self, newest: Sequence[Said]) -> list[Said]:
        first = newest[0].version if newest else self._state.version + 1
        stay = dict(self._always)
        if self._tail.began < self._state.turn < first:
            stay |= {s.version: s for s in self._tail.group(self._state.turn, self._state.version)}
        return [stay[version] for version in sorted(stay) if version < first]

    def _with_gaps(self, said: Iterable[Said]) -> list[Piece | Gap]:
        parts: list[Piece | Gap] = []
        found, number = list(said), 0
        missing = self._state.message_count - len(found)
        size = self._state.tokens - sum(one.tokens for one in found)
        for one in found:
            if one.number > number + 1:
                parts.append(_gap(number + 1, one.number - 1, size, missing))
            parts.append(Piece(one.number, one.message, self._count(one)))
            number = one.number
        return parts


def _gap(first: int, last: int, tokens_: int, missing: int) -> Gap:
    count = last - first + 1
    # Nobody has counted them by this counter: their share of what was counted when they came.
    return Gap(first, count, max(0, tokens_) * count // max(1, missing))


class Windowed(Handle):
    """A handle that makes windows, for blocking callers."""

    __slots__ = ()

    def window(
        self,
        budget: int,
        *,
        model: str | None = None,
        counter: str | tokens.Counter | None = None,
        tools: Sequence[Mapping[str, Json]] = (),
        reserve: int = 0,
        min_compaction: CompactionLevel = CompactionLevel.NONE,
        stable: bool = True,
    ) -> Window:
        """Return what a model should see of the conversation now: at most `budget` tokens, calls whole.

        Counted as `model` does (or by a named `counter`); the definitions of `tools` and a `reserve`
        for the answer come out of the budget. A `stable` window keeps its beginning for many appends, so
        that providers can cache it; otherwise it is as full as can be. Raises ContextOverflow if what
        must be there does not fit.
        """
        asked = Asked(
            budget=budget, model=model, counter=counter, tools=tools, reserve=reserve,
            least=min_compaction, stable=stable,
        )  # fmt: skip
        return of_session(self._engine, self._tenant, self.state, asked)

    def window_of(self, message_id: str) -> Window:
        """Return what the model had seen that said a message, byte for byte, if it was recorded with it.

        Raises UnknownMessage, or NotFound if no window was.
        """
        return of_message(self._engine, self._tenant, self.state, message_id)


class AsyncWindowed(Handle):
    """The same, awaited."""

    __slots__ = ()

    async def window(
        self,
        budget: int,
        *,
        model: str | None = None,
        counter: str | tokens.Counter | None = None,
        tools: Sequence[Mapping[str, Json]] = (),
        reserve: int = 0,
        min_compaction: CompactionLevel = CompactionLevel.NONE,
        stable: bool = True,
    ) -> Window:
        """Return what a model should see of the conversation now: at most `budget` tokens, calls whole.

        The arguments are those of the blocking verb.
        """
        asked = Asked(
            budget=budget, model=model, counter=counter, tools=tools, reserve=reserve,
            least=min_compaction, stable=stable,
        )  # fmt: skip
        # Imported here: asyncio takes longer to import than all of Holdfast.
        import asyncio  # noqa: PLC0415

        return await asyncio.to_thread(of_session, self._engine, self._tenant, self.state, asked)

    async def window_of(self, message_id: str) -> Window:
        """Return what the model had seen that said a message, byte for byte, if it was recorded with it."""
        import asyncio  # noqa: PLC0415

        return await asyncio.to_thread(
            of_message, self._engine, self._tenant, self.state, message_id
        )
