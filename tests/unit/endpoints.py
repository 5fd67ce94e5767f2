"""A scripted endpoint on loopback that speaks like OpenAI's or Anthropic's: each request takes the next step."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            self.server.requests.append((self.path, dict(self.headers), json.loads(body)))
            step = self.server.steps.pop(0) if self.server.steps else self.server.otherwise
        step(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Endpoint(ThreadingHTTPServer):
    """Answers by a script, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.steps: list[Step] = []
        self.otherwise: Step = fails(500)
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the script."""


@contextmanager
def serving() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        thread = threading.Thread(target=endpoint.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield endpoint
        finally:
            endpoint.over.set()
            endpoint.shutdown()
            thread.join()


def gives(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Step:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return lambda handler: handler.send(status, body, headers)


def fails(status: int, code: str = "", *, said: str = "", headers: Mapping[str, str] | None = None) -> Step:
    error = {"message": said, "type": code or "odd", "code": code or None}
    return gives({"error": error, "type": "error"}, status, headers)


def hangs(handler: Handler) -> None:
    """Take the question and never answer."""
    handler.close_connection = True
    handler.server.over.wait(120)


def cuts(handler: Handler) -> None:
    """Hang up without an answer."""
    handler.close_connection = True
    handler.connection.close()


def breaks_off(handler: Handler) -> None:
    """Hang up in the middle of an answer."""
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("content-length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def drips(handler: Handler) -> None:
    """Send a blank now and then, forty times."""
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("content-length", "40")
    handler.end_headers()
    for _ in range(40):
        handler.server.over.wait(0.02)
        handler.wfile.write(b" ")
        handler.wfile.flush()


def chat(text: object = "Hello.", finish: str = "stop", **message: object) -> Step:
    """A chat completion."""
    said = {"role": "assistant", "content": text, **message}
    return gives({
        "id": "c", "object": "chat.completion", "model": "small-1",
        "choices": [{"index": 0, "message": said, "finish_reason": finish}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    })  # fmt: skip


def message(text: str | None = "Hello.", stop: str = "end_turn", kind: str = "text") -> Step:
    """A message of Anthropic's."""
    return gives({
        "id": "m", "type": "message", "role": "assistant", "model": "small-1", "stop_reason": stop,
        "content": [] if text is None else [{"type": kind, "text": text}],
        "usage": {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 2},
    })  # fmt: skip
