"""Clients of lists through the public interface: a list is a session, an element is a message.

So what the engine keeps in memory is judged as well: no process may show, or decide on, less than what
another one was told is kept.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import limpet
from limpet import Message, errors
from limpet.stores import port
from tests.faults import broken_stores
from tests.faults.history import Status, Writer

TENANT = "dee"
_LONG, _TRIES, _PAUSE_S = 40, 400, 0.03


class Tally(Protocol):
    """What all processes know of the lists."""

    def first(self, tenant: str) -> int: ...
    def leave(self, tenant: str, number: int) -> None: ...


class Desk(Protocol):
    """What a client needs of its process."""

    @property
    def notes(self) -> Writer: ...
    @property
    def tally(self) -> Tally: ...
    def next_id(self) -> int: ...
    def ended(self, id: int, status: Status, reads: tuple[tuple[str, tuple[int, ...]], ...] = ()) -> None: ...


def connected(url: str, *, lossy: bool, seed: int) -> limpet.Limpet:
    """Open an engine, whose store loses questions and answers now and then if it is `lossy`."""
    lp = limpet.connect(url, tenant=TENANT)
    store = lp._opened.engine.store
    if lossy:
        sound: Callable[[Sequence[port.Append]], list[port.AppendOutcome]] = store.commit
        setattr(store, "commit", broken_stores.lossy(sound, random.Random(seed)))  # noqa: B010
    return lp


def elements_of(session: limpet.Session) -> tuple[int, ...]:
    """Return a session's messages as what they stand for."""
    return tuple(int(str(message.content)) for message in session.messages)


class SessionClient:
    """One who reads sessions, and adds messages to them, on condition or not."""

    def __init__(self, desk: Desk, lp: limpet.Limpet, rng: random.Random) -> None:
        self._desk = desk
        self._sessions = lp.sessions
        self._rng = rng

    def step(self) -> None:
        """Do one thing."""
        rng, id_ = self._rng, self._desk.next_id()
        name = f"e{self._desk.tally.first(TENANT) + rng.randrange(3)}"
        roll = rng.random()
        if roll < 0.35:
            self._desk.notes.begun(id_, ())
            self._read(id_, name)
            return
        elements = [id_ << 2 | each for each in range(rng.randint(1, 2))]
        self._desk.notes.begun(id_, tuple((f"{TENANT}/{name}", each) for each in elements))
        self._add(id_, name, elements, on_condition=roll < 0.7, gives_up=rng.random() < 0.5)

    def _seen(self, name: str, session: limpet.Session | None) -> tuple[str, tuple[int, ...]]:
        elements = elements_of(session) if session else ()
        if len(elements) >= _LONG:
            self._desk.tally.leave(TENANT, int(name[1:]))
        return f"{TENANT}/{name}", elements

    def _read(self, id: int, name: str) -> None:
        for _ in range(_TRIES):
            try:
                session = self._sessions.get_session(name)
                self._desk.ended(id, "ok", (self._seen(name, session),))
                return
            except errors.SessionNotFound:
                self._desk.ended(id, "ok", (self._seen(name, None),))
                return
            except errors.Unavailable:
                time.sleep(_PAUSE_S)
        self._desk.ended(id, "fail")

    def _add(self, id: int, name: str, elements: list[int], *, on_condition: bool, gives_up: bool) -> None:
        """Add messages; whoever does not hear the answer asks the very same again."""
        said = [Message(role="user", content=str(each), id=f"m{each}") for each in elements]
        session: limpet.Session | None = None
        reads: tuple[tuple[str, tuple[int, ...]], ...] = ()
        expected: int | None = None
        doubt = False
        for _ in range(_TRIES):
            try:
                if session is None:
                    found = self._sessions.get_or_create_session(name)
                    if on_condition:
                        reads, expected = (self._seen(name, found),), found.state.version
                    session = found
                doubt = True
                session.add_messages(said, key=f"k{id}", expected_version=expected)
                self._desk.ended(id, "ok", reads)
                return
            except errors.StaleVersion:
                self._desk.ended(id, "fail")
                return
            except errors.Unavailable:
                if doubt and gives_up:
                    break
                time.sleep(_PAUSE_S)
            except errors.Conflict as error:
                # Others were faster every time, and it says so; any other conflict is a fault.
                if type(error) is not errors.Conflict:
                    raise
        self._desk.ended(id, "info" if doubt else "fail")
