"""Has a model write the summary of what left a session's windows: `session.summarize(ModelSummarizer(model))`.

Every message is shown to the model, whole, in as many questions as that takes: each has the summary so far
and the messages that follow it. If one of them fails, nothing was written, and what stood before stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from limpet import errors, limits
from limpet.core.values.messages import Message
from limpet.models import asking, showing
from limpet.models.port import Model
from limpet.models.prompts import WORDS
from limpet.models.showing import START, Count, Place, Shown

_TRIES = 8
"""How often a question is put together anew that came out longer than its parts."""


class ModelSummarizer:
    """Writes summaries with a model, in one language. Threads may share it.

    `count` says how many tokens a text has for the model, for example `tokens.for_model("gpt-4o").text`;
    without it each byte counts as one, which is safe and takes more questions. A summary has up to
    `tokens_max` tokens, and takes up to `calls_max` questions.
    """

    def __init__(
        self,
        model: Model,
        *,
        count: Count = showing.bytes_of,
        language: str = "en",
        tokens_max: int = limits.SUMMARY_TOKENS,
        calls_max: int = limits.MODEL_CALLS_MAX,
    ) -> None:
        if language not in WORDS:
            raise errors.InvalidRequest(
                f"a summary's language is one of {', '.join(WORDS)}, not {language!r}."
            )
        self._model, self._count, self._language = model, count, language
        self._words = WORDS[language]
        self._tokens_max = asking.checked_number("tokens_max", tokens_max)
        self._calls_max = asking.checked_number("calls_max", calls_max)
        self._free = (
            model.window - tokens_max - limits.MODEL_FORMAT_TOKENS - count(self._words.system)
        )
        if self._room("") <= 0:
            raise showing.too_small()

    @property
    def name(self) -> str:
        """Under which its summaries are kept: the model's name."""
        return self._model.name

    @property
    def language(self) -> str:
        """The language in which it writes."""
        return self._language

    def __call__(self, messages: Sequence[Message], before: str | None) -> str:
        """Return one text that stands for the messages and for the summary before them.

        Raises Unavailable or a kind of Refused; then nothing is lost but the questions that were asked.
        """
        if not messages:
            raise errors.InvalidRequest("there are no messages to summarise.")
        said = [showing.shown(number, message) for number, message in enumerate(messages, 1)]
        told = before or ""
        if self._count(told) * 2 > self._free:
            # It was written for another model: this one reads it in pieces, like anything that was said.
            said.insert(0, Shown(0, "summary", "", told))
            told = ""
        calls, at = self._checked_length(said), START
        while at.index < len(said):
            if not calls:
                raise self._too_long()
            told, at, asked = self._next(said, at, told)
            calls = max(0, calls - asked)
        return told

    def _next(self, said: Sequence[Shown], at: Place, told: str) -> tuple[str, Place, int]:
        """Return the summary with what comes next, how far that goes, and how many questions it took."""
        for asked in (1, 2):
            prompt, after = self._question(said, at, told, cut=asked > 1)
            reply = self._model.complete(self._words.system, prompt, tokens_max=self._tokens_max)
            if not reply.text.strip():
                raise errors.ModelRefused("the model has written an empty summary.")
            if not reply.cut:
                return reply.text.strip(), after, asked
        raise errors.SummaryRefused(
            f"the model's summary does not end within {self._tokens_max:,} tokens.",
            hint="Raise `tokens_max`. What stood before stands.",
            facts={"tokens_max": self._tokens_max},
        )

    def _question(
        self, said: Sequence[Shown], at: Place, told: str, *, cut: bool
    ) -> tuple[str, Place]:
        room = self._room(told)
        for _ in range(_TRIES):
            parts, after = showing.taken(said, at, room, self._count)
            prompt = self._words.question(
                told, parts, len(said), tokens_max=self._tokens_max, cut=cut
            )
            over = self._count(prompt) - self._free
            if over <= 0:
                return prompt, after
            room -= over
        raise showing.too_small()

    def _room(self, told: str) -> int:
        """Return what a question has for messages beside the summary so far."""
        widest = Shown(limits.BATCH_MESSAGES_MAX, "", "", "")
        empty = self._words.question(
            told, [widest], limits.BATCH_MESSAGES_MAX, tokens_max=self._tokens_max, cut=True
        )
        return self._free - self._count(empty)

    def _checked_length(self, said: Sequence[Shown]) -> int:
        """Return how many questions may be asked; raise before the first one if they are too few."""
        room, at, calls = self._room(""), START, 0
        while at.index < len(said):
            if calls == self._calls_max:
                raise self._too_long()
            _, at = showing.taken(said, at, room, self._count)
            calls += 1
        return self._calls_max

    def _too_long(self) -> errors.ModelRefused:
        return errors.ModelRefused(
            f"the messages take more than {self._calls_max:,} questions with a window of {self._model.window:,} tokens.",
            hint="Take a model with a larger window, give its counter as `count`, or raise `calls_max`.",
            facts={"calls_max": self._calls_max, "window": self._model.window},
        )
