"""Deferred writes: submitted at once and in order, waited for later. Not a second durability mode.

What was submitted is on its way to the same log; only the moment of waiting moves, to save, eviction,
reading, or the next call after `interval_s`. An error waits for whoever next asks for its session.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from limpet.core.values.commands import CommandRequest
from limpet.runtime.commit_queue import Ticket
from limpet.runtime.engine import Engine


class Writes:
    """Tickets under way, by session."""

    def __init__(self, engine: Engine, interval_s: float) -> None:
        self._engine = engine
        self._interval_us = int(interval_s * 1e6)
        self._changed = threading.Condition()
        self._under_way: dict[str, list[Ticket]] = {}
        self._failed: dict[str, list[BaseException]] = {}
        self._waited_us = 0

    def add(self, request: CommandRequest) -> None:
        """Submit a request. Raises instead, once, if an earlier one of its session was refused."""
        session_id = request.session_id
        now = self._engine.now_us()
        if self._interval_us and now - self._waited_us > self._interval_us:
            self._waited_us = now
            self.settle()
        self._raise(session_id)
        with self._changed:
            ticket = Ticket(request, self)
            self._engine.submit(ticket)
            self._under_way.setdefault(session_id, []).append(ticket)
        self._engine.start()

    def deliver(self, tickets: Sequence[Ticket]) -> None:
        """Wake whoever waits for these."""
        assert all(ticket.settled for ticket in tickets)
        with self._changed:
            self._changed.notify_all()

    def wait(self, session_id: str) -> None:
        """Wait for the writes of one session; raise the first error among them, once."""
        self.settle(session_id)
        self._raise(session_id)

    def wait_all(self) -> None:
        """Wait for every write; raise the first error among them, once."""
        self.settle()
        for session_id in list(self._failed):
            self._raise(session_id)

    def settle(self, session_id: str | None = None) -> None:
        """Wait for the writes of one session, or all; errors are kept for whoever asks for the session."""
        if not self._under_way:
            return
        self._engine.start()
        with self._changed:
            chosen = list(self._under_way) if session_id is None else [session_id]
            tickets = [ticket for place in chosen for ticket in self._under_way.get(place, ())]
            self._changed.wait_for(lambda: all(ticket.settled for ticket in tickets))
            for place in chosen:
                self._remove(place, tickets)

    def _remove(self, session_id: str, settled: list[Ticket]) -> None:
        present = self._under_way.pop(session_id, [])
        left = [ticket for ticket in present if ticket not in settled]
        if left:
            self._under_way[session_id] = left
        errors = [t.error for t in present if t in settled and t.error is not None]
        if errors:
            self._failed.setdefault(session_id, []).extend(errors)

    def _raise(self, session_id: str) -> None:
        failed = self._failed.pop(session_id, None) if self._failed else None
        if failed:
            if len(failed) > 1:
                failed[0].add_note(
                    f"{len(failed) - 1} more deferred write(s) were refused after it"
                )
            raise failed[0]
