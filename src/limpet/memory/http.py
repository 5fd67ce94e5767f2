"""Memory engine over HTTP: the client and the JSON schema (docs/reference/memory-http.md).

Answers are untrusted: size and time are bounded, types are checked, and text is sanitized.
Redirects are not followed. The API key never appears in an error.
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
    """A message and where it was said."""

    position: WholeNumber
    session_id: IdText
    generation: WholeNumber
    number: WholeNumber
    time_us: WholeNumber
    message: dict[str, Json]


class IngestJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a conversation; the last one commits it."""

    history: History
    attempt: IdText
    chunk: Annotated[int, Meta(ge=1)]
    said: tuple[MessageJson, ...] = ()
    commit: bool = False


class ProfileJson(msgspec.Struct, frozen=True):
    """A question for a profile."""

    who: TenantUser
    budget: WholeNumber


class SearchJson(msgspec.Struct, frozen=True):
    """A question for what fits a query."""

    who: TenantUser
    query: BoundedText
    k: Annotated[int, Meta(ge=1, le=limits.MEMORY_RESULTS_MAX)]


class FactsJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question for a page of facts."""

    who: TenantUser
    after: str | None = None


class ForgetJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to be forgotten."""

    who: TenantUser
    session_id: IdText | None = None
    position: WholeNumber | None = None


class IngestAnswer(msgspec.Struct, frozen=True):
    """How far a conversation is: `taking`, or `kept`."""

    state: str


class SourceJson(msgspec.Struct, frozen=True):
    """Who said so."""

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
    """What is known of a user now."""

    text: BoundedText
    tokens: WholeNumber
    facts: tuple[FactJson, ...] = ()


class ResultJson(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something found."""

    text: BoundedText
    score: float
    time_us: WholeNumber
    kind: FactKind | None = None
    source: SourceJson | None = None
    until_us: WholeNumber | None = None


class SearchAnswer(msgspec.Struct, frozen=True):
    """What was found, the best first."""

    results: tuple[ResultJson, ...]


class FactsAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of facts, the newest first; `next` asks for the one after it."""

    facts: tuple[FactJson, ...]
    next: str | None = None


class ForgetAnswer(msgspec.Struct, frozen=True):
    """How much was forgotten."""

    forgotten: WholeNumber


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Why a request was not served."""

    code: str
    message: str


def message_to_json(archived: ArchivedMessage) -> MessageJson:
    """Return a message as it is sent, without the fields that only its provider understands."""
    whole = archived.message.to_dict()
    dropped = ("openai", "anthropic", "tokens", "category")
    message = {name: value for name, value in whole.items() if name not in dropped and value}
    return MessageJson(
        archived.position, archived.session_id, archived.generation, archived.number, archived.time_us, message
    )


def message_from_json(given: MessageJson) -> ArchivedMessage:
    """Return a message as it was sent. Raises a kind of InvalidMessage."""
    return ArchivedMessage(
        position=given.position,
        session_id=given.session_id,
        generation=given.generation,
        number=given.number,
        time_us=given.time_us,
        message=Message.from_dict(given.message),
    )


def decode_body(body: bytes, kind: type[T]) -> T:
    """Return what a body says; raise InvalidRequest if it is not of that kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.InvalidRequest("the body is not what the schema asks for.") from error


def fact_from_json(given: FactJson) -> Fact:
    """Return a fact, its texts clean."""
    return Fact(
        id=rules.clean(given.id),
        kind=given.kind,
        text=rules.clean(given.text, limits.MEMORY_TEXT_CHARS_MAX),
        source=_source_from_json(given.source),
        since_us=given.since_us,
        about=rules.clean(given.about, limits.FACT_ABOUT_CHARS_MAX),
        until_us=given.until_us,
    )


def recalled_from_json(given: ResultJson) -> MemoryResult:
    """Return something found, its text clean."""
    return MemoryResult(
        text=rules.clean(given.text, limits.MEMORY_TEXT_CHARS_MAX),
        score=given.score,
        time_us=given.time_us,
        kind=given.kind,
        source=_source_from_json(given.source) if given.source else None,
        until_us=given.until_us,
    )


def profile_from_json(given: ProfileAnswer) -> Profile:
    """Return a profile, line by line clean, without lines that tell a model what to do."""
    lines = (rules.clean(line, limits.MEMORY_TEXT_CHARS_MAX) for line in given.text.splitlines())
    text = "\n".join(line for line in lines if line and not rules.reads_as_instruction(line))
    facts = (fact_from_json(each) for each in given.facts[: limits.PROFILE_FACTS_MAX])
    return Profile(text, given.tokens, tuple(each for each in facts if each.until_us is None))


def _source_from_json(given: SourceJson) -> Source:
    return Source(rules.clean(given.session_id), rules.clean(given.message_id), given.position)


_RETRIED_STATUSES: Final = (408, 409, 425, 429)


class HTTPMemory:
    """An engine behind a URL. Threads may share it; each request is a connection of its own.

    `url` is https, or http on this machine; `allow_http=True` takes any. A request that finds the engine away
    is repeated `retries` times: every verb of the schema has one effect, however often it arrives.
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
        """What it is, for people: its address."""
        return f"http memory at {self._url.hostname}"

    def ingest(self, history: History, messages: Iterable[Sequence[ArchivedMessage]]) -> None:
        """Send a conversation in requests of bounded size; when this returns, the engine has said that it is kept."""
        attempt, number = ids.new_id("try"), 0
        for piece in _upload_chunks(messages):
            number += 1
            body = IngestJson(history, attempt, number, piece)
            if self._request("ingest", body, IngestAnswer, history.key).state == "kept":
                return
        last = IngestJson(history, attempt, number + 1, commit=True)
        if self._request("ingest", last, IngestAnswer, history.key).state != "kept":
            raise errors.Unavailable("the memory engine did not say that it is kept.")

    def profile(self, user: TenantUser, budget: int) -> Profile:
        """Return what the engine knows of a user now; raise Unavailable if it answers more than was asked for."""
        if budget <= 0:
            return Profile("", 0)
        answer = self._request("profile", ProfileJson(user, budget), ProfileAnswer)
        if answer.tokens > budget or len(answer.text) > budget * limits.MEMORY_CHARS_PER_TOKEN_MAX:
            raise errors.Unavailable("the memory engine answered with more than was asked for.")
        return profile_from_json(answer)

    def search(self, user: TenantUser, query: str, limit: int) -> list[MemoryResult]:
        """Return up to `limit` things that the engine finds."""
        checked_limit(limit, limits.MEMORY_RESULTS_MAX)
        short = query[: limits.FACT_SCAN_CHARS_MAX]
        answer = self._request("search", SearchJson(user, short, limit), SearchAnswer)
        return [recalled_from_json(each) for each in answer.results[:limit]]

    def facts(self, user: TenantUser) -> list[Fact]:
        """Return everything that the engine knows or knew of a user, asked for page by page."""
        found, after = list[Fact](), None
        for _ in range(limits.MEMORY_PAGES_MAX):
            answer = self._request("facts", FactsJson(user, after), FactsAnswer)
            found += [fact_from_json(each) for each in answer.facts]
            if answer.next is None:
                return found
            if answer.next == after or not answer.facts:
                break
            after = answer.next
        raise errors.Unavailable("the memory engine's pages of facts have no end.")

    def forget(self, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:
        """Have the engine forget; return how much it says that was."""
        body = ForgetJson(user, session_id, position)
        return self._request("forget", body, ForgetAnswer).forgotten

    def close(self) -> None:
        """Use it no more. No connection stays open between two requests."""
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
    """A connection that comes about within its timeout, however many addresses its host has."""

    def connect(self) -> None:
        self.sock = _connect_within(self.host, self.port, self.timeout or 0.0)


class _DeadlineHTTPSConnection(http.client.HTTPSConnection, _DeadlineHTTPConnection):
    """The same over TLS. Its handshake has what connecting has left of the time."""


def _connect_within(host: str, port: int, seconds: float) -> socket.socket:
    """Return a socket to the first address that answers; its timeout is the time that is left.

    No address may take more than its share, so that a dead one leaves time for the others.
    """
    until, failed = time.monotonic() + seconds, OSError("the host has no address.")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for tried, (*_, address) in enumerate(found):
        share = (until - time.monotonic()) / (len(found) - tried)
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
    """Connect, and break off when the time for all of it is over, however busy it is with single bytes."""
    over, held = threading.Event(), list[socket.socket]()

    def break_off() -> None:
        over.set()
        for sock in held:
            with contextlib.suppress(OSError):
                # Not the verb of TLS, which takes the keys away from whoever is reading.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, break_off)
    timer.daemon = True
    timer.start()
    try:
        connection.connect()
        # Held here: the connection lets go of it as soon as the server says that it will close.
        held.append(connection.sock)
        if over.is_set():
            # Nothing was there to be broken off when the time was over.
            raise TimeoutError
        yield
        if over.is_set():
            # What was broken off may look like an answer that has ended.
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
    """Yield messages in pieces that a request has room for."""
    for chunk in messages:
        piece, size = list[MessageJson](), 0
        for one in chunk:
            each = message_to_json(one)
            room = len(msgspec.json.encode(each))
            if piece and (size + room > limits.MEMORY_REQUEST_BYTES or len(piece) >= limits.MEMORY_CHUNK):
                yield tuple(piece)
                piece, size = [], 0
            piece.append(each)
            size += room
        if piece:
            yield tuple(piece)
