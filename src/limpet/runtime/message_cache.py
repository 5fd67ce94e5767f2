"""Caches the newest messages of sessions and selects the input of windows from them.

The cost of a window depends on its messages, not on the length of the history. A commit adds its messages to
the cache. The module also applies window policies: the policy's counter counts appended messages, and the
append that exceeds the high-water mark records a cut, so every process makes the same window.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules
from limpet.core.rules.session_rules import SessionWrite
from limpet.core.values import events as e
from limpet.core.values import messages
from limpet.core.values.context import priority_of_metadata
from limpet.core.values.events import MessageAddedEvent
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.session_state import CounterCorrection, Cut, SessionState, Summary, WindowPolicy
from limpet.core.values.validation import Json, freeze
from limpet.core.windows import summary as summaries
from limpet.core.windows import window
from limpet.core.windows.fitter import ContextItem
from limpet.core.windows.window import CounterInfo, CutInput, WindowGap, WindowMessage, WindowPart, WindowSummary
from limpet.runtime.state_cache import messages_of, session_stream, truncated_stream_error
from limpet.stores import port

if TYPE_CHECKING:
    from limpet import tokens


BACKWARD_CHUNK = 64
"""The number of events in one backward read."""


class LoggedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message in the log: its version, its number in the present generation, its stored tokens.

    `counts` caches its tokens by counter name, only for registered counters: two custom counters may share a name.
    """

    version: int
    number: int
    message: Message
    tokens: int
    counts: dict[str, int]


class RecentMessages:
    """The newest messages of one generation of a session: all with after < version <= until."""

    def __init__(self, store: port.Store, tenant: str, state: SessionState) -> None:
        self._store = store
        self._tenant = tenant
        self._stream = session_stream(state.id)
        self._ordinal_began = state.ordinal_began
        self.began = state.began
        self.after = self.until = state.version
        self.messages: list[LoggedMessage] = []  # changed in place; readers get a copy of its end
        self._groups: dict[int, list[LoggedMessage]] = {}
        self._stubs: dict[int, Message] = {}
        self._versions: dict[int, int] = {}
        self._items: tuple[object, dict[int, ContextItem]] = (None, {})
        self._lock = threading.Lock()

    def up_to(self, state: SessionState, newest: int) -> list[LoggedMessage]:
        """Read up to the version of a state; return at most `newest` cached messages up to there, oldest first."""
        with self._lock:
            if state.version > self.until:
                self._read_newer(state.version)
            if state.version == self.until:
                return self.messages[-newest:]
            return [said for said in self.messages if said.version <= state.version][-newest:]

    def __len__(self) -> int:
        return len(self.messages)

    def _read_newer(self, version: int) -> None:
        if version - self.until > limits.MESSAGE_CACHE_MESSAGES_MAX:
            self.messages, self.after, self.until = [], version, version
            return
        fresh, until = list[LoggedMessage](), self.until
        while until < version:
            found = self._events(until, version, limits.READ_CHUNK, at=version)
            until = found[-1].version
            fresh += self._logged_messages(found)
        # In one step: a read that fails leaves the cache unchanged.
        self._extend(fresh, until)

    def _extend(self, fresh: Sequence[LoggedMessage], until: int) -> None:
        self.messages += fresh
        self.until = until
        over = len(self.messages) - limits.MESSAGE_CACHE_MESSAGES_MAX
        if over > 0:
            # A quarter more, so that not every append moves the list.
            over += limits.MESSAGE_CACHE_MESSAGES_MAX // 4
            self.after = self.messages[over - 1].version
            del self.messages[:over]

    def _events(
        self, after: int, until: int, limit: int, *, newest: bool = False, at: int = 0
    ) -> list[port.StoredEvent]:
        found = self._store.read(
            self._tenant, self._stream, after=after, until=until, limit=limit,
            at=at or self.until, newest=newest,
        )  # fmt: skip
        if not found:
            raise truncated_stream_error(self._store, self._tenant, self._stream, until)
        return found

    def _logged_messages(self, page: Sequence[port.StoredEvent]) -> list[LoggedMessage]:
        added = [stored for stored in page if stored.kind == MessageAddedEvent.kind]
        messages = messages_of(self._store, self._tenant, added)
        return [
            LoggedMessage(stored.version, stored.ordinal - self._ordinal_began, message, stored.tokens or 0, {})
            for stored, message in zip(added, messages, strict=True)
        ]

    def append(self, version: int, fresh: Sequence[LoggedMessage]) -> None:
        """Cache messages that were just appended after `version`; after a gap they are read on demand instead."""
        # The committing thread must not wait for a reader.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.messages and self.until == version:
                self._extend(fresh, fresh[-1].version)
        finally:
            self._lock.release()

    def stub(self, said: LoggedMessage) -> Message:
        """Return a tool message with each result replaced by a note of its size."""
        found = self._stubs.get(said.version)
        if found is None:
            if len(self._stubs) >= limits.MESSAGE_CACHE_MESSAGES_MAX:
                self._stubs.clear()
            found = self._stubs[said.version] = summaries.stub_tool_output(said.message)
        return found

    def window_items(self, counted: object) -> dict[int, ContextItem]:
        """Return the cached context items of earlier windows; they are dropped if the way of counting changes."""
        found, known = self._items
        if found != counted or len(known) > limits.MESSAGE_CACHE_MESSAGES_MAX:
            known = dict[int, ContextItem]()
            self._items = (counted, known)
        return known

    def version_of(self, number: int) -> int:
        """Return the version of the message with a number."""
        found = self._versions.get(number)
        if found is None:
            ordinal = self._ordinal_began + number
            at = self._store.find_ordinal(self._tenant, self._stream, ordinal, at=self.until)
            self._versions = {number: at}
            found = self._versions[number]
        return found

    def group(self, version: int, until: int) -> list[LoggedMessage]:
        """Return the group of an older message, by its version. A closed group is cached."""
        found = self._groups.get(version)
        if found is None:
            found, whole = self._read_group(version, until)
            # A group that waits for results, or ends after the state, can still grow.
            if whole:
                if len(self._groups) >= limits.MESSAGE_CACHE_MESSAGES_MAX:
                    self._groups.clear()
                self._groups[version] = found
        return [said for said in found if said.version <= until]

    def _read_group(self, version: int, until: int) -> tuple[list[LoggedMessage], bool]:
        (said,) = self._logged_messages(self._events(version - 1, version, 1, at=until))
        if said.message.role != "tool" and not said.message.tool_calls:
            return [said], True
        stored = self._events(self.began, version, BACKWARD_CHUNK, newest=True, at=until)
        if version < until:
            stored += self._events(version, until, BACKWARD_CHUNK, at=until)
        near = self._logged_messages(stored)
        for group in messages.group_messages([one.message for one in near]):
            members = near[group.first : group.last + 1]
            if members[0].version <= version <= members[-1].version:
                return members, not group.open and not group.fault
        return [said], False

    def read_older(self) -> bool:
        """Read one chunk of older messages; return False if there are none."""
        with self._lock:
            if self.after <= self.began:
                return False
            # A rewind leaves gaps in the versions, so the newest events are asked for, not a range.
            found = self._events(self.began, self.after, BACKWARD_CHUNK, newest=True)
            low = found[0].version - 1 if len(found) == BACKWARD_CHUNK else self.began
            self.messages[:0], self.after = self._logged_messages(found), low
            return True


class MessageCache:
    """The recent messages of the sessions of one engine; the least recently used are evicted."""

    def __init__(self, store: port.Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._cached: OrderedDict[tuple[str, str, int, int], RecentMessages] = OrderedDict()
        self._rebuilt: dict[str, int] = {}

    def add_appended(
        self, tenant: str, state: SessionState, write: port.StreamWrite, messages: Sequence[Message]
    ) -> None:
        """Cache messages that were just appended, so that a window need not read them again."""
        tail = self._cached.get((tenant, state.id, state.began, state.rebased))
        if tail is None:
            return
        behind = len(messages)
        fresh: list[LoggedMessage] = []
        for event, message in zip(write.events[-behind:], messages, strict=True):
            behind -= 1
            number = event.ordinal - state.ordinal_began
            fresh.append(LoggedMessage(state.version - behind, number, message, event.tokens or 0, {}))
        tail.append(write.expected, fresh)

    def clear(self) -> None:
        with self._mutex:
            self._cached.clear()

    def get(self, tenant: str, state: SessionState) -> RecentMessages:
        """Return the recent messages of a session's present generation."""
        place = (tenant, state.id, state.began, state.rebased)
        rebuilt = self._store.cache_epoch(tenant)
        with self._mutex:
            if rebuilt != self._rebuilt.get(tenant, 0):
                # Cached messages may have been erased.
                self._cached.clear()
                self._rebuilt[tenant] = rebuilt
            tail = self._cached.get(place)
            if tail is None or tail.after > state.version:
                tail = self._cached[place] = RecentMessages(self._store, tenant, state)
            self._cached.move_to_end(place)
            if len(self._cached) > limits.MESSAGE_CACHE_SESSIONS:
                self._cached.popitem(last=False)
        return tail


DEFAULT_COUNTER = "o200k_base"

NEWEST_MIN, NEWEST_MAX = 256, 4_096
"""The smallest and the largest number of messages that a window looks at first."""


def counter_of(model: str | None, counter: str | None) -> tokens.Counter:
    """Return the counter of a model or of a name; without both the default counter."""
    # Imported here: programs that make no window do not load the counters.
    from limpet import tokens  # noqa: PLC0415

    if model is not None:
        return tokens.for_model(model)
    return tokens.named(DEFAULT_COUNTER if counter is None else counter)


def _is_registered(counter: tokens.Counter) -> bool:
    """Whether the registry has this counter under its name."""
    from limpet import tokens  # noqa: PLC0415

    try:
        return tokens.named(counter.name) == counter
    except errors.UnknownCounter:
        return False


class CorrectedCounter:
    """A counter with the correction from reported usage and its margin, so that its counts are upper bounds."""

    def __init__(
        self,
        counter: tokens.Counter,
        *,
        tools: Sequence[Mapping[str, Json]] = (),
        reserve: int = 0,
        within: bool = False,
        corrections: Sequence[CounterCorrection] = (),
    ) -> None:
        """`within`: the reserve includes tools and reply; otherwise these are added to it."""
        self._counter = counter
        self.key = self.name = counter.name
        self.cacheable = _is_registered(counter)
        self._factor = 1.0
        for known in corrections:
            if known.counter == counter.name and not counter.exact:
                # Rounded to thousandths as in the name, so that equal names mean equal counts.
                self._factor = round(known.factor * 1000) / 1000
                self.name = f"{counter.name}*{self._factor:.3f}"
        self.ratio = self._factor if counter.exact else self._factor * (1 + counter.margin)
        self.request_tokens = counter.reply + (counter.tools(freeze(list(tools))) if tools else 0)
        taken = self.corrected(self.request_tokens)
        overhead = max(reserve, taken) if within else reserve + taken
        self.counted = CounterInfo(self.name, counter.exact, overhead)

    def raw_count(self, message: Message) -> int:
        return self._checked_count(self._counter.message(message))

    def _checked_count(self, size: int) -> int:
        if type(cast("object", size)) is not int or size < 0:
            raise errors.InvalidRequest(f"the counter {self.key!r} returned {size!r}; a count is an int, 0 or more.")
        return size

    def corrected(self, plain: int) -> int:
        """Return the upper bound for a plain count."""
        return plain if self.ratio == 1.0 else math.ceil(self._checked_count(plain) * self.ratio)

    def uncorrected(self, size: int) -> int:
        """Return the approximate plain count of a corrected size."""
        return size if self.ratio == 1.0 else int(size / self.ratio)

    def count(self, message: Message) -> int:
        """Return the upper bound of a message's tokens."""
        return self.corrected(self.raw_count(message))


class WindowInput:
    """Selects the input of a window from a session's messages, at one state."""

    def __init__(self, tail: RecentMessages, state: SessionState, measure: CorrectedCounter, budget: int) -> None:
        self._state = state
        self._measure = measure
        self._own: dict[int, dict[str, int]] = {}
        self._tail = tail
        # A budget above that of the cut also reaches the messages before the cut.
        self.cut = state.cut if state.cut and budget <= state.cut.budget else None
        self._floor = self.cut.first if self.cut else 1
        self._stubs = self.cut.stubs if self.cut else 0
        # If a plain count needs no correction and no stub, it is looked up under this key.
        plain = measure.cacheable and measure.ratio == 1.0 and self.cut is None
        self._key = measure.key if plain else ""
        kept = [tail.group(version, state.version) for version in (*state.kept, *state.pins)]
        if self.cut and self.cut.asked:
            kept.append(tail.group(tail.version_of(self.cut.asked), state.version))
        # A group with two kept messages counts once.
        self._kept_by_version = {said.version: said for group in kept for said in group}
        self._kept_messages = list(self._kept_by_version.values())
        self._budget = budget
        # As many as fit at the average size, plus half, so that one read is mostly enough.
        usual = max(1, state.tokens // max(1, state.message_count))
        self._newest = max(NEWEST_MIN, min(budget // usual * 3 // 2, NEWEST_MAX))
        way = (measure.name, self._stubs, self.cut and self.cut.asked)
        self.cached_items = tail.window_items(way) if measure.cacheable else None

    def parts(self, *, stable: bool, shared: bool = False) -> list[WindowPart]:
        """Return the newest messages, the kept older messages, and the gaps between.

        `shared`: categories have shares of the window, so kept messages do not reduce the room in advance.
        """
        free = self._budget - self._measure.counted.overhead
        free -= 0 if shared else sum(map(self._count, self._kept_messages))
        told = self._summary_part(free)
        free -= told.tokens if told else 0
        said, start = self._newest_within(free)
        if stable and start and said[start].number > self._floor:
            said, start = self._extended_to_marks(said, start)
            start = self._mark_after(said, start, max(1.0, free * limits.WINDOW_STEP_SHARE))
        newest = said[start or 0 :]
        return self._with_gaps([*self._kept_before(newest), *newest], told)

    def cut_candidates(self, most: int) -> tuple[list[WindowMessage], int]:
        """Return the messages that a cut may remove, and the tokens of those that stay.

        Only the newest `most` tokens are looked at: a cut removes older messages in any case.
        """
        asked = self.cut.asked if self.cut else 0
        fixed = sum(self._count(said) for said in self._kept_messages if said.number != asked)
        said, start = self._newest_within(most)
        newest = [s for s in said[start or 0 :] if s.version not in self._kept_by_version]
        question = [s for s in self._kept_messages if s.number == asked]
        return [self._piece(one) for one in [*question, *newest]], fixed

    def _newest_messages(self) -> list[LoggedMessage]:
        return self._tail.up_to(self._state, self._newest)

    def _look_further_back(self) -> bool:
        """Extend the search to older messages, cached ones first; return False if there are none."""
        if self._newest >= len(self._tail) and not self._tail.read_older():
            return False
        self._newest *= 4
        return True

    def _summary_part(self, free: int) -> WindowSummary | None:
        summary = self._state.summary
        if summary is None:
            return None
        message = summary.message()
        size = self._measure.count(message)
        if size > min(free, self._budget * limits.SUMMARY_SHARE_MAX):
            # The summary was written for larger windows and must leave room for the newest messages.
            chars = int(max(0, free) * limits.SUMMARY_SHARE) * 2
            message = summaries.shorten_summary(message, chars)
            size = self._measure.count(message)
        return WindowSummary(summary.first, summary.last, message, size)

    def _extended_to_marks(self, said: list[LoggedMessage], start: int) -> tuple[list[LoggedMessage], int]:
        """Read older messages until the marks after an index are certain, independent of what was cached."""
        while not _has_question_and_answer(said, start):
            if not self._look_further_back():
                break
            before, said = len(said), self._newest_messages()
            start += len(said) - before
        return said, start

    def _newest_within(self, room: float) -> tuple[list[LoggedMessage], int | None]:
        """Return the newest messages and the index from which they fit; None if all fit."""
        said, start = self._newest_messages(), None
        spare = room
        rest: Sequence[LoggedMessage] = said
        while True:
            start, room, spare = self._scan_back(said, rest, room, spare)
            seen = len(said)
            if start is not None or not self._look_further_back():
                return said, start
            said = self._newest_messages()
            rest = said[: len(said) - seen]

    def _scan_back(
        self, said: Sequence[LoggedMessage], rest: Sequence[LoggedMessage], room: float, spare: float
    ) -> tuple[int | None, float, float]:
        """Return the index from which the newest messages fit (None if all of `rest` fits), and the room left."""
        count, key, turn = self._count, self._key, self._state.turn
        floor, always, output = self._floor, self._kept_by_version, MessageCategory.SYSTEM_OUTPUT
        kept, at = max(always, default=0), len(rest)
        for one in reversed(rest):
            at -= 1
            if one.number < floor:
                return at + 1, room, spare
            version, message = one.version, one.message
            if version > kept or version not in always:
                size = one.counts.get(key) or count(one)
                if message.role == "tool":
                    # A large result of the current turn is shortened rather than left out.
                    room -= min(size, limits.LIGHT_CHARS // 3) if version > turn else size
                elif message.category is output and _is_low_priority(message):
                    # It is dropped before the conversation is, so it uses no room of the conversation.
                    spare -= size
                else:
                    room -= size
            if room < 0 or spare < 0:
                start = self._group_start(said, at)
                if start is not None:
                    return start, room, spare
                break
        return None, room, spare

    @staticmethod
    def _group_start(said: Sequence[LoggedMessage], at: int) -> int | None:
        """Return the start of the first group after an index; of the newest group if none starts after it."""
        for index in range(at + 1, len(said)):
            if said[index].message.role != "tool":
                return index
        while at and said[at].message.role == "tool":
            at -= 1
        return at if said[at].message.role != "tool" else None

    def _mark_after(self, said: Sequence[LoggedMessage], start: int, step: float) -> int:
        """Return the first mark at or after an index, where a stable window may begin.

        A window that drops one message for each new message shares no prefix with the previous window, so a
        provider's prompt cache never hits. Therefore a window begins at a mark: the first question after every
        `step` tokens, as counted on append. It moves to the next mark only when it is full, and every process
        finds the same marks. In a long turn the marks are at its tool calls.
        """
        spoken, always = (self._state.tokens - sum(one.tokens for one in self._kept_messages), self._kept_by_version)
        newest_kept = max(always, default=0)
        for role in ("user", "assistant"):
            before, mark, kept = spoken, -1, 0
            cell, last, after = -1.0, -1, 0
            first = (start, 0)
            for at in range(len(said) - 1, -1, -1):
                one = said[at]
                if one.version > newest_kept or one.version not in always:
                    before -= one.tokens
                if one.message.role != role:
                    continue
                if last >= start and before // step != cell:
                    mark, kept = last, after
                if at < start:
                    break
                cell, last, after = before // step, at, spoken - before
                first = (at, after)
            if mark >= 0:
                # A mark behind a turn that takes most of the window would leave almost nothing.
                return mark if kept >= first[1] * (1 - 2 * limits.WINDOW_STEP_SHARE) else first[0]
        return start

    def _count(self, said: LoggedMessage) -> int:
        if said.number < self._stubs and said.message.role == "tool":
            return min(self._count_stub(said), self._count_whole(said))
        return self._count_whole(said)

    def _counts(self, said: LoggedMessage) -> dict[str, int]:
        # Two custom counters may share a name, so their counts are cached for this window only.
        return said.counts if self._measure.cacheable else self._own.setdefault(said.version, {})

    def _count_whole(self, said: LoggedMessage) -> int:
        measure = self._measure
        counts = said.counts if measure.cacheable else self._counts(said)
        plain = counts.get(measure.key)
        if plain is None:
            plain = counts[measure.key] = measure.raw_count(said.message)
        return plain if measure.ratio == 1.0 else measure.corrected(plain)

    def _count_stub(self, said: LoggedMessage) -> int:
        counts, key = self._counts(said), f"{self._measure.key} stub"
        plain = counts.get(key)
        if plain is None:
            plain = counts[key] = self._measure.raw_count(self._tail.stub(said))
        return self._measure.corrected(plain)

    def _piece(self, said: LoggedMessage) -> WindowMessage:
        size = said.counts.get(self._key)
        if size is not None:
            return WindowMessage(said.number, said.message, size)
        if said.number < self._stubs and said.message.role == "tool":
            stub, whole = self._count_stub(said), self._count_whole(said)
            if stub < whole:
                return WindowMessage(said.number, self._tail.stub(said), stub, whole)
        asked = self.cut is not None and said.number == self.cut.asked
        return WindowMessage(said.number, said.message, self._count_whole(said), cut_turn_question=asked)

    def _kept_before(self, newest: Sequence[LoggedMessage]) -> list[LoggedMessage]:
        first = newest[0].version if newest else self._state.version + 1
        stay = dict(self._kept_by_version)
        if self._tail.began < self._state.turn < first:
            stay |= {s.version: s for s in self._tail.group(self._state.turn, self._state.version)}
        return [stay[version] for version in sorted(stay) if version < first]

    def _with_gaps(self, said: Iterable[LoggedMessage], told: WindowSummary | None) -> list[WindowPart]:
        parts: list[WindowPart] = []
        found, number, key = list(said), 0, self._key
        for one in found:
            if one.number > number + 1:
                missing = self._state.message_count - len(found)
                size = self._state.tokens - sum([one.tokens for one in found])
                parts += _split_gap(number + 1, one.number - 1, max(0, size) / max(1, missing), told)
            number = one.number
            known = one.counts.get(key)
            parts.append(WindowMessage(number, one.message, known) if known is not None else self._piece(one))
        if told and (not told.last or any(isinstance(part, WindowGap) and part.summarised for part in parts)):
            first = parts[0] if parts else None
            prompt = isinstance(first, WindowMessage) and first.message.role == "system"
            parts.insert(1 if prompt else 0, told)
        return parts


def _is_low_priority(message: Message) -> bool:
    """Whether output is dropped before the conversation: it answers no call and has no priority of its own."""
    return not message.tool_calls and priority_of_metadata(message.metadata) is None


def _has_question_and_answer(said: Sequence[LoggedMessage], before: int) -> bool:
    missing = {"user", "assistant"}
    for at in range(before - 1, -1, -1):
        missing.discard(said[at].message.role)
        if not missing:
            return True
    return False


def _split_gap(first: int, last: int, each: float, told: WindowSummary | None) -> list[WindowPart]:
    """Return the gap between two messages, split where the summary begins and ends."""
    cuts = {first, last + 1}
    if told:
        cuts |= {at for at in (told.first, told.last + 1) if first < at <= last}
    edges = sorted(cuts)
    return [
        # This counter has not counted them: use the average of the counts from append.
        WindowGap(a, b - a, int(each * (b - a)), bool(told and told.first <= a <= told.last))
        for a, b in pairwise(edges)
    ]


replace = msgspec.structs.replace


class NeedsCommit(Exception):
    """The request needs events that are planned but not committed: decide it in the next round."""


def policy_counter(policy: WindowPolicy, corrections: tuple[CounterCorrection, ...]) -> CorrectedCounter:
    """Return the corrected counter of a policy; raise UnknownModel or UnknownCounter."""
    return _cached_policy_counter(policy.model, policy.counter, policy.reserve, corrections)


@lru_cache(maxsize=256)
def _cached_policy_counter(
    model: str | None, counter: str | None, reserve: int, corrections: tuple[CounterCorrection, ...]
) -> CorrectedCounter:
    return CorrectedCounter(counter_of(model, counter), reserve=reserve, within=True, corrections=corrections)


class PolicyApplier:
    """Applies window policies to the writes of one engine."""

    def __init__(self, tails: MessageCache) -> None:
        self._message_cache = tails

    def apply(self, tenant: str, state: SessionState | None, writing: SessionWrite, *, drafted: bool) -> SessionWrite:
        """Return the write with recounted messages and the cut that is due; raise NeedsCommit if the session has drafts."""
        policy, fresh = _policy_after(state, writing.events)
        adds = any(isinstance(fact, e.MessageAddedEvent) for fact in writing.events)
        anew = _sets_policy(writing.events)
        if policy is None or not (adds or anew):
            return writing
        measure = policy_counter(policy, _corrections_after(state, writing.events))
        events = tuple(_recounted(fact, measure) for fact in writing.events)
        made = _AppliedEvents(state, events, measure)
        room = policy.budget - measure.counted.overhead
        left = measure.corrected(max(0, made.after.cut.tokens)) if made.after.cut else 0
        due = anew or window.is_cut_due(_live_tokens_max(made.after, measure), room, policy, left)
        if not due or policy.shares:
            return SessionWrite(writing.session_id, events)
        if drafted:
            raise NeedsCommit
        cut, summary = self._cut(tenant, None if fresh else state, made, policy)
        was = made.after.cut or Cut(1)
        if not anew and (cut.first, cut.stubs) == (was.first, was.stubs):
            return SessionWrite(writing.session_id, events)
        # The messages of this append are counted after the cut.
        cut = replace(cut, tokens=cut.tokens - made.tokens)
        at = _cut_index(events)
        cutting_events = session_rules.cut_events(cut, summary)
        return SessionWrite(writing.session_id, (*events[:at], *cutting_events, *events[at:]))

    def trim(self, tenant: str, state: SessionState, policy: WindowPolicy) -> tuple[Cut, Summary | None]:
        """Return the cut of a session to the budget of a policy, even if no cut is due."""
        whole = replace(policy, low=1 - 1e-9, high=1.0)
        made = _AppliedEvents(state, (), policy_counter(policy, state.corrections))
        cut, summary = self._cut(tenant, state, made, whole)
        # The cut also applies to windows of the session's own policy.
        most = max(policy.budget, state.policy.budget if state.policy else 0)
        return replace(cut, budget=most), summary

    def _cut(
        self, tenant: str, before: SessionState | None, made: _AppliedEvents, policy: WindowPolicy
    ) -> tuple[Cut, Summary | None]:
        after, measure = made.after, made.measure
        room = policy.budget - measure.counted.overhead
        pieces, fixed, cut = list[WindowMessage](), 0, None
        if before is not None:
            parts = WindowInput(self._message_cache.get(tenant, before), before, measure, policy.budget)
            pieces, fixed = parts.cut_candidates(2 * room + measure.corrected(made.tokens))
            cut = parts.cut
        live = CutInput([*pieces, *made.pieces], fixed + made.fixed, room, cut, after.summary)
        found = window.plan_cut(live, policy, measure.count)
        if found is None:
            size = live.fixed + sum(piece.tokens for piece in live.pieces)
            size += after.summary.tokens if after.summary else 0
            found = replace(cut or Cut(1), budget=policy.budget, tokens=size), None
        cut, summary = found
        if summary is not None:
            summary = replace(summary, tokens=measure.uncorrected(summary.tokens))
        return replace(cut, tokens=measure.uncorrected(cut.tokens)), summary


class _AppliedEvents:
    """The state after some events, and the sizes of their messages, kept ones apart."""

    def __init__(self, state: SessionState | None, events: Iterable[e.SessionEvent], measure: CorrectedCounter) -> None:
        self.measure = measure
        self.pieces: list[WindowMessage] = []
        self.fixed = self.tokens = 0
        for fact in events:
            before = state
            state = session_rules.evolve_one(before, fact, time_us=0)
            if isinstance(fact, e.MessageAddedEvent) and before is not None:
                self.tokens += fact.tokens
                size = measure.corrected(fact.tokens)
                if (state.kept, state.pins) == (before.kept, before.pins):
                    self.pieces.append(WindowMessage(state.message_count, fact.message, size))
                else:
                    self.fixed += size
        assert state is not None, "a policy belongs to a session"
        self.after = state


def _policy_after(state: SessionState | None, events: Iterable[e.SessionEvent]) -> tuple[WindowPolicy | None, bool]:
    """Return the policy after some events, and whether they begin a generation."""
    policy, fresh = (state.policy if state else None), False
    for fact in events:
        if isinstance(fact, e.SessionCreatedEvent):
            policy, fresh = fact.policy, True
        elif isinstance(fact, e.SessionResetEvent):
            fresh = True
        elif isinstance(fact, e.SessionUpdatedEvent) and fact.policy is not msgspec.UNSET:
            policy = fact.policy
    return policy, fresh


def _corrections_after(state: SessionState | None, events: Iterable[e.SessionEvent]) -> tuple[CounterCorrection, ...]:
    begun = (fact.corrections for fact in events if isinstance(fact, e.SessionCreatedEvent))
    return next(begun, state.corrections if state else ())


def _sets_policy(events: Iterable[e.SessionEvent]) -> bool:
    return any(isinstance(fact, e.SessionUpdatedEvent) and fact.policy is not msgspec.UNSET for fact in events)


def _recounted(fact: e.SessionEvent, measure: CorrectedCounter) -> e.SessionEvent:
    if not isinstance(fact, e.MessageAddedEvent):
        return fact
    return e.MessageAddedEvent(fact.message, measure.raw_count(fact.message), measure.key)


def _live_tokens_max(state: SessionState, measure: CorrectedCounter) -> int:
    """Return the upper bound of the live window's tokens: each message may be rounded up."""
    if measure.ratio == 1.0:
        return state.live
    count = state.message_count - (state.cut.first - 1 if state.cut else 0) + len(state.kept)
    return measure.corrected(state.live) + count


def _cut_index(events: Sequence[e.SessionEvent]) -> int:
    """Return the index of a cut: before a recorded window and its answer, which must stay adjacent."""
    for at, fact in enumerate(events):
        if isinstance(fact, (e.MessageAddedEvent, e.WindowRecordedEvent)):
            return at
    return len(events)
