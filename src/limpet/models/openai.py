"""Models behind any endpoint that speaks OpenAI's chat completions: OpenAI itself, or a server of your own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from limpet import limits
from limpet.core.values.json_values import checked_text
from limpet.models import asking
from limpet.models.port import Reply

if TYPE_CHECKING:
    import openai  # noqa: F401 - named in the base below

KEY: str = "OPENAI_API_KEY"
TokensField = Literal["max_tokens", "max_completion_tokens"]


class OpenAIModel(asking.Remote["openai.OpenAI"]):
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
        pauses: asking.Pauses | None = None,
    ) -> None:
        try:
            import openai  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise asking.not_installed(
                "a model of an OpenAI-compatible endpoint", "openai"
            ) from error
        library = asking.Client(
            timeout=openai.APITimeoutError,
            connection=openai.APIConnectionError,
            status=openai.APIStatusError,
            base=openai.OpenAIError,
            provider="OpenAI",
            variable=KEY,
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
        limit = {self._field: asking.checked_number("tokens_max", tokens_max)}
        request = partial(create, model=self._name, messages=messages, **limit, **self._fixed)
        return self._ask(request, self._read)

    def _read(self, body: bytes) -> Reply | asking.Failure:
        found = asking.decoded(body, _Completion)
        if isinstance(found, asking.Failure):
            return found
        if not found.choices:
            return asking.away("the endpoint gives no answer at all.")
        choice, usage = found.choices[0], found.usage or _Usage()
        if choice.message.refusal or choice.finish_reason == "content_filter":
            return asking.refused()
        if choice.message.tool_calls and not _text(choice.message.content):
            return asking.Failure("the model has called a tool instead of answering.")
        reply = Reply(
            _text(choice.message.content),
            found.model or self._name,
            usage.prompt_tokens,
            usage.completion_tokens,
            choice.finish_reason == "length",
        )
        return asking.worded(reply)


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Said(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    message: _Said
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: _Usage | None = None


def _text(content: str | list[_Part] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text or "" for part in content if part.type in ("text", ""))
    return content or ""
