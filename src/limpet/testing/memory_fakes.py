"""A fake memory engine, and a server that serves any memory engine over HTTP. Neither needs pytest.

    with MemoryServer(engine, api_key="…") as server:
        memory = HTTPMemory(server.url, api_key="…")

The server passes each conversation to the engine in a thread, chunk by chunk, so it never has a whole
conversation in memory. It aborts the uploads that have been idle for longest if there are too many.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from limpet import errors, limits
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
from limpet.memory import http as schema
from limpet.memory.port import MemoryEngine


class Scribe:
    """A fake memory engine that records conversations. A test sets the text that is `known` of a user.

    Records name a conversation by session and generation ("trip#0"). `ingest` raises the exceptions in
    `failures`, one at a call, and then the exception that `fails_for` has for the conversation.
    """

    def __init__(self, name: str = "scribe") -> None:
        self._name = name
        self.offered: list[str] = []
        self.taken: dict[tuple[str, str], tuple[History, list[ArchivedMessage]]] = {}
        self.chunks: list[int] = []
        self.failures: list[Exception] = []
        self.fails_for: dict[str, Exception] = {}
        self.known: dict[TenantUser, str] = {}
        self.forgotten: list[TenantUser] = []
        self.on_profile: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        return self._name

    def ingest(self, history: History, messages: Iterable[Sequence[ArchivedMessage]]) -> None:
        """Record a conversation, or raise a configured failure."""
        named = f"{history.session_id}#{history.generation}"
        self.offered.append(named)
        whole: list[ArchivedMessage] = []
        for chunk in messages:
            self.chunks.append(len(chunk))
            whole += chunk
        if self.failures:
            raise self.failures.pop(0)
        if named in self.fails_for:
            raise self.fails_for[named]
        before = self.taken.get((history.user.tenant, named))
        if before is None or before[0].key != history.key:
            self.taken[history.user.tenant, named] = (history, whole)

    def profile(self, user: TenantUser, budget: int) -> Profile:  # noqa: ARG002 - the port's parameter
        """Return the text in `known` as a profile of one fact."""
        self.on_profile()
        text = self.known.get(user, "")
        if not text:
            return Profile("", 0)
        source = Source("earlier", f"m-{user.user_id}", 7)
        fact = Fact(id="f1", kind=FactKind.FACT, text=text, source=source, since_us=1)
        return Profile(text, len(text) // 4, (fact,))

    def search(self, user: TenantUser, query: str, limit: int) -> Sequence[MemoryResult]:
        """Return the text in `known` if it contains the query."""
        text = self.known.get(user, "")
        if query.lower() not in text.lower():
            return []
        return [MemoryResult(text=text, score=1.0, time_us=1, kind=FactKind.FACT)][:limit]

    def facts(self, user: TenantUser) -> Sequence[Fact]:
        return self.profile(user, 1_000).facts

    def forget(self, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:  # noqa: ARG002 - the port's parameters
        """Record the call, and delete the text in `known`."""
        self.forgotten.append(user)
        return int(self.known.pop(user, None) is not None)

    def close(self) -> None:
        """Do nothing."""

    def texts(self, tenant: str, named: str) -> list[object]:
        """Return the contents of the messages of a conversation."""
        return [archived.message.content for archived in self.taken[tenant, named][1]]


_: type[MemoryEngine] = Scribe


_STATUS: Final[Mapping[type[errors.Error], int]] = {
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Refused: 422,
    errors.Unavailable: 503,
    errors.Corrupt: 500,
}
_BODY_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX * 2 + limits.MEMORY_REQUEST_BYTES
_IDLE_S: Final = 30.0


class MemoryServer:
    """Serves an engine while the body of a `with` statement runs."""

    def __init__(self, engine: MemoryEngine, *, api_key: str | None = None, port: int = 0) -> None:
        self._service = _Service(engine)

        class Handler(_Handler):
            service = self._service
            key = api_key

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> MemoryServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and abort running uploads. The engine stays open."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._service.close()


class _Service:
    """Answers requests: one method for each path, from the bytes of a body to an answer."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._uploads: OrderedDict[tuple[str, str, str], _Upload] = OrderedDict()
        self._lock = threading.Lock()
        self.verbs: Mapping[str, Callable[[bytes], msgspec.Struct]] = {
            "/ingest": self.ingest,
            "/profile": self.profile,
            "/search": self.search,
            "/facts": self.facts,
            "/forget": self.forget,
        }

    def ingest(self, body: bytes) -> schema.IngestAnswer:
        asked = schema.decode_body(body, schema.IngestJson)
        upload = self._upload(asked)
        messages = [schema.message_from_json(message) for message in asked.said]
        if upload.take(asked.chunk, messages, commit=asked.commit):
            return schema.IngestAnswer("kept")
        return schema.IngestAnswer("taking")

    def _upload(self, asked: schema.IngestJson) -> _Upload:
        at = (asked.history.user.tenant, asked.history.user.user_id, asked.history.key)
        with self._lock:
            upload = self._uploads.get(at)
            if upload is None or upload.attempt != asked.attempt:
                if asked.chunk != 1:
                    raise errors.Conflict("that conversation is not being taken; begin again.")
                if upload is not None:
                    upload.break_off()
                upload = self._uploads[at] = _Upload(self._engine, asked)
            self._uploads.move_to_end(at)
            while len(self._uploads) > limits.MEMORY_UPLOADS_MAX:
                self._uploads.popitem(last=False)[1].break_off()
            return upload

    def profile(self, body: bytes) -> schema.ProfileAnswer:
        asked = schema.decode_body(body, schema.ProfileJson)
        found = self._engine.profile(asked.who, asked.budget)
        return msgspec.convert(msgspec.to_builtins(found), schema.ProfileAnswer)

    def search(self, body: bytes) -> schema.SearchAnswer:
        asked = schema.decode_body(body, schema.SearchJson)
        found = self._engine.search(asked.who, asked.query, asked.k)
        return msgspec.convert({"results": msgspec.to_builtins(list(found))}, schema.SearchAnswer)

    def facts(self, body: bytes) -> schema.FactsAnswer:
        asked = schema.decode_body(body, schema.FactsJson)
        begin = int(asked.after) if asked.after and asked.after.isdecimal() else 0
        found = list(self._engine.facts(asked.who))
        end = begin + limits.PAGE_SIZE_MAX
        page = msgspec.to_builtins(found[begin:end])
        more = {"next": str(end)} if end < len(found) else {}
        return msgspec.convert({"facts": page, **more}, schema.FactsAnswer)

    def forget(self, body: bytes) -> schema.ForgetAnswer:
        asked = schema.decode_body(body, schema.ForgetJson)
        return schema.ForgetAnswer(self._engine.forget(asked.who, asked.session_id, asked.position))

    def close(self) -> None:
        with self._lock:
            for upload in self._uploads.values():
                upload.break_off()
            self._uploads.clear()


class _BrokenOff(Exception):
    """The upload was aborted."""


class _Upload:
    """A conversation that arrives in chunks. A thread passes them to the engine."""

    def __init__(self, engine: MemoryEngine, asked: schema.IngestJson) -> None:
        self.attempt = asked.attempt
        self._engine = engine
        self._history = asked.history
        self._pieces: queue.Queue[Sequence[ArchivedMessage] | None] = queue.Queue(maxsize=1)
        self._done, self._broken = threading.Event(), threading.Event()
        self._error: errors.Error | None = None
        self._number = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def take(self, number: int, messages: Sequence[ArchivedMessage], *, commit: bool) -> bool:
        """Pass a chunk to the engine, unless it is a repetition; return whether the conversation is ingested."""
        with self._lock:
            if number > self._number + 1:
                raise errors.Conflict("a piece of the conversation is missing; begin again.")
            if number == self._number + 1:
                self._number = number
                self._put(None if commit else messages)
            if commit:
                self._done.wait()
            if self._done.is_set() and self._error is not None:
                raise self._error
            return self._done.is_set()

    def break_off(self) -> None:
        self._broken.set()

    def _put(self, piece: Sequence[ArchivedMessage] | None) -> None:
        while not self._done.is_set():
            with contextlib.suppress(queue.Full):
                self._pieces.put(piece, timeout=0.02)
                return

    def _run(self) -> None:
        try:
            self._engine.ingest(self._history, self._arriving())
        except errors.Error as error:
            self._error = error
        except _BrokenOff:
            self._error = errors.Unavailable("the conversation was broken off; begin again.")
        finally:
            self._done.set()

    def _arriving(self) -> Iterator[Sequence[ArchivedMessage]]:
        while True:
            if self._broken.is_set():
                raise _BrokenOff
            try:
                piece = self._pieces.get(timeout=0.1)
            except queue.Empty:
                continue
            if piece is None:
                return
            yield piece


class _Handler(http.server.BaseHTTPRequestHandler):
    service: _Service
    key: str | None
    timeout = _IDLE_S

    def do_POST(self) -> None:
        try:
            self._answer(200, self._served())
        except errors.Error as error:
            status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
            self._answer(status, schema.ErrorAnswer(error.code, error.message))
        except _Refusal as refusal:
            self._answer(refusal.status, schema.ErrorAnswer("refused", str(refusal)))

    def _served(self) -> msgspec.Struct:
        given = self.headers.get("Authorization", "")
        if self.key is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
            raise _Refusal(401, "the API key is missing or wrong.")
        verb = self.service.verbs.get(self.path)
        if verb is None:
            raise _Refusal(404, "there is no such path.")
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > _BODY_BYTES_MAX:
            raise _Refusal(413, "the body is too large, or does not tell its size.")
        return verb(self.rfile.read(int(size)))

    def _answer(self, status: int, answer: msgspec.Struct) -> None:
        body = msgspec.json.encode(answer)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name above
        """Log nothing, because requests contain messages of users."""


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)
