"""Clients that read and append to lists in transactions, in several processes, until enough is done.

A list is a stream of the store; a transaction is a turn in which lists are read and appended to, all
or nothing. Whoever does not hear the answer asks again with the same key. What a client does not know
the end of, it says so. Each process has notes of its own (`history`), which outlive it.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from limpet import errors
from limpet.stores import port
from limpet.wiring import store_opener
from tests.faults import broken_stores, list_sessions_client
from tests.faults.history import Status, Writer
from tests.faults.list_sessions_client import SessionClient

PROCESSES, THREADS = 4, 8
AT_SESSIONS = 2
"""How many of the threads go through the public interface."""

LONG = 40
"""A list that has so many elements is left alone, and another one begun."""

LIMIT = 500
TENANTS = ("ada", "bob", "cy", "eve")
_TRIES, _PATIENCE_S, _PAUSE_S = 400, 300.0, 0.03
_THINKS, _THINK_S = 0.2, 0.003
_COUNTER_BITS = 24
_SLOTS = 4_096
_PLACES = (*TENANTS, list_sessions_client.TENANT)

_Opened = TypeVar("_Opened")
Reads = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process is to do. `number` is its own, for ever."""

    url: str
    folder: Path
    number: int
    seed: int
    bent: str = ""

    @property
    def notes(self) -> Path:
        """Where it leaves what it knows."""
        return self.folder / f"{self.number}.history"


class Tally:
    """What all processes know, in a file that each maps.

    How many transactions each has ended, whether they are to stop, and which lists are left alone: one that begins
    late would read all of them otherwise, and add to them, the more the longer a run lasts.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tally"
        with path.open("ab") as file:
            file.truncate(8 * (_SLOTS + len(_PLACES)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * (_SLOTS + len(_PLACES)))

    def put(self, slot: int, count: int) -> None:
        """Say how many there are; slot 0 belongs to whoever says stop."""
        struct.pack_into("<q", self._map, 8 * slot, count)

    @property
    def stopped(self) -> bool:
        """Whether everybody is to stop."""
        return bool(self._map[0])

    @property
    def total(self) -> int:
        """All that have ended."""
        return sum(struct.unpack_from(f"<{_SLOTS - 1}q", self._map, 8))

    def first(self, tenant: str) -> int:
        """Return the number of the first list of a tenant that is not left alone."""
        (found,) = struct.unpack_from("<q", self._map, 8 * (_SLOTS + _PLACES.index(tenant)))
        return found

    def leave(self, tenant: str, number: int) -> None:
        """Leave a list alone, and those before it. Two at once may forget one of them until it is read again."""
        if number >= self.first(tenant):
            self.put(_SLOTS + _PLACES.index(tenant), number + 1)

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()


class Shared:
    """What the clients of one process have in common: the store, the notes, and the tally of all."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.tally = Tally(orders.folder)
        self.notes = Writer(orders.notes)
        self.store = broken_stores.bent(orders.bent, _opened(lambda: store_opener.open_store(orders.url)), orders.seed)
        self.engine = _opened(
            lambda: list_sessions_client.connected(
                orders.url, lossy=orders.bent in broken_stores.LOSSY, seed=orders.seed
            )
        )
        if orders.number % 2:
            broken_stores.unguarded(self.store)
            broken_stores.unguarded(self.engine._opened.engine.store)
        self._begun = self._ended = 0
        self._lock = threading.Lock()

    def next_id(self) -> int:
        """Return a number that nobody else has, of any process."""
        with self._lock:
            self._begun += 1
            return self.orders.number << _COUNTER_BITS | self._begun

    def ended(self, id: int, status: Status, reads: Reads = ()) -> None:
        """Note the end of a transaction."""
        self.notes.ended(id, status, reads)
        with self._lock:
            self._ended += 1
            self.tally.put(self.orders.number, self._ended)


def _opened(open_: Callable[[], _Opened]) -> _Opened:
    """Open something; whatever is in its way has some time to pass."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return open_()
        except errors.Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def work(orders: Orders) -> None:
    """Be one of the processes; exit with 1 if anything happens that may not."""
    try:
        shared = Shared(orders)
        threads = [threading.Thread(target=_client, args=(shared, number)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shared.engine.close()
        shared.store.close()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _client(shared: Shared, number: int) -> None:
    try:
        rng = random.Random(f"{shared.orders.seed}/{number}")
        client = SessionClient(shared, shared.engine, rng) if number < AT_SESSIONS else Client(shared, rng)
        while not shared.tally.stopped:
            client.step()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Client:
    """One of many. Does one transaction after the other."""

    def __init__(self, shared: Shared, rng: random.Random) -> None:
        self._shared = shared
        self._store = shared.store
        self._rng = rng
        self._tenant = ""
        self.gives_up = self.sends = False

    def step(self) -> None:
        """Make one transaction."""
        rng = self._rng
        self._tenant = rng.choice(TENANTS)
        self.gives_up = rng.random() < 0.5
        # What is bent is how a store commits.
        self.sends = not self._shared.orders.bent and rng.random() < 0.5
        first = self._shared.tally.first(self._tenant)
        lists = rng.sample([f"l{first + each}" for each in range(4)], rng.randint(1, 3))
        id_, roll = self._shared.next_id(), rng.random()
        if roll < 0.3:
            self._shared.notes.begun(id_, ())
            self._read_only(id_, lists, turn=roll < 0.15)
            return
        count = rng.randint(1, 3)
        appends = tuple((rng.choice(lists), id_ << 2 | each) for each in range(count))
        self._shared.notes.begun(id_, tuple((self._name(to), what) for to, what in appends))
        if roll < 0.35:
            self._doomed(id_, appends)
        else:
            Attempt(self, id_, lists, appends, condition_only=roll < 0.5).run()

    def ended(self, id: int, status: Status, reads: Reads = ()) -> None:
        """Note the end of a transaction."""
        self._shared.ended(id, status, reads)

    @property
    def store(self) -> port.Store:
        """What all share."""
        return self._store

    def read(self, lists: list[str]) -> Reads:
        """Read lists, one after the other."""
        reads: list[tuple[str, tuple[int, ...]]] = []
        thinks = self._rng.random() < _THINKS
        for each in lists:
            if thinks and reads:
                # Time for others to come in between, if they can.
                time.sleep(_THINK_S)
            events = self._store.read(self._tenant, each, limit=LIMIT)
            elements = tuple(int(event.payload or b"") for event in events)
            reads.append((self._name(each), elements))
            if len(elements) >= LONG:
                self._shared.tally.leave(self._tenant, int(each[1:]))
        return tuple(reads)

    def append(self, id: int, reads: Reads, appends: tuple[tuple[str, int], ...]) -> port.Append:
        """Return what appends elements to lists as they were read, or to no list at that version."""
        versions = {name: len(elements) for name, elements in reads}
        writes: dict[str, list[port.NewEvent]] = {}
        for to, what in appends:
            writes.setdefault(to, []).append(port.NewEvent("list.appended", 1, id, b"%d" % what))
        return port.Append(
            tenant=self._tenant,
            writes=tuple(
                port.StreamWrite(to, versions.get(self._name(to), broken_stores.NEVER), tuple(events))
                for to, events in writes.items()
            ),
            key=port.KeyUse(f"k{id}", b"%d" % id),
            time_us=id,
        )

    def _name(self, stream: str) -> str:
        return f"{self._tenant}/{stream}"

    def _read_only(self, id: int, lists: list[str], *, turn: bool) -> None:
        """Read lists at one moment, in a turn; or one list, outside of any."""
        for _ in range(_TRIES):
            try:
                if not turn:
                    self.ended(id, "ok", self.read(lists[:1]))
                    return
                with self._store.write_lock():
                    reads = self.read(lists)
                    held = self._store.is_unchanged(self._tenant)
                if held:
                    self.ended(id, "ok", reads)
                    return
            except errors.Unavailable:
                time.sleep(_PAUSE_S)
        self.ended(id, "fail")

    def _doomed(self, id: int, appends: tuple[tuple[str, int], ...]) -> None:
        """Append to a version that is not there: nothing must ever come of it."""
        status: Status = "info"
        try:
            with self._store.write_lock():
                (outcome,) = self._store.commit([self.append(id, (), appends)])
            assert isinstance(outcome, port.Stale), f"{outcome} on a version that is not there"
            status = "fail"
        except errors.Unavailable:
            pass
        self.ended(id, status)


class Attempt:
    """A transaction that reads and appends, tried until its end is known or patience is over."""

    def __init__(
        self, client: Client, id: int, lists: list[str], appends: tuple[tuple[str, int], ...],
        *, condition_only: bool,
    ) -> None:  # fmt: skip
        self._client = client
        self._store = client.store
        self._id = id
        self._lists = sorted({to for to, _ in appends}) if condition_only else lists
        self._appends = appends
        self._condition_only = condition_only
        self._reads: Reads = ()
        self._append: port.Append | None = None
        self._doubts = 0
        """How many tries there were of which it is not known whether they took effect."""

    def run(self) -> None:
        """Try, and note the end."""
        deadline = time.monotonic() + _PATIENCE_S
        for _ in range(_TRIES):
            if time.monotonic() > deadline:
                break
            try:
                outcome = self._tried()
            except errors.Unavailable:
                if self._doubts and self._client.gives_up:
                    break
                time.sleep(_PAUSE_S)
                continue
            self._doubts -= 1
            if self._settled(outcome):
                return
        self._client.ended(self._id, "info" if self._doubts else "fail")

    def _tried(self) -> port.AppendOutcome:
        """Try once more. Once in doubt, it is the very same append that is tried."""
        if self._condition_only and not self._doubts:
            # What is read before the turn is as good, if it is only what the append has for a condition.
            self._read()
            if self._store.contended:
                self._doubts += 1
                handed = self._store.hand_off([self._made])
                if handed is not None:
                    return handed[0] or port.Stale("", 0)
        with self._store.write_lock():
            if not self._condition_only and not self._doubts:
                self._read()
            self._doubts += 1
            return self._committed()

    def _committed(self) -> port.AppendOutcome:
        sending = self._store.open_pipeline() if self._client.sends else None
        if sending is not None:
            with sending:
                if sending.send([self._made]):
                    return sending.receive()[0]
        return self._store.commit([self._made])[0]

    def _read(self) -> None:
        self._reads = self._client.read(self._lists)
        self._append = self._client.append(self._id, self._reads, self._appends)

    @property
    def _made(self) -> port.Append:
        assert self._append is not None
        return self._append

    def _settled(self, outcome: port.AppendOutcome) -> bool:
        """Note the end if this is one."""
        match outcome:
            case port.Appended():
                # What was read belongs to the first try; others may have come before a later one.
                sure = not self._doubts or self._condition_only
                self._client.ended(self._id, "ok", self._reads if sure else ())
            case port.KeyRecord():
                assert self._doubts, "the key was used by nobody"
                sure = self._doubts == 1 or self._condition_only
                self._client.ended(self._id, "ok", self._reads if sure else ())
            case port.Stale(stream=stream) if stream and self._doubts:
                # The key was looked at first and is not used; and the past does not come again.
                self._client.ended(self._id, "fail")
            case _:
                return False
        return True
