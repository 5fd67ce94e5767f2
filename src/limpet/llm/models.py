"""Models behind the APIs of OpenAI and Anthropic, and behind endpoints compatible with them.

Requests go through the provider's client library, with time limits, retries and typed errors. Error texts of
a provider may repeat the key or the messages, so errors contain only the status, a known error code, and the
setting to check.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from email.utils import parsedate_to_datetime
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Final, Generic, Literal, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from limpet import errors, limits
from limpet.core.values.validation import checked_int, checked_number, checked_text
from limpet.llm.port import Reply

if TYPE_CHECKING:
    import anthropic
    import openai

T = TypeVar("T")
ClientT = TypeVar("ClientT", bound="ClosableClient")
ClientT_co = TypeVar("ClientT_co", covariant=True)

_NO_ATTEMPT: Final = "Nobody has been asked."
_RETRIED_STATUSES: Final = frozenset({408, 409, 429})
_KNOWN_CODES: Final = frozenset({
    "authentication_error", "billing_error", "content_filter", "context_length_exceeded",
    "exceed_context_size_error", "insufficient_quota", "invalid_api_key", "invalid_request_error",
    "model_not_found", "not_found_error", "overloaded_error", "permission_error", "rate_limit_error",
    "rate_limit_exceeded", "request_too_large", "server_error", "unsupported_parameter", "unsupported_value",
})  # fmt: skip
"""The codes that errors contain. Any other text of a provider may contain messages or a key."""

_CONTEXT_LENGTH_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_QUOTA_CODES: Final = frozenset({"billing_error", "insufficient_quota"})


class StreamedResponse(Protocol):
    """A response of a client library while its body is read."""

    @property
    def http_response(self) -> object: ...

    def iter_bytes(self) -> Iterator[bytes]: ...


class StatusError(Protocol):
    """The exception of both client libraries for a response with an error status."""

    @property
    def status_code(self) -> int: ...
    @property
    def response(self) -> object: ...
    @property
    def body(self) -> object: ...


class ClientLibrary(msgspec.Struct, frozen=True):
    """The exceptions of a client library, and the names that our errors use."""

    timeout: type[Exception]
    connection: type[Exception]
    status: type[Exception]
    base: type[Exception]
    provider: str
    variable: str
    """The environment variable of the key."""


class Backoff(msgspec.Struct, frozen=True):
    """The pause between two tries: `first_s`, doubling up to `max_s`, each shortened randomly by up to half.

    `jitter` returns a number from 0 to 1. Without it, all waiting clients would retry at the same moment.
    """

    first_s: float = limits.MODEL_RETRY_PAUSE_S
    max_s: float = limits.MODEL_RETRY_PAUSE_S_MAX
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = SystemRandom().random

    def after(self, tries: int) -> float:
        """Return the pause after so many tries."""
        full = min(self.max_s, self.first_s * 2 ** (tries - 1))
        return full * (1 - self.jitter() / 2)


class FailedAttempt(msgspec.Struct, frozen=True):
    """Why a try failed, without any text of the provider."""

    why: str
    hint: str = ""
    transient: bool = False  # The caller may retry later.
    retryable: bool = False  # The endpoint object retries by itself.
    wait_s: float | None = None  # The pause that the endpoint asks for.
    facts: Mapping[str, object] = msgspec.field(default_factory=dict[str, object])


def transient_failure(
    why: str, *, wait_s: float | None = None, facts: Mapping[str, object] = errors.NO_FACTS
) -> FailedAttempt:
    """Return a failure that is worth a retry."""
    return FailedAttempt(why, "", transient=True, retryable=True, wait_s=wait_s, facts=facts)


class Endpoint:
    """Sends requests to one endpoint of one model, with retries. Threads may share it."""

    def __init__(self, client: ClientLibrary, *, timeout_s: float, retries: int, pauses: Backoff) -> None:
        self._client = client
        self._timeout_s = checked_number("timeout_s", timeout_s, above=0, most=1e6, unit="a number of seconds")
        self._retries = checked_int("retries", retries)
        self._pauses = pauses

    def ask(
        self,
        request: Callable[[], AbstractContextManager[StreamedResponse]],
        read: Callable[[bytes], Reply | FailedAttempt],
    ) -> Reply:
        """Send a request and return the reply; raise Unavailable or ModelRefused."""
        tries, failure = 0, FailedAttempt(_NO_ATTEMPT)
        while tries <= self._retries:
            tries += 1
            found = self._attempt(request, read)
            if isinstance(found, Reply):
                return found
            failure = found
            wait_s = failure.wait_s or 0.0
            if not failure.retryable or wait_s > limits.MODEL_RETRY_AFTER_S_MAX:
                break
            if tries <= self._retries:
                self._pauses.sleep(max(wait_s, self._pauses.after(tries)))
        raise _typed_error(failure, tries)

    def _attempt(
        self,
        request: Callable[[], AbstractContextManager[StreamedResponse]],
        read: Callable[[bytes], Reply | FailedAttempt],
    ) -> Reply | FailedAttempt:
        late = transient_failure(f"the model has not answered within {self._timeout_s:g} s.")
        until = time.monotonic() + self._timeout_s
        try:
            with request() as response:
                body = _read_body(response, until)
        except self._client.timeout:
            return late
        except self._client.connection:
            return transient_failure("the model's endpoint can't be reached, or has broken off.")
        except self._client.status as error:
            return self._status_failure(cast("StatusError", error))
        except self._client.base as error:
            return FailedAttempt(f"the client library refuses the request ({type(error).__name__}).")
        if body is None:
            return late
        return body if isinstance(body, FailedAttempt) else read(body)

    def _status_failure(self, error: StatusError) -> FailedAttempt:
        status, code = error.status_code, _known_code(error.body)
        why = f"the model's endpoint answers with {status}{f', {code}' if code else ''}."
        facts: dict[str, object] = {"status": status, **({"code": code} if code else {})}
        if code in _QUOTA_CODES:
            return FailedAttempt(
                why, "The account has no credit left: see to that, then retry.", transient=True, facts=facts
            )
        if status in _RETRIED_STATUSES or status >= 500:
            return transient_failure(why, wait_s=_retry_after_s(error.response), facts=facts)
        if code in _CONTEXT_LENGTH_CODES:
            hint = "The question is longer than the model takes: set `window` to what it has."
        elif status in (401, 403):
            hint = f"Look at `api_key`, or at the environment variable {self._client.variable}: the endpoint does not accept it."
        elif status in (404, 405) or status < 400:
            hint = "Look at `model` and `base_url`: one of them is not known there."
        else:
            hint = "Look at `model`, `window` and `tokens_field`: the endpoint does not take such a request."
        return FailedAttempt(why, hint, facts=facts)


class ClosableClient(Protocol):
    """A client object of a client library."""

    def close(self) -> None: ...


class ClientFactory(Protocol[ClientT_co]):
    """The class of the client in a client library. It must not retry by itself."""

    def __call__(self, *, api_key: str, base_url: str | None, timeout: float, max_retries: int) -> ClientT_co: ...


class RemoteModel(Generic[ClientT]):
    """A model behind an endpoint: checked settings, and a client of the provider's library. See Model.

    The key is `api_key`, or that of the provider's environment variable. With a `base_url` it is optional.
    `window` is the number of tokens of question and answer together. One try takes `timeout_s` at most. Up to
    `retries` more follow if the endpoint can't be reached or is overloaded. Raises NotInstalled if the
    provider's library is missing.
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
        pauses: Backoff | None = None,
    ) -> None:
        library, connect = self._load_library()
        self._name = checked_text(model)
        self._window = checked_int("window", window, 1)
        self._endpoint = Endpoint(library, timeout_s=timeout_s, retries=retries, pauses=pauses or Backoff())
        self._extra_fields: dict[str, object] = {} if temperature is None else {"temperature": temperature}
        self._client = connect(
            api_key=_checked_key(library.provider, library.variable, api_key, base_url),
            base_url=_checked_url(base_url),
            timeout=timeout_s,
            max_retries=0,
        )

    def _load_library(self) -> tuple[ClientLibrary, ClientFactory[ClientT]]:
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def window(self) -> int:
        """The number of tokens that question and answer may have together."""
        return self._window

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, window={self._window})"

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        self._client.close()

    def _send(self, request: Callable[[], object], read: Callable[[bytes], Reply | FailedAttempt]) -> Reply:
        return self._endpoint.ask(cast("Callable[[], AbstractContextManager[StreamedResponse]]", request), read)


def not_installed(what: str, library: str) -> errors.NotInstalled:
    """Return the error for a missing client library, with the command that installs it."""
    return errors.NotInstalled(
        f"{what} takes the library {library}.", hint=f"Install it with: {errors.pip_install_command(library)}"
    )


def _read_body(response: StreamedResponse, until: float) -> bytes | FailedAttempt | None:
    """Return the body of a response; None if it is not complete in time, even if bytes still arrive."""
    kept = bytearray()
    # The exceptions are those of the HTTP library that the client uses, which its versions have changed.
    library = sys.modules[type(response.http_response).__module__.partition(".")[0]]
    broken = (library.HTTPError, library.StreamError)
    try:
        for piece in response.iter_bytes():
            kept += piece
            if time.monotonic() > until:
                return None
            if len(kept) > limits.MODEL_ANSWER_BYTES_MAX:
                return FailedAttempt(f"the answer has more than {limits.MODEL_ANSWER_BYTES_MAX:,} bytes.")
    except library.TimeoutException:
        return None
    except broken:
        return transient_failure("the model's endpoint has broken off in the middle of its answer.")
    return bytes(kept)


def decode_answer(body: bytes, kind: type[T]) -> T | FailedAttempt:
    """Decode the body of an answer, or return why it can't be decoded."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return transient_failure("what the endpoint answers is not in the format of a model's answer.")


def check_not_empty(reply: Reply) -> Reply | FailedAttempt:
    """Return a reply with text, or why it has none."""
    if reply.text.strip():
        return reply
    if reply.cut:
        return FailedAttempt(
            "the model has said nothing before its tokens were used up.",
            "Raise `tokens_max`: models that think first take some for it.",
        )
    return transient_failure("the model's answer is empty.")


def refusal_failure() -> FailedAttempt:
    """Return the failure of a model that declines to answer."""
    return FailedAttempt(
        "the model declines to answer.",
        "Ask another one, or go on without: what stood before stands.",
        facts={"code": "refusal"},
    )


def _typed_error(failure: FailedAttempt, tries: int) -> errors.Error:
    facts = {**failure.facts, "tries": tries}
    if not failure.transient:
        return errors.ModelRefused(failure.why, hint=failure.hint, facts=facts)
    if failure.wait_s is not None:
        facts["retry_after_s"] = failure.wait_s
    hint = failure.hint or f"Tries: {tries}. Retry later."
    return errors.Unavailable(failure.why, hint=hint, facts=facts)


def _known_code(body: object) -> str:
    for fields in (_error_object(body), body):
        if isinstance(fields, Mapping):
            said = cast("Mapping[str, object]", fields)
            for code in (said.get("code"), said.get("type")):
                if isinstance(code, str) and code in _KNOWN_CODES:
                    return code
    return ""


def _error_object(body: object) -> object:
    return cast("Mapping[str, object]", body).get("error") if isinstance(body, Mapping) else None


def _retry_after_s(response: object) -> float | None:
    """Return the seconds until the endpoint accepts the next request, from the headers of its response."""
    headers = cast("Mapping[str, str]", getattr(response, "headers", {}))
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        seconds = _parse_number(headers.get(name))
        if seconds is not None:
            return seconds / unit
    until, now = _parse_http_date(headers.get("retry-after")), _parse_http_date(headers.get("date"))
    return max(0.0, until - now) if until is not None and now is not None else None


def _parse_number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < 1e9 else None


def _parse_http_date(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError, IndexError):
        return None


def _checked_url(url: str | None) -> str | None:
    try:
        good = url is None or (urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname)
    except ValueError:
        good = False
    if not good:
        raise errors.InvalidRequest(
            "base_url is not the address of an endpoint.", hint="For example http://localhost:8080/v1."
        )
    return url


def _checked_key(provider: str, variable: str, given: str | None, base_url: str | None) -> str:
    """Return the given key or that of the environment; "none" if there is none and `base_url` is given.

    Raises InvalidRequest, whose text never contains the key, if the key is missing or invalid in a header.
    """
    key = given if given is not None else os.environ.get(variable, "").strip()
    if not key and base_url is not None:
        return "none"
    if not key:
        raise errors.InvalidRequest(
            f"{provider} takes an API key.",
            hint=f"Give `api_key`, or set the environment variable {variable}; for a server of your own give `base_url`.",
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise errors.InvalidRequest(
            "the API key is not one: it must be printable ASCII without spaces.",
            hint=f"Look at `api_key`, or at the environment variable {variable}.",
        )
    return key


OPENAI_KEY_VARIABLE: str = "OPENAI_API_KEY"
TokensField = Literal["max_tokens", "max_completion_tokens"]


class OpenAIModel(RemoteModel["openai.OpenAI"]):
    """A model of an OpenAI-compatible endpoint, by default OpenAI's own. See RemoteModel for the settings.

    The environment variable of the key is OPENAI_API_KEY. `tokens_field` is the request field that limits the
    answer, for endpoints that accept only one of the two.
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
        pauses: Backoff | None = None,
    ) -> None:
        super().__init__(
            model,
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

    def _load_library(self) -> tuple[ClientLibrary, ClientFactory[openai.OpenAI]]:
        try:
            import openai  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise not_installed("a model of an OpenAI-compatible endpoint", "openai") from error
        library = ClientLibrary(
            timeout=openai.APITimeoutError,
            connection=openai.APIConnectionError,
            status=openai.APIStatusError,
            base=openai.OpenAIError,
            provider="OpenAI",
            variable=OPENAI_KEY_VARIABLE,
        )
        return library, openai.OpenAI

    def complete(self, system: str, prompt: str, *, tokens_max: int) -> Reply:
        """Return the model's answer. Raises Unavailable or ModelRefused."""
        messages = [
            {"role": "system", "content": checked_text(system)},
            {"role": "user", "content": checked_text(prompt)},
        ]
        create = self._client.chat.completions.with_streaming_response.create
        limit = {self._field: checked_int("tokens_max", tokens_max, 1)}
        request = partial(create, model=self._name, messages=messages, **limit, **self._extra_fields)
        return self._send(request, self._parse_answer)

    def _parse_answer(self, body: bytes) -> Reply | FailedAttempt:
        found = decode_answer(body, _Completion)
        if isinstance(found, FailedAttempt):
            return found
        if not found.choices:
            return transient_failure("the endpoint gives no answer at all.")
        choice, usage = found.choices[0], found.usage or _ChatUsage()
        if choice.message.refusal or choice.finish_reason == "content_filter":
            return refusal_failure()
        if choice.message.tool_calls and not _content_text(choice.message.content):
            return FailedAttempt("the model has called a tool instead of answering.")
        reply = Reply(
            _content_text(choice.message.content),
            found.model or self._name,
            usage.prompt_tokens,
            usage.completion_tokens,
            choice.finish_reason == "length",
        )
        return check_not_empty(reply)


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


class AnthropicModel(RemoteModel["anthropic.Anthropic"]):
    """A model of Anthropic. The environment variable of the key is ANTHROPIC_API_KEY. See RemoteModel for the settings."""

    def _load_library(self) -> tuple[ClientLibrary, ClientFactory[anthropic.Anthropic]]:
        try:
            import anthropic  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise not_installed("a model of Anthropic", "anthropic") from error
        library = ClientLibrary(
            timeout=anthropic.APITimeoutError,
            connection=anthropic.APIConnectionError,
            status=anthropic.APIStatusError,
            base=anthropic.AnthropicError,
            provider="Anthropic",
            variable=ANTHROPIC_KEY_VARIABLE,
        )
        return library, anthropic.Anthropic

    def complete(self, system: str, prompt: str, *, tokens_max: int) -> Reply:
        """Return the model's answer. Raises Unavailable or ModelRefused."""
        create = self._client.messages.with_streaming_response.create
        request = partial(
            create,
            model=self._name,
            system=checked_text(system),
            messages=[{"role": "user", "content": checked_text(prompt)}],
            max_tokens=checked_int("tokens_max", tokens_max, 1),
            **self._extra_fields,
        )
        return self._send(request, self._parse_answer)

    def _parse_answer(self, body: bytes) -> Reply | FailedAttempt:
        found = decode_answer(body, _MessagesAnswer)
        if isinstance(found, FailedAttempt):
            return found
        if found.stop_reason == "refusal":
            return refusal_failure()
        text = "".join(block.text or "" for block in found.content if block.type == "text")
        if not text and any(block.type == "tool_use" for block in found.content):
            return FailedAttempt("the model has called a tool instead of answering.")
        usage = found.usage or _MessagesUsage()
        reply = Reply(
            text, found.model or self._name, usage.input_total(), usage.output_tokens, found.stop_reason == "max_tokens"
        )
        return check_not_empty(reply)


class _AnswerBlock(msgspec.Struct):
    type: str
    text: str | None = None


class _MessagesUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None

    def input_total(self) -> int | None:
        """Return the number of input tokens, cached ones included."""
        if self.input_tokens is None:
            return None
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return self.input_tokens + cached


class _MessagesAnswer(msgspec.Struct):
    content: list[_AnswerBlock]
    model: str | None = None
    stop_reason: str | None = None
    usage: _MessagesUsage | None = None
