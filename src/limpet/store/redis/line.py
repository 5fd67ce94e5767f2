"""A connection over which changes are sent ahead of answers."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from limpet.store.redis import links, translate
from limpet.store.redis.links import Answer, Call, Link
from limpet.store.redis.servers import UNDONE
from limpet.store.remote import driver
from limpet.store.remote.driver import Change, Taken, Verdict


class RedisLine:
    """A connection lent for changes on their way.

    `announce` sees to what has to be so before changes are sent, `check` before what was answered counts.
    """

    def __init__(
        self,
        link: Link,
        *,
        announce: Callable[[Sequence[Change]], None],
        call: Callable[[Change], Call],
        verdict: Callable[[Answer], Verdict],
        check: Callable[[], None],
    ) -> None:
        self._place = link.place
        self._loan = link.lent()
        self._announce = announce
        self._call = call
        self._verdict = verdict
        self._check = check
        self._out: deque[int] = deque()

    def __enter__(self) -> RedisLine:
        """Borrow the connection."""
        with self._translated():
            self._connection = self._loan.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back, or throw it away if not every answer was had."""
        if self._out and error is None:
            kind, error = Unanswered, Unanswered()
        self._loan.__exit__(kind, error, trace)

    def send(self, changes: Sequence[Change]) -> bool:
        """Send changes. Always."""
        self._announce(changes)
        commands = [self._call(change).command() for change in changes]
        self._out.append(len(changes))
        with self._translated():
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        return True

    def receive(self) -> list[Verdict]:
        """Wait for what became of the first of them."""
        with self._translated():
            answers = [links.answer(self._connection) for _ in range(self._out[0])]
            for answer in answers:
                if isinstance(answer, Exception) and not isinstance(answer, UNDONE):
                    raise answer
        self._out.popleft()
        self._check()
        return [
            Taken() if isinstance(answer, UNDONE) else self._verdict(answer) for answer in answers
        ]

    def ready(self) -> bool:
        """Whether something of an answer is there."""
        with self._translated():
            return self._connection.can_read(0)

    def fileno(self) -> int:
        """Return the connection's socket."""
        sock = self._connection._sock  # pyright: ignore[reportPrivateUsage]
        return sock.fileno() if sock is not None else -1

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except translate.KINDS as error:
            raise translate.of(error, self._place) from error


class Unanswered(Exception):
    """Answers were out when a line was given back."""


_conforms: type[driver.Line] = RedisLine
