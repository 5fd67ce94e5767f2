"""Deferred writes: submitted at once and in order, waited for later. Not a second durability mode.

What was submitted is on its way to the same log; only the moment of waiting moves, to save, eviction,
reading, or the next call after `interval_s`. An error surfaces at the first wait.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from holdfast.engine.commits import Ticket
from holdfast.engine.engine import Engine
from holdfast.values.command import Request


class Writes:
    """Tickets under way, by session."""

    def __init__(self, engine: Engine, interval_s: float) -> None:
        self._engine = engine
        self._interval_us = int(interval_s * 1e6)
        self._changed = threading.Condition()
        self._under_way: dict[str, list[Ticket]] = {}
        self._waited_us = 0

    def add(self, request: Request) -> None:
        """Submit a request. Raises the error of an earlier one that was refused."""
        now = self._engine.now_us()
        if self._interval_us and now - self._waited_us > self._interval_us:
            self._waited_us = now
            self.wait()
        session_id = request.command.session_id
        with self._changed:
            ticket = self._engine.submit(request, self)
            self._under_way.setdefault(session_id, []).append(ticket)

    def deliver(self, tickets: Sequence[Ticket]) -> None:
        """Wake whoever waits for these."""
        assert all(ticket.done for ticket in tickets)
        with self._changed:
            self._changed.notify_all()

    def wait(self, session_id: str | None = None) -> bool:
        """Wait for the writes of one session, or all; raise the first error among them, once.

        Returns whether there were any.
        """
        if not self._under_way:
            return False
        with self._changed:
            chosen = list(self._under_way) if session_id is None else [session_id]
            tickets = [ticket for place in chosen for ticket in self._under_way.get(place, ())]
            self._changed.wait_for(lambda: all(ticket.done for ticket in tickets))
            mine = [ticket for place in chosen for ticket in self._remove(place, tickets)]
        failed = [ticket.error for ticket in mine if ticket.error is not None]
        if failed:
            if len(failed) > 1:
                failed[0].add_note(
                    f"{len(failed) - 1} more deferred write(s) were refused after it"
                )
            raise failed[0]
        return bool(tickets)

    def _remove(self, session_id: str, done: list[Ticket]) -> list[Ticket]:
        present = self._under_way.pop(session_id, [])
        left = [ticket for ticket in present if ticket not in done]
        if left:
            self._under_way[session_id] = left
        return [ticket for ticket in present if ticket in done]
