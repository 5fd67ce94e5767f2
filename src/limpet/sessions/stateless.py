"""The stateless form: message lists in, message lists out.

Nothing is stored, and inputs are not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import intake
from limpet.core.rules import session_rules
from limpet.core.values import memory_records, messages
from limpet.core.values.context import CompactionLevel, has_high_priority
from limpet.core.values.memory_records import Profile, with_profile_prompt
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.session_state import OpenCall, Summary, checked_summary_prefix
from limpet.core.values.validation import Json
from limpet.core.windows import summary as summaries
from limpet.core.windows import window as windows
from limpet.core.windows.window import Window, WindowMessage
from limpet.sessions.requests import MessageLike
from limpet.sessions.windows import (
    AsyncSummarizer,
    Summarizer,
    WindowOptions,
    checked_summary_language,
    checked_summary_text,
)

if TYPE_CHECKING:
    from limpet import tokens


class StateManager:
    """Keeps message lists within a token limit. Pure: the same list gives the same result.

    Lists hold messages or provider dicts and may be broken: a result without its call, or a call without its
    results, is never returned for a model. With `keep_system=False` an old first system prompt is dropped like any
    other message. Summaries begin with `summary_prefix`, or with the words of their language.
    """

    def __init__(
        self,
        limit: int,
        *,
        model: str | None = None,
        counter: str | tokens.Counter | None = None,
        keep_system: bool = True,
        summary_prefix: str | None = None,
    ) -> None:
        self._asked = WindowOptions(budget=limit, model=model, counter=counter)
        self._measure = self._asked.corrected_counter()
        self._keep_system = keep_system
        self._prefix = None if summary_prefix is None else checked_summary_prefix(summary_prefix)

    @property
    def limit(self) -> int:
        """The token limit of a list."""
        return self._asked.budget

    def count(self, messages: Iterable[MessageLike]) -> int:
        """Return the tokens of a list, including the overhead of a request."""
        return sum(map(self._measure.count, _accept_messages(messages))) + self._measure.counted.overhead

    def fits(self, messages: Iterable[MessageLike], message: MessageLike) -> bool:
        """Return whether a list stays within the limit with one more message."""
        return self.count((*_accept_messages(messages), message)) <= self.limit

    def add(self, messages: Sequence[MessageLike], message: MessageLike) -> list[Message]:
        """Return the list with one more message; its oldest part is dropped if it would exceed the limit.

        Raises a PairingError if the message may not follow, ContextOverflow if it can't fit.
        """
        said = _accept_messages(messages)
        new = intake.accept(message)
        session_rules.check_message(*_open_calls(said), new)
        return list(self.window([*said, new]).messages)

    def bootstrap(
        self,
        messages: Iterable[MessageLike],
        profile: Profile,
        *,
        tokens: int = limits.BOOTSTRAP_TOKENS,
        language: str = "en",
    ) -> list[Message]:
        """Return the list with what is known of its user, at the end of its first system prompt or as one.

        It takes at most `tokens`, fence included; of a longer profile the first lines are used.
        """
        words = memory_records.checked_language(language)
        known = memory_records.fit_profile(profile, "", budget=tokens, language=words)
        return list(with_profile_prompt(_accept_messages(messages), known))

    def truncate(self, messages: Iterable[MessageLike]) -> list[Message]:
        """Return the list without its oldest part, within the limit."""
        return list(self.window(messages).messages)

    def window(
        self,
        messages: Iterable[MessageLike],
        *,
        tools: Sequence[Mapping[str, Json]] = (),
        reserve: int = 0,
        min_compaction: CompactionLevel = CompactionLevel.NONE,
    ) -> Window:
        """Return what a model should see of a list, with the ledger of every message."""
        measure = msgspec.structs.replace(
            self._asked, tools=tools, reserve=reserve, min_compaction=min_compaction
        ).corrected_counter()
        said = enumerate(_accept_messages(messages), 1)
        pieces = [WindowMessage(number, message, measure.count(message)) for number, message in said]
        return windows.fit_window(
            pieces,
            self.limit,
            count=measure.count,
            counted=measure.counted,
            least=min_compaction,
            keep_prompt=self._keep_system,
        )

    def summarize(
        self, messages: Sequence[MessageLike], summarizer: Summarizer | None = None, *, language: str | None = None
    ) -> list[Message]:
        """Return the list with its earlier turns replaced by one system message that summarises them.

        A list within the limit is returned unchanged. Otherwise the newest turns stay, and all between them and the
        first system prompt is summarised, an earlier summary included; context and pinned messages stay. `summarizer` gets
        these messages and the text of the earlier summary (or None) and returns the new text; without one, sentences are
        extracted.
        """
        language = checked_summary_language(summarizer, language)
        early = self._earlier_turns(list(messages), language)
        if early is None:
            return _accept_messages(messages)
        text = None
        if summarizer is not None:
            text = checked_summary_text(summarizer(early.messages, early.before))
        return self.truncate(early.replaced(list(messages), text))

    async def summarize_async(
        self, messages: Sequence[MessageLike], summarizer: AsyncSummarizer, *, language: str | None = None
    ) -> list[Message]:
        """The same, async. Messages may be added meanwhile; if summarised ones changed, the summary is dropped."""
        language = checked_summary_language(summarizer, language)
        early = self._earlier_turns(list(messages), language)
        if early is None:
            return _accept_messages(messages)
        text = checked_summary_text(await summarizer(early.messages, early.before))
        return self.truncate(early.replaced(list(messages), text))

    def _earlier_turns(self, given: Sequence[MessageLike], language: str) -> _EarlierTurns | None:
        said = _accept_messages(given)
        if self.count(said) <= self.limit:
            return None
        first = 1 if said[0].role == "system" and not summaries.is_summary(said[0], self._prefix) else 0
        stop, room = len(said), self.limit * limits.NEWEST_TURNS_SHARE
        for group in reversed(messages.group_messages(said)):
            room -= sum(map(self._measure.count, said[group.first : group.last + 1]))
            if room < 0 or group.first < first:
                break
            stop = group.first
        # A round begins with its question, where that is in reach.
        asked = [at for at in range(stop, len(said)) if said[at].role == "user"]
        stop = asked[0] if asked else stop
        chars = int(self.limit * limits.SUMMARY_SHARE) * 2
        made = _EarlierTurns(given[:stop], said[:first], chars, language, self._prefix)
        for number, message in enumerate(said[first:stop], first + 1):
            made.add(number, message)
        return made if made.messages else None


class _EarlierTurns(msgspec.Struct):
    """The earlier turns of a list, as they were given: what is summarised, and what stays among it."""

    given: Sequence[MessageLike]
    prompt: Sequence[Message]
    chars: int
    language: str
    prefix: str | None
    before: str | None = None
    messages: list[Message] = []
    numbers: list[tuple[int, int]] = []
    stay: list[Message] = []

    def add(self, number: int, message: Message) -> None:
        if summaries.is_summary(message, self.prefix):
            self.before = str(message.content)
        elif message.category is MessageCategory.CONTEXT or has_high_priority(message.metadata):
            self.stay.append(message)
        else:
            self.messages.append(message)
            self.numbers.append((number, number))

    def replaced(self, now: Sequence[MessageLike], text: str | None) -> list[Message]:
        """Return the present list with the summary in place of its messages."""
        stop = len(self.given)
        if list(now[:stop]) != list(self.given):
            return _accept_messages(now)
        known = Summary(0, 0, self.before, "") if self.before else None
        made = summaries.summarise_messages(
            self.messages, self.numbers, chars=self.chars, language=self.language, prefix=self.prefix, before=known
        )
        if text is not None:
            made = msgspec.structs.replace(made, text=summaries.with_prefix(text, self.language, self.prefix))
        return [*self.prompt, made.message(), *self.stay, *_accept_messages(now[stop:])]


def _accept_messages(messages: Iterable[MessageLike]) -> list[Message]:
    if not isinstance(cast("object", messages), Iterable) or isinstance(messages, (str, Mapping)):
        raise errors.InvalidRequest("messages come in a list.")
    return [intake.accept(message) for message in messages]


def _open_calls(messages: Sequence[Message]) -> tuple[tuple[OpenCall, ...], tuple[str, ...]]:
    open_calls, answered = tuple[OpenCall, ...](), tuple[str, ...]()
    for message in messages:
        open_calls, answered = session_rules.calls_after(open_calls, answered, message)
    return open_calls, answered
