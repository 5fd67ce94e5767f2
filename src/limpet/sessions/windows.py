"""Makes windows of sessions; finds and rebuilds windows that were recorded with answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from limpet import errors, limits
from limpet.core.rules.session_rules import ALWAYS_VISIBLE_CATEGORIES
from limpet.core.values import commands as c
from limpet.core.values import ids
from limpet.core.values.context import CompactionLevel, WindowSelection, has_high_priority
from limpet.core.values.events import MessageAddedEvent, WindowRecordedEvent
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SUMMARY_LANGUAGES, CounterCorrection, SessionState, Summary, WindowPolicy
from limpet.core.values.validation import (
    EMPTY,
    Json,
    checked_bool,
    checked_id,
    checked_instance,
    checked_int,
    checked_limit,
    checked_text,
)
from limpet.core.windows import recorded_selection, window
from limpet.core.windows import summary as summaries
from limpet.core.windows.pack import ConversationMoment
from limpet.core.windows.window import Window
from limpet.runtime import message_cache
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.message_cache import CorrectedCounter, WindowInput, counter_of
from limpet.runtime.state_cache import decode_session_events, messages_of, session_stream
from limpet.sessions.requests import checked_policy
from limpet.stores import port

if TYPE_CHECKING:
    from limpet import tokens
    from limpet.sessions.session import MessageReader


Summarizer = Callable[[Sequence[Message], str | None], str]
"""Makes one text of some messages and the summary before them."""

AsyncSummarizer = Callable[[Sequence[Message], str | None], Awaitable[str]]
"""The same, awaited."""


def trim_policy(
    policy: WindowPolicy | None, budget: int | None, model: str | None, counter: str | None, summary: str | None
) -> WindowPolicy:
    """Return the policy by which a session is trimmed once: its own, but for what is given."""
    if policy is None:
        if budget is None:
            raise errors.InvalidRequest(
                "to trim a session takes a budget: it has no policy.", hint="For example trimmed(8_000)."
            )  # fmt: skip
        made = WindowPolicy(budget=budget, model=model, counter=counter, summary=summary)
    else:
        own = model is None and counter is None
        made = msgspec.structs.replace(
            policy,
            budget=policy.budget if budget is None else budget,
            model=policy.model if own else model,
            counter=policy.counter if own else counter,
            summary=policy.summary if summary is None else summary,
        )
    checked_policy(made)
    return made


class UnsummarizedMessages(msgspec.Struct, frozen=True):
    """Messages that cuts removed from a session's window and that no summary covers, with the previous summary.

    `author` writes the new summary; with None it is extracted: made of sentences of the messages. With an author, an
    extracted summary counts as missing, so its messages are summarized again.
    """

    state: SessionState
    messages: Sequence[Message]
    previous: Summary | None
    last: int
    language: str
    author: str | None

    @property
    def after(self) -> int:
        """The last message that the summary before stands for."""
        return self.previous.last if self.previous else 0

    @property
    def previous_text(self) -> str | None:
        """The text of the summary before, if there is one."""
        return self.previous.text if self.previous else None

    def summary_command(self, text: object) -> c.SummarizeSession:
        """Return the command that puts a summary in their place: the author's text, or, without an author, sentences of them.

        Raises SummaryRefused if a text has less of what they say than the session's policy asks for.
        """
        known, first = self.previous, self.after + 1
        policy = self.state.policy or WindowPolicy(budget=self._budget)
        if self.author is None:
            made = self._extracted_text(policy.summary_prefix)
        else:
            made = summaries.with_prefix(checked_summary_text(text), self.language, policy.summary_prefix)
        score, missing = summaries.recall_score(self.messages, made, self.previous_text or "")
        if self.author is not None and score < policy.recall:
            raise errors.SummaryRefused(
                f"the summary has {score:.0%} of the names, numbers and identifiers; {policy.recall:.0%} are asked for.",
                hint="What stood before stands. Have it written again, with what is missing.",
                facts={"recall": score, "recall_min": policy.recall, "missing": missing[:20]},
            )
        summary = Summary(
            known.first if known and known.last else first,
            self.last,
            made,
            self.messages[-1].timestamp,
            author=self.author or "",
            recall=score,
        )
        measure = message_cache.policy_counter(policy, self.state.corrections)
        summary = msgspec.structs.replace(summary, tokens=measure.raw_count(summary.message()))
        most = int(self._budget * limits.SUMMARY_SHARE_MAX)
        if summary.tokens > most:
            raise errors.TooLarge(
                f"the summary has {summary.tokens:,} tokens; of windows of {self._budget:,} it may take {most:,}.",
                hint="Have it made shorter: it goes into every window.",
                facts={"tokens": summary.tokens, "tokens_max": most},
            )
        return c.SummarizeSession(
            session_id=self.state.id,
            generation=self.state.generation,
            after=self.after,
            summary=summary,
            seen=self.state.version,
        )

    @property
    def _budget(self) -> int:
        return self.state.cut.budget if self.state.cut else 1

    def _extracted_text(self, prefix: str | None) -> str:
        numbers, chars = [(self.after + 1, self.last)], int(self._budget * limits.SUMMARY_SHARE) * 2
        return summaries.summarise_messages(
            self.messages, numbers, chars=chars, language=self.language, prefix=prefix, before=self.previous
        ).text  # fmt: skip


def unsummarized_messages(
    reader: MessageReader, state: SessionState, summarizer: object, language: str | None
) -> UnsummarizedMessages | None:
    """Return what a summariser (None: none) could summarise of a session; None if there is nothing."""
    chosen = checked_summary_language(summarizer, language, state.policy)
    known = state.summary if summarizer is None else state.written
    after = known.last if known else 0
    last = state.cut.first - 1 if state.cut else 0
    found = reader.slice(slice(after, last)) if after < last else []
    # What stays in every window needs no summary.
    said = [m for m in found if m.category not in ALWAYS_VISIBLE_CATEGORIES and not has_high_priority(m.metadata)]
    author = None if summarizer is None else _author_of(summarizer)
    return UnsummarizedMessages(state, said, known, last, chosen, author) if said else None


def needs_written_summary(state: SessionState) -> bool:
    """Whether messages may be out that no written summary stands for."""
    last = state.cut.first - 1 if state.cut else 0
    return (state.written.last if state.written else 0) < last


def expand_summary(
    reader: MessageReader, state: SessionState, first: Summary | int | None, last: int | None
) -> list[Message]:
    """Return the messages of a summary, or of a range of numbers."""
    if first is None or isinstance(first, Summary):
        summary = state.summary if first is None else first
        if summary is None or not summary.last:
            raise errors.NotFound(
                "no summary stands for messages of this session.",
                hint="What a continued session was told of the one before is there: look at continued_from.",
                facts={"session": state.id},
            )
        first, last = summary.first, summary.last
    last = first if last is None else last
    whole = all(type(cast("object", number)) is int for number in (first, last))
    if not whole or not 1 <= first <= last <= state.message_count:
        raise errors.InvalidRequest(
            f"messages are numbered from 1 to {state.message_count:,}.", facts={"session": state.id}
        )
    return reader.slice(slice(first - 1, last))


def _author_of(summarizer: object) -> str:
    """Return the name under which a summariser's texts are kept: its own, or that of its function."""
    named = getattr(summarizer, "name", None) or getattr(summarizer, "__name__", None)
    return str(named or type(summarizer).__name__)[: limits.ID_BYTES_MAX // 4]


def checked_summary_language(summarizer: object, language: str | None, policy: WindowPolicy | None = None) -> str:
    """Return the language of a summary; raise if these can't make one: before messages are read, and a model is asked.

    It is the one asked for, else the summariser's own, else the policy's, else English.
    """
    own = getattr(summarizer, "language", None)
    known = own if own in SUMMARY_LANGUAGES else policy.summary if policy else None
    chosen = summaries.checked_language((known or "en") if language is None else language)
    if summarizer is not None and not callable(summarizer):
        raise errors.InvalidRequest(
            f"a summariser is a function, not {type(summarizer).__name__}.",
            hint='It takes the messages and the summary before. For a language: summarize(language="en").',
        )
    return chosen


def checked_summary_text(text: object) -> str:
    """Return the text that a summariser gave; raise if it is none, or too long to be kept."""
    if not isinstance(text, str):
        raise errors.InvalidRequest(
            f"a summariser returns the text of the summary, not {type(text).__name__}.",
            hint="An async one is for sessions of connect_async(), or summarize_async().",
        )
    if not text.strip():
        raise errors.InvalidRequest("a summariser returns the text of the summary; this one is empty.")
    size = len(checked_text(text).encode())
    if size > limits.SUMMARY_BYTES_MAX:
        raise errors.TooLarge(
            f"the summary has {size:,} bytes; at most {limits.SUMMARY_BYTES_MAX:,} are kept.",
            hint="Have it made shorter: it goes into every window.",
            facts={"bytes": size, "bytes_max": limits.SUMMARY_BYTES_MAX},
        )
    return text


def _is_counter(value: object) -> bool:
    """Whether an object has all that a tokens.Counter has, each of its kind."""
    kinds = {"name": str, "exact": bool, "margin": (int, float), "reply": int}
    if not all(isinstance(getattr(value, field, None), kind) for field, kind in kinds.items()):
        return False
    return all(callable(getattr(value, verb, None)) for verb in ("text", "message", "tools"))


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a window is to be. `reserve_covers_tools`: the reserve is for the tools too, which otherwise come on top."""

    budget: int
    model: str | None = None
    counter: str | tokens.Counter | None = None
    tools: Sequence[Mapping[str, Json]] = ()
    reserve: int = 0
    reserve_covers_tools: bool = False
    min_compaction: CompactionLevel = CompactionLevel.NONE
    stable: bool = True
    shares: Mapping[str, float] = EMPTY

    def __post_init__(self) -> None:
        window.checked_window_budget(self.budget)
        model, counter = cast("object", self.model), self.counter
        if model is not None and not isinstance(model, str):
            raise errors.InvalidRequest(f"model is a name, not {type(model).__name__}.")
        if counter is not None and not isinstance(counter, str) and not _is_counter(counter):
            raise errors.InvalidRequest(
                f"counter is a name or a tokens.Counter, not {type(counter).__name__}.",
                hint='For example counter="estimate".',
            )
        if not isinstance(cast("object", self.tools), (list, tuple)) or not all(
            isinstance(cast("object", tool), Mapping) for tool in self.tools
        ):
            raise errors.InvalidRequest("tools is a list of definitions, each an object.")
        if self.model is not None and self.counter is not None:
            raise errors.InvalidRequest(
                "model and counter are both given.", hint="A model has its own counter: give one."
            )
        checked_int("reserve", self.reserve, unit="a number of tokens")
        checked_instance(
            "min_compaction", self.min_compaction, CompactionLevel, hint="For example CompactionLevel.LIGHT."
        )
        checked_bool("stable", self.stable)

    def corrected_counter(self, corrections: Sequence[CounterCorrection] = ()) -> CorrectedCounter:
        counter = self.counter
        if counter is None or isinstance(counter, str):
            counter = counter_of(self.model, counter)
        return CorrectedCounter(
            counter, tools=self.tools, reserve=self.reserve, within=self.reserve_covers_tools, corrections=corrections
        )  # fmt: skip


def make_session_window(
    engine: Engine, tenant: str, state: SessionState, *, budget: int | None, model: str | None,
    counter: str | tokens.Counter | None, tools: Sequence[Mapping[str, Json]], reserve: int | None,
    min_compaction: CompactionLevel, stable: bool,
) -> Window:  # fmt: skip
    """Return the window of a session as it was at a state; what is None is as the session's policy has it."""
    engine.check()
    policy = state.policy
    if policy is not None:
        budget = policy.budget if budget is None else budget
        if model is None and counter is None:
            model, counter = policy.model, policy.counter
    elif budget is None:
        raise errors.InvalidRequest(
            "a window needs a budget: the session has no policy.",
            hint="For example window(8_000), or set_policy(WindowPolicy(budget=8_000)).",
        )
    usual = policy.reserve if policy else 0
    asked = WindowOptions(
        budget=budget, model=model, counter=counter, tools=tools, reserve=usual if reserve is None else reserve,
        reserve_covers_tools=policy is not None and reserve is None, min_compaction=min_compaction, stable=stable,
        shares=policy.shares if policy else EMPTY,
    )  # fmt: skip
    measure = asked.corrected_counter(state.corrections)
    parts = WindowInput(engine.message_cache.get(tenant, state), state, measure, asked.budget)
    made = window.fit_window(
        parts.parts(stable=asked.stable, shared=bool(asked.shares)), asked.budget, count=measure.count, counted=measure.counted,
        least=asked.min_compaction, shares=asked.shares, known=parts.cached_items,
    )  # fmt: skip
    return msgspec.structs.replace(
        made, tenant=tenant, session_id=state.id, version=state.version, began=state.ordinal_began,
        plain=(measure.key, measure.uncorrected(made.tokens - made.overhead) + measure.request_tokens),
    )  # fmt: skip


def rebuild_message_window(engine: Engine, tenant: str, state: SessionState, message_id: str) -> Window:
    """Return the window that was recorded with a message of a session."""
    engine.check()
    stream = session_stream(state.id)
    named = checked_id("a message's id", message_id)
    version = engine.store.find_claim(tenant, stream, named, at=state.version)
    log = SessionEventSearch(engine.store, tenant, state)
    if version <= log.version_before_creation():
        raise errors.MessageNotFound(f"there is no message {message_id!r} in the session.")
    found = log.window_recorded_for(version)
    if found is None:
        raise errors.NotFound(
            f"no window was recorded with the message {message_id!r}.",
            hint="Give it along when adding an answer: add_message(reply, window=window).",
            facts={"message": message_id},
        )
    chosen = found[1].selection
    spoken = RecordedMessages(engine.store, tenant, chosen)
    return recorded_selection.rebuilt_window(chosen, spoken.count(), spoken.read, tenant=tenant)


class RecordedMessages:
    """Messages of a session as they were numbered when a window or a pack was recorded."""

    def __init__(self, store: port.Store, tenant: str, chosen: WindowSelection | ConversationMoment) -> None:
        self._store = store
        self._tenant = tenant
        self._stream = session_stream(chosen.session_id)
        self._chosen = chosen

    def count(self) -> int:
        version = self._chosen.version
        found = self._store.read(self._tenant, self._stream, after=version - 1, until=version, limit=1, at=version)
        return found[0].ordinal - self._chosen.began if found else 0

    def read(self, first: int, last: int) -> list[Message]:
        """Return some of them by their numbers."""
        at, ordinal = self._chosen.version, self._chosen.began + first
        after = self._store.find_ordinal(self._tenant, self._stream, ordinal, at=at) - 1
        messages: list[Message] = []
        while len(messages) <= last - first:
            found = self._store.read(
                self._tenant, self._stream, after=after, until=at, limit=limits.READ_CHUNK, at=at
            )  # fmt: skip
            if not found:
                break
            messages += messages_of(self._store, self._tenant, found)
            after = found[-1].version
        return messages[: last - first + 1]


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


class _RecordedWindowSearch(SessionEventSearch):
    def window_at(self, version: int) -> RecordedWindow | None:
        """Return the window that was recorded with this event; None if it holds none."""
        found = self.read(version - 1, version + 1)
        if len(found) < 2 or found[0].kind != WindowRecordedEvent.kind:
            return None
        window, said = (fact.event for fact in decode_session_events(self._store, self._tenant, found))
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

    def nearest_versions(self, version: int) -> tuple[int | None, int | None]:
        """Return the events of the nearest recorded windows before and after one."""
        low, end = self.version_before_creation(), self.state.version
        place = min(max(version, low), end)
        before = self.versions_of_kind(WindowRecordedEvent.kind, low, place, newest=True)
        after = self.versions_of_kind(WindowRecordedEvent.kind, place, end, newest=False)
        return next(before, None), next(after, None)


def find_recorded_window(engine: Engine, tenant: str, state: SessionState, version: int) -> RecordedWindow:
    """Return the window that was recorded with an event: its own, or that of a message said with it."""
    engine.check()
    log = _RecordedWindowSearch(engine.store, tenant, state)
    if checked_int("version", version, 1, unit="the number of an event") <= state.version:
        behind = log.window_recorded_for(version)
        found = log.window_at(version) or (log.window_at(behind[0]) if behind else None)
        if found is not None and found.version > log.version_before_creation():
            return found
        what = f"no window was recorded with event {version:,}."
    else:
        what = f"the session has no event {version:,}; its last is {state.version:,}."
    before, after = log.nearest_versions(version)
    near = [f"{event:,}" for event in (before, after) if event is not None]
    hint = "Give it along when adding an answer: add_message(reply, window=window)."
    if near:
        hint = f"The nearest that have one: {', '.join(near)}."
    raise errors.WindowNotFound(what, hint=hint, facts={"version": version, "before": before, "after": after})


def list_recorded_windows(
    engine: Engine, tenant: str, state: SessionState, limit: int, before: int | None
) -> list[RecordedWindow]:
    checked_limit(limit)
    end = state.version
    if before is not None:
        end = min(end, checked_int("before", before, 1, unit="the number of an event") - 1)
    engine.check()
    log = _RecordedWindowSearch(engine.store, tenant, state)
    made: list[RecordedWindow] = []
    for version in log.versions_of_kind(WindowRecordedEvent.kind, log.version_before_creation(), end, newest=True):
        found = log.window_at(version)
        if found is not None:
            made.append(found)
        if len(made) == limit:
            break
    return made
