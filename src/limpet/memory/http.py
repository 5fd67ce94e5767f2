"""Memory engine over HTTP: the client and the JSON schema (docs/reference/memory-http.md).

The client does not trust answers. It bounds their size and time, checks their types and sanitizes their
texts. It does not follow redirects. The API key never appears in an error.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Final, TypeVar, cast
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
from msgspec import Meta

from limpet import errors, limits
from limpet.core.values import ids
from limpet.core.values.memory_records import (
    ArchivedMessage,
    Fact,
    FactKind,
    History,
    MemoryResult,
    Profile,
    Source,
    TenantUser,
)
from limpet.core.values.messages import Message
from limpet.core.values.validation import Json, checked_int, checked_limit, checked_number
from limpet.memory.facts import rules
from limpet.memory.port import MemoryEngine

IdText = Annotated[str, Meta(min_length=1, max_length=limits.ID_BYTES_MAX)]
BoundedText = Annotated[str, Meta(max_length=limits.MEMORY_ANSWER_BYTES_MAX)]
WholeNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
T = TypeVar("T")


class MessageJson(msgspec.Struct, frozen=True):
    """A message with its place in the log and in its session."""

    position: WholeNumber
    session_id: IdText
    generation: WholeNumber
    number: WholeNumber
    time_us: WholeNumber
    message: dict[str, Json]


class IngestJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request `ingest`: a chunk of a conversation. The last chunk has `commit` and no messages."""

    history: History
    attempt: IdText
    chunk: Annotated[int, Meta(ge=1)]
    said: tuple[MessageJson, ...] = ()
    commit: bool = False


class ProfileJson(msgspec.Struct, frozen=True):
    """Request `profile`."""

    who: TenantUser
    budget: WholeNumber


class SearchJson(msgspec.Struct, frozen=True):
    """Request `search`."""

    who: TenantUser
    query: BoundedText
    k: Annotated[int, Meta(ge=1, le=limits.MEMORY_RESULTS_MAX)]


class FactsJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request `facts`: a page of facts."""

    who: TenantUser
    after: str | None = None


class ForgetJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request `forget`: a user, a session or a message."""

    who: TenantUser
    session_id: IdText | None = None
    position: WholeNumber | None = None


class IngestAnswer(msgspec.Struct, frozen=True):
    """The state of a conversation: `taking` while chunks are missing, then `kept`."""

    state: str


class SourceJson(msgspec.Struct, frozen=True):
    """The message that states a fact."""

    session_id: IdText
    message_id: IdText
    position: WholeNumber


class FactJson(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A fact."""

    id: IdText
    kind: FactKind
    text: BoundedText
    source: SourceJson
    since_us: WholeNumber
    about: BoundedText = ""
    until_us: WholeNumber | None = None


class ProfileAnswer(msgspec.Struct, frozen=True):
    """The profile of a user."""

    text: BoundedText
    tokens: WholeNumber
    facts: tuple[FactJson, ...] = ()


class ResultJson(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A search result."""

    text: BoundedText
    score: float
    time_us: WholeNumber
    kind: FactKind | None = None
    source: SourceJson | None = None
    until_us: WholeNumber | None = None


class SearchAnswer(msgspec.Struct, frozen=True):
    """Search results, the best first."""

    results: tuple[ResultJson, ...]


class FactsAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of facts, the newest first. `next` is the `after` of the next page."""

    facts: tuple[FactJson, ...]
    next: str | None = None


class ForgetAnswer(msgspec.Struct, frozen=True):
    """The number of deleted facts."""

    forgotten: WholeNumber


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The reason why a request failed."""

    code: str
    message: str


def message_to_json(archived: ArchivedMessage) -> MessageJson:
    """Return a message as JSON, without the fields that only its provider understands."""
    dropped = ("openai", "anthropic", "tokens", "category")
    message = {name: value for name, value in archived.message.to_dict().items() if name not in dropped and value}
    return MessageJson(
        archived.position, archived.session_id, archived.generation, archived.number, archived.time_us, message
    )


def message_from_json(given: MessageJson) -> ArchivedMessage:
    """Return a message from its JSON; raise a kind of InvalidMessage."""
    return ArchivedMessage(
        position=given.position,
        session_id=given.session_id,
        generation=given.generation,
        number=given.number,
        time_us=given.time_us,
        message=Message.from_dict(given.message),
    )


def decode_body(body: bytes, kind: type[T]) -> T:
    """Decode the body of a request or an answer; raise InvalidRequest if it does not fit the type."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.InvalidRequest("the body is not what the schema asks for.") from error


def fact_from_json(given: FactJson) -> Fact:
    """Return a fact with sanitized texts."""
    return Fact(
        id=rules.clean(given.id),
        kind=given.kind,
        text=rules.clean(given.text, limits.MEMORY_TEXT_CHARS_MAX),
        source=_source_from_json(given.source),
        since_us=given.since_us,
        about=rules.clean(given.about, limits.FACT_ABOUT_CHARS_MAX),
        until_us=given.until_us,
    )


def result_from_json(given: ResultJson) -> MemoryResult:
    """Return a search result with a sanitized text."""
    return MemoryResult(
        text=rules.clean(given.text, limits.MEMORY_TEXT_CHARS_MAX),
        score=given.score,
        time_us=given.time_us,
        kind=given.kind,
        source=_source_from_json(given.source) if given.source else None,
        until_us=given.until_us,
    )


def profile_from_json(given: ProfileAnswer) -> Profile:
    """Return a profile with sanitized lines, without lines that read as instructions to a model."""
    lines = (rules.clean(line, limits.MEMORY_TEXT_CHARS_MAX) for line in given.text.splitlines())
    text = "\n".join(line for line in lines if line and not rules.reads_as_instruction(line))
    facts = (fact_from_json(fact) for fact in given.facts[: limits.PROFILE_FACTS_MAX])
    return Profile(text, given.tokens, tuple(fact for fact in facts if fact.until_us is None))


def _source_from_json(given: SourceJson) -> Source:
    return Source(rules.clean(given.session_id), rules.clean(given.message_id), given.position)


_RETRIED_STATUSES: Final = (408, 409, 425, 429)


class HTTPMemory:
    """A memory engine behind a URL. Threads may share it. Each request opens its own connection.

    `url` is https, or http on this machine; `allow_http=True` accepts http anywhere. If the engine can't be
    reached, a request is repeated up to `retries` times. Repeating is safe: every request is idempotent.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 10.0,
        retries: int = 2,
        allow_http: bool = False,
        tls: ssl.SSLContext | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = _checked_url(url, allow_http=allow_http)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key):
            raise errors.InvalidRequest("an API key has visible ASCII characters only.")
        checked_number("timeout_s", timeout_s, above=0, unit="a number of seconds")
        checked_int("retries", retries)
        self._key = api_key
        self._timeout_s = timeout_s
        self._retries = retries
        self._tls = tls
        self._pause = pause
        self._closed = False

    @property
    def name(self) -> str:
        """The name of the engine, for people: its address."""
        return f"http memory at {self._url.hostname}"

    def ingest(self, history: History, messages: Iterable[Sequence[ArchivedMessage]]) -> None:
        """Send a conversation in requests of bounded size. When this returns, the engine has answered that it is durable."""
        attempt, number = ids.new_id("try"), 0
        for number, chunk in enumerate(_upload_chunks(messages), 1):
            body = IngestJson(history, attempt, number, chunk)
            if self._request("ingest", body, IngestAnswer, history.key).state == "kept":
                return
        last = IngestJson(history, attempt, number + 1, commit=True)
        if self._request("ingest", last, IngestAnswer, history.key).state != "kept":
            raise errors.Unavailable("the memory engine did not say that it is kept.")

    def profile(self, user: TenantUser, budget: int) -> Profile:
        """Return the current facts of a user; raise Unavailable if the answer exceeds the budget."""
        if budget <= 0:
            return Profile("", 0)
        answer = self._request("profile", ProfileJson(user, budget), ProfileAnswer)
        if answer.tokens > budget or len(answer.text) > budget * limits.MEMORY_CHARS_PER_TOKEN_MAX:
            raise errors.Unavailable("the memory engine answered with more than was asked for.")
        return profile_from_json(answer)

    def search(self, user: TenantUser, query: str, limit: int) -> list[MemoryResult]:
        """Return up to `limit` results of the engine."""
        checked_limit(limit, limits.MEMORY_RESULTS_MAX)
        short = query[: limits.FACT_SCAN_CHARS_MAX]
        answer = self._request("search", SearchJson(user, short, limit), SearchAnswer)
        return [result_from_json(result) for result in answer.results[:limit]]

    def facts(self, user: TenantUser) -> list[Fact]:
        """Return all facts of a user, also replaced ones, requested page by page."""
        found, after = list[Fact](), None
        for _ in range(limits.MEMORY_PAGES_MAX):
            answer = self._request("facts", FactsJson(user, after), FactsAnswer)
            found += [fact_from_json(fact) for fact in answer.facts]
            if answer.next is None:
                return found
            if answer.next == after or not answer.facts:
                break
            after = answer.next
        raise errors.Unavailable("the memory engine's pages of facts have no end.")

    def forget(self, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:
        """Have the engine delete facts; return how many it reports as deleted."""
        body = ForgetJson(user, session_id, position)
        return self._request("forget", body, ForgetAnswer).forgotten

    def close(self) -> None:
        """Refuse every further call. There is no connection to close between two requests."""
        self._closed = True

    def _request(self, verb: str, body: msgspec.Struct, kind: type[T], key: str = "") -> T:
        if self._closed:
            raise errors.EngineClosed
        sent = msgspec.json.encode(body)
        for left in range(self._retries, -1, -1):
            try:
                return _decode_answer(self._send_once(verb, sent, key), kind)
            except errors.Unavailable:
                if not left:
                    raise
                self._pause(min(5.0, 0.1 * 2 ** (self._retries - left)))
        raise AssertionError

    def _send_once(self, verb: str, body: bytes, key: str) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        if key:
            headers["Idempotency-Key"] = quote(key, safe="/:")
        path = f"{self._url.path.rstrip('/')}/{verb}"
        connection = self._connection()
        try:
            with _deadline(connection, self._timeout_s):
                connection.request("POST", path, body, headers)
                with connection.getresponse() as response:
                    answer = response.read(limits.MEMORY_ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise errors.Unavailable(
                "the memory engine can't be reached, or does not answer in time.",
                facts={"host": self._url.hostname, "cause": type(error).__name__},
            ) from None
        finally:
            connection.close()
        _check_status(response.status, verb)
        if len(answer) > limits.MEMORY_ANSWER_BYTES_MAX:
            raise errors.Unavailable("the memory engine's answer is too large.")
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            return _DeadlineHTTPConnection(host, port, timeout=self._timeout_s)
        return _DeadlineHTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)


_: type[MemoryEngine] = HTTPMemory


class _DeadlineHTTPConnection(http.client.HTTPConnection):
    """An HTTP connection whose timeout holds for all addresses of the host together."""

    def connect(self) -> None:
        self.sock = _connect_within(self.host, self.port, self.timeout or 0.0)


class _DeadlineHTTPSConnection(http.client.HTTPSConnection, _DeadlineHTTPConnection):
    """The same over TLS. The time left after connecting is the timeout of the handshake."""


def _connect_within(host: str, port: int, seconds: float) -> socket.socket:
    """Return a socket to the first address that answers. Its timeout is the rest of `seconds`.

    Each address gets an equal share of the time left, so that a dead address leaves time for the others.
    """
    until, failed = time.monotonic() + seconds, OSError("the host has no address.")
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for tried, (*_, address) in enumerate(addresses):
        share = (until - time.monotonic()) / (len(addresses) - tried)
        if share <= 0:
            raise TimeoutError
        try:
            sock = socket.create_connection(cast("tuple[str, int]", address[:2]), share)
        except OSError as error:
            failed = error
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(max(until - time.monotonic(), 0.001))
        return sock
    raise failed


@contextlib.contextmanager
def _deadline(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Connect; shut the socket down after `seconds`, even if single bytes still arrive."""
    over, sockets = threading.Event(), list[socket.socket]()

    def shut_down() -> None:
        over.set()
        for sock in sockets:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown, which discards the TLS state while another thread reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut_down)
    timer.daemon = True
    timer.start()
    try:
        connection.connect()
        # The connection drops its reference to the socket when the server announces that it will close.
        sockets.append(connection.sock)
        if over.is_set():
            # The timer fired while the list was empty.
            raise TimeoutError
        yield
        if over.is_set():
            # A connection that was shut down may look like an answer that has ended.
            raise TimeoutError
    finally:
        timer.cancel()


def _check_status(status: int, verb: str) -> None:
    if 200 <= status < 300:
        return
    facts = {"status": status, "verb": verb}
    if 300 <= status < 400:
        raise errors.Refused(
            "the memory engine sends the request elsewhere, which is not followed.",
            hint="Give the URL that it redirects to.",
            facts=facts,
        )
    if status in (401, 403):
        raise errors.Refused("the memory engine does not accept the API key.", facts=facts)
    if status in _RETRIED_STATUSES or status >= 500 or status < 200:
        raise errors.Unavailable("the memory engine can't take it now.", facts=facts)
    raise errors.Refused("the memory engine refuses the request.", facts=facts)


def _decode_answer(answer: bytes, kind: type[T]) -> T:
    try:
        return decode_body(answer, kind)
    except errors.InvalidRequest:
        raise errors.Unavailable("the memory engine's answer is not what the schema says.") from None


def _checked_url(url: str, *, allow_http: bool) -> SplitResult:
    try:
        parts = urlsplit(url)
        _port = parts.port
    except ValueError:
        raise errors.InvalidRequest("that is no URL.") from None
    if parts.username or parts.password or parts.query or parts.fragment or not parts.hostname:
        raise errors.InvalidRequest(
            "a memory engine's URL has a host and a path, nothing else.", hint="A key goes into api_key."
        )
    if not url.isascii() or not url.isprintable() or " " in url:
        raise errors.InvalidRequest("a memory engine's URL has visible ASCII characters only.")
    if parts.scheme == "https" or (parts.scheme == "http" and allow_http):
        return parts
    if parts.scheme == "http" and _is_local(parts.hostname):
        return parts
    raise errors.InvalidRequest(
        "memory goes over https, or over http on this machine.", hint="allow_http=True sends it unencrypted."
    )


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _upload_chunks(messages: Iterable[Sequence[ArchivedMessage]]) -> Iterator[tuple[MessageJson, ...]]:
    """Yield messages in chunks that fit into one request."""
    for batch in messages:
        chunk, size = list[MessageJson](), 0
        for message in map(message_to_json, batch):
            message_bytes = len(msgspec.json.encode(message))
            if chunk and (size + message_bytes > limits.MEMORY_REQUEST_BYTES or len(chunk) >= limits.MEMORY_CHUNK):
                yield tuple(chunk)
                chunk, size = [], 0
            chunk.append(message)
            size += message_bytes
        if chunk:
            yield tuple(chunk)
