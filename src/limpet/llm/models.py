"""Models behind the APIs of OpenAI and Anthropic, and behind endpoints compatible with them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from limpet import limits
from limpet.core.values.validation import checked_text
from limpet.llm import client
from limpet.llm.port import Reply

if TYPE_CHECKING:
    import anthropic  # noqa: F401 - named in the base below
    import openai  # noqa: F401 - named in the base below


OPENAI_KEY_VARIABLE: str = "OPENAI_API_KEY"
TokensField = Literal["max_tokens", "max_completion_tokens"]


class OpenAIModel(client.RemoteModel["openai.OpenAI"]):
    """A model of an OpenAI-compatible endpoint. See Model.

    Without `base_url` it is OpenAI's own. The key is `api_key`, or OPENAI_API_KEY of the environment; with
    a `base_url` there need be none. `window` is how many tokens the model takes, question and answer
    together. One try takes `timeout_s` at most; `retries` more follow if the endpoint can't be reached or
    asks for patience. `tokens_field` names the field for the longest answer, where an endpoint takes only
    one of the two. Raises NotInstalled without the library `openai`.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        window: int = limits.MODEL_WINDOW_TOKENS,
        timeout_s: float = limits.MODEL_TIMEOUT_S,
        retries: int = limits.MODEL_RETRIES,
        temperature: float | None = None,
        tokens_field: TokensField | None = None,
        pauses: client.Backoff | None = None,
    ) -> None:
        try:
            import openai  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise client.not_installed("a model of an OpenAI-compatible endpoint", "openai") from error
        library = client.ClientLibrary(
            timeout=openai.APITimeoutError,
            connection=openai.APIConnectionError,
            status=openai.APIStatusError,
            base=openai.OpenAIError,
            provider="OpenAI",
            variable=OPENAI_KEY_VARIABLE,
        )
        super().__init__(
            model,
            library,
            openai.OpenAI,
            base_url=base_url,
            api_key=api_key,
            window=window,
            timeout_s=timeout_s,
            retries=retries,
            temperature=temperature,
            pauses=pauses,
        )
        own: TokensField = "max_completion_tokens" if base_url is None else "max_tokens"
        self._field = tokens_field or own

    def complete(self, system: str, prompt: str, *, tokens_max: int) -> Reply:
        """Return the model's answer. Raises Unavailable or ModelRefused."""
        messages = [
            {"role": "system", "content": checked_text(system)},
            {"role": "user", "content": checked_text(prompt)},
        ]
        create = self._client.chat.completions.with_streaming_response.create
        limit = {self._field: client.checked_number("tokens_max", tokens_max)}
        request = partial(create, model=self._name, messages=messages, **limit, **self._extra_fields)
        return self._send(request, self._parse_answer)

    def _parse_answer(self, body: bytes) -> Reply | client.FailedAttempt:
        found = client.decode_answer(body, _Completion)
        if isinstance(found, client.FailedAttempt):
            return found
        if not found.choices:
            return client.transient_failure("the endpoint gives no answer at all.")
        choice, usage = found.choices[0], found.usage or _ChatUsage()
        if choice.message.refusal or choice.finish_reason == "content_filter":
            return client.refusal_failure()
        if choice.message.tool_calls and not _content_text(choice.message.content):
            return client.FailedAttempt("the model has called a tool instead of answering.")
        reply = Reply(
            _content_text(choice.message.content),
            found.model or self._name,
            usage.prompt_tokens,
            usage.completion_tokens,
            choice.finish_reason == "length",
        )
        return client.check_not_empty(reply)


class _ChoicePart(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _ChoiceMessage(msgspec.Struct):
    content: str | list[_ChoicePart] | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    message: _ChoiceMessage
    finish_reason: str | None = None


class _ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: _ChatUsage | None = None


def _content_text(content: str | list[_ChoicePart] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text or "" for part in content if part.type in ("text", ""))
    return content or ""


ANTHROPIC_KEY_VARIABLE: str = "ANTHROPIC_API_KEY"


class AnthropicModel(client.RemoteModel["anthropic.Anthropic"]):
    """A model of Anthropic. See Model.

    The key is `api_key`, or ANTHROPIC_API_KEY of the environment; with a `base_url` there need be none.
    `window` is how many tokens the model takes, question and answer together. One try takes `timeout_s`
    at most; `retries` more follow if the endpoint can't be reached or asks for patience. Raises
    NotInstalled without the library `anthropic`.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        window: int = limits.MODEL_WINDOW_TOKENS,
        timeout_s: float = limits.MODEL_TIMEOUT_S,
        retries: int = limits.MODEL_RETRIES,
        temperature: float | None = None,
        pauses: client.Backoff | None = None,
    ) -> None:
        try:
            import anthropic  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise client.not_installed("a model of Anthropic", "anthropic") from error
        library = client.ClientLibrary(
            timeout=anthropic.APITimeoutError,
            connection=anthropic.APIConnectionError,
            status=anthropic.APIStatusError,
            base=anthropic.AnthropicError,
            provider="Anthropic",
            variable=ANTHROPIC_KEY_VARIABLE,
        )
        super().__init__(
            model,
            library,
            anthropic.Anthropic,
            base_url=base_url,
            api_key=api_key,
            window=window,
            timeout_s=timeout_s,
            retries=retries,
            temperature=temperature,
            pauses=pauses,
        )

    def complete(self, system: str, prompt: str, *, tokens_max: int) -> Reply:
        """Return the model's answer. Raises Unavailable or ModelRefused."""
        create = self._client.messages.with_streaming_response.create
        request = partial(
            create,
            model=self._name,
            system=checked_text(system),
            messages=[{"role": "user", "content": checked_text(prompt)}],
            max_tokens=client.checked_number("tokens_max", tokens_max),
            **self._extra_fields,
        )
        return self._send(request, self._parse_answer)

    def _parse_answer(self, body: bytes) -> Reply | client.FailedAttempt:
        found = client.decode_answer(body, _MessagesAnswer)
        if isinstance(found, client.FailedAttempt):
            return found
        if found.stop_reason == "refusal":
            return client.refusal_failure()
        text = "".join(block.text or "" for block in found.content if block.type == "text")
        if not text and any(block.type == "tool_use" for block in found.content):
            return client.FailedAttempt("the model has called a tool instead of answering.")
        usage = found.usage or _MessagesUsage()
        reply = Reply(
            text, found.model or self._name, usage.input_total(), usage.output_tokens, found.stop_reason == "max_tokens"
        )
        return client.check_not_empty(reply)


class _AnswerBlock(msgspec.Struct):
    type: str
    text: str | None = None


class _MessagesUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None

    def input_total(self) -> int | None:
        """Return what the model has read, from a cache or not."""
        if self.input_tokens is None:
            return None
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return self.input_tokens + cached


class _MessagesAnswer(msgspec.Struct):
    content: list[_AnswerBlock]
    model: str | None = None
    stop_reason: str | None = None
    usage: _MessagesUsage | None = None
