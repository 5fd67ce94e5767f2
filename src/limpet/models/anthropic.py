"""Models of Anthropic, or of any endpoint that speaks its messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from limpet import limits
from limpet.core.values.json_values import checked_text
from limpet.models import asking
from limpet.models.port import Reply

if TYPE_CHECKING:
    import anthropic  # noqa: F401 - named in the base below

KEY: str = "ANTHROPIC_API_KEY"


class AnthropicModel(asking.Remote["anthropic.Anthropic"]):
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
        pauses: asking.Pauses | None = None,
    ) -> None:
        try:
            import anthropic  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise asking.not_installed("a model of Anthropic", "anthropic") from error
        library = asking.Client(
            timeout=anthropic.APITimeoutError,
            connection=anthropic.APIConnectionError,
            status=anthropic.APIStatusError,
            base=anthropic.AnthropicError,
            provider="Anthropic",
            variable=KEY,
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
            max_tokens=asking.checked_number("tokens_max", tokens_max),
            **self._fixed,
        )
        return self._ask(request, self._read)

    def _read(self, body: bytes) -> Reply | asking.Failure:
        found = asking.decoded(body, _Message)
        if isinstance(found, asking.Failure):
            return found
        if found.stop_reason == "refusal":
            return asking.refused()
        text = "".join(block.text or "" for block in found.content if block.type == "text")
        if not text and any(block.type == "tool_use" for block in found.content):
            return asking.Failure("the model has called a tool instead of answering.")
        usage = found.usage or _Usage()
        reply = Reply(
            text,
            found.model or self._name,
            usage.read(),
            usage.output_tokens,
            found.stop_reason == "max_tokens",
        )
        return asking.worded(reply)


class _Block(msgspec.Struct):
    type: str
    text: str | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None

    def read(self) -> int | None:
        """Return what the model has read, from a cache or not."""
        if self.input_tokens is None:
            return None
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return self.input_tokens + cached


class _Message(msgspec.Struct):
    content: list[_Block]
    model: str | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
