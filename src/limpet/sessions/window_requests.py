"""Requests that change a session's windows.

They set a policy, trim a session to a budget, or put a summary in the place of messages that cuts
have taken out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import msgspec

from limpet import errors, limits
from limpet.core.rules.session_rules import ALWAYS_VISIBLE_CATEGORIES
from limpet.core.values import commands as c
from limpet.core.values.context import has_high_priority
from limpet.core.values.json_values import checked_text
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SUMMARY_LANGUAGES, SessionState, Summary, WindowPolicy
from limpet.core.windows import summary as summaries
from limpet.runtime import window_input
from limpet.sessions.requests import checked_policy
from limpet.sessions.session_view import MessageReader

Summarizer = Callable[[Sequence[Message], str | None], str]
"""Makes one text of some messages and the summary before them."""

AsyncSummarizer = Callable[[Sequence[Message], str | None], Awaitable[str]]
"""The same, awaited."""


def policy_request(tenant: str, state: SessionState, policy: WindowPolicy | None) -> c.CommandRequest:
    """A request that settles a session's policy."""
    command = c.UpdateSession(session_id=state.id, policy=checked_policy(policy))
    return c.CommandRequest(tenant=tenant, command=command)


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


def trim_request(tenant: str, state: SessionState, policy: WindowPolicy) -> c.CommandRequest:
    """A request that cuts a session down to a policy's budget."""
    command = c.TrimSession(session_id=state.id, policy=policy)
    return c.CommandRequest(tenant=tenant, command=command)


class UnsummarizedMessages(msgspec.Struct, frozen=True):
    """Messages of a session that cuts have taken out and no summary stands for, and the summary before.

    For a summary that somebody writes (`known` is the last such), one that was taken out of what was said is none.
    """

    state: SessionState
    messages: Sequence[Message]
    previous: Summary | None
    last: int

    @property
    def after(self) -> int:
        """The last message that the summary before stands for."""
        return self.previous.last if self.previous else 0

    @property
    def previous_text(self) -> str | None:
        """The text of the summary before, if there is one."""
        return self.previous.text if self.previous else None

    def summary_request(self, tenant: str, text: str | None, language: str, author: str = "") -> c.CommandRequest:
        """A request that puts a summary in their place: this text of an author's, or one taken out of what they say.

        Raises SummaryRefused if a text has less of what they say than the session's policy asks for.
        """
        known, first = self.previous, self.after + 1
        policy = self.state.policy or WindowPolicy(budget=self._budget)
        prefix = policy.summary_prefix
        made = self._extracted_text(language, prefix) if text is None else summaries.with_prefix(text, language, prefix)
        score, missing = summaries.recall_score(self.messages, made, self.previous_text or "")
        if text is not None and score < policy.recall:
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
            author="" if text is None else author,
            recall=score,
        )
        measure = window_input.policy_counter(policy, self.state.corrections)
        summary = msgspec.structs.replace(summary, tokens=measure.raw_count(summary.message()))
        most = int(self._budget * limits.SUMMARY_SHARE_MAX)
        if summary.tokens > most:
            raise errors.TooLarge(
                f"the summary has {summary.tokens:,} tokens; of windows of {self._budget:,} it may take {most:,}.",
                hint="Have it made shorter: it goes into every window.",
                facts={"tokens": summary.tokens, "tokens_max": most},
            )
        command = c.SummarizeSession(
            session_id=self.state.id,
            generation=self.state.generation,
            after=self.after,
            summary=summary,
            seen=self.state.version,
        )
        return c.CommandRequest(tenant=tenant, command=command)

    @property
    def _budget(self) -> int:
        return self.state.cut.budget if self.state.cut else 1

    def _extracted_text(self, language: str, prefix: str | None) -> str:
        numbers, chars = [(self.after + 1, self.last)], int(self._budget * limits.SUMMARY_SHARE) * 2
        return summaries.summarise_messages(
            self.messages, numbers, chars=chars, language=language, prefix=prefix, before=self.previous
        ).text  # fmt: skip


def unsummarized_messages(reader: MessageReader, state: SessionState, *, written: bool) -> UnsummarizedMessages | None:
    """Return what could be summarised of a session, by somebody who writes it or not; None if nothing could."""
    known = state.written if written else state.summary
    after = known.last if known else 0
    last = state.cut.first - 1 if state.cut else 0
    found = reader.slice(slice(after, last)) if after < last else []
    # What stays in every window needs no summary.
    said = [m for m in found if m.category not in ALWAYS_VISIBLE_CATEGORIES and not has_high_priority(m.metadata)]
    return UnsummarizedMessages(state, said, known, last) if said else None


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


def author_of(summarizer: object) -> str:
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
