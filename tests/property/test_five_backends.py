"""The same history leads to the same state on every backend: five thousand commands, and a hash over all that can be read.

Clock and randomness are given, so ids and times are the same. Salts are a store's own, and so are links: both are left out.
"""

from __future__ import annotations

import functools
import hashlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from limpet import FrameStatus, Message, Scope, Session, SuspensionToken, errors
from limpet.admin.log import Admin
from limpet.admin.migrate import migrate
from limpet.core.values import ids
from limpet.frames.state_index import StateIndex
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings
from limpet.stores.port import Query, Store
from limpet.stores.volatile import VolatileStore
from tests.property.backends import OPENERS, opened

COMMANDS, SEED = 5_000, 20_261
TENANTS = ("default", "globex")
KINDS = ("session", "deleted", "tree", "frame", "suspension")
BEGAN_US = 1_700_000_000_000_000

# How often each command is given, one against another.
VERBS = {
    "say": 330, "ask": 60, "tell": 60, "create": 70, "again": 30, "fork": 40, "rewind": 50, "reset": 25,
    "summarise": 40, "end": 25, "delete": 15, "go_on": 20, "update": 25, "note": 40, "push": 60,
    "pop": 25, "suspend": 35, "decide": 20, "resume": 40, "spend": 20, "expire": 5,
}  # fmt: skip


class History:
    """Gives commands by chance, the same ones for the same seed; what comes of each is noted."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.dice = random.Random(seed)
        self.now_us = BEGAN_US
        self.told: list[str] = []
        self.taken: Counter[str] = Counter()
        self._bytes = random.Random(seed)
        self._factory = factory = ids.Factory(now_us=lambda: self.now_us, random=self._random)
        self.engine = Engine(store, factory=factory)
        self._sessions = {
            t: Sessions(SessionService(self.engine, Settings(tenant=t), factory=factory)) for t in TENANTS
        }
        self._indexes = {t: StateIndex(self.engine, Settings(tenant=t), factory) for t in TENANTS}
        self._ids: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}
        self._frames: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}
        self._tokens: dict[str, list[SuspensionToken | str]] = {tenant: [] for tenant in TENANTS}
        self.tenant = TENANTS[0]

    def _random(self, size: int) -> bytes:
        return self._bytes.randbytes(size)

    def step(self, number: int) -> None:
        """Give one command."""
        self.now_us += self.dice.choice((1, 1_000, 1_000_000, 60_000_000))
        # What one command draws must not depend on how often another was decided.
        self._bytes = random.Random(f"{SEED}/{number}")
        self.tenant = self.dice.choice(TENANTS)
        (name,) = self.dice.choices(list(VERBS), list(VERBS.values()))
        try:
            verb: Callable[[], object] = getattr(self, name)
            with ids.using(self._factory):
                outcome = str(verb())
            self.taken[name] += 1
        except errors.Error as error:
            outcome = error.code
        self.told.append(f"{name} {outcome}")

    @property
    def sessions(self) -> Sessions:
        return self._sessions[self.tenant]

    @property
    def index(self) -> StateIndex:
        return self._indexes[self.tenant]

    def _id(self) -> str:
        return self.dice.choice([*self._ids[self.tenant][-40:], "nobody's"])

    def _session(self) -> Session:
        return self.sessions.get_session(self._id())

    def _frame(self) -> str:
        return self.dice.choice([*self._frames[self.tenant][-6:], "nobody's"])

    def _known(self, session: Session) -> str:
        if session.id not in self._ids[self.tenant]:
            self._ids[self.tenant].append(session.id)
        return f"{session.id} {session.state.version}"

    def create(self) -> str:
        owner = self.dice.choice(("ada", "bob", None))
        return self._known(
            self.sessions.create_session(user_id=owner, system="Be brief.", metadata={"n": self.dice.randrange(3)})
        )

    def say(self) -> str:
        session, size = self._session(), self.dice.choice((1, 5, 40, 6_000))
        role = self.dice.choice(("user", "assistant"))
        session.add_message(Message(role, "word " * size, id=f"m{self.dice.randrange(10**6)}"))
        return self._known(session)

    def ask(self) -> str:
        session = self._session()
        call = {"id": f"c{self.dice.randrange(99)}", "type": "function", "function": {"name": "f", "arguments": "{}"}}  # fmt: skip
        session.add_message({"role": "assistant", "content": "", "tool_calls": [call]})
        return self._known(session)

    def tell(self) -> str:
        session = self._session()
        calls = [call.call_id for call in session.pending_calls()] or ["c0"]
        session.add_message({"role": "tool", "tool_call_id": calls[0], "content": "r"})
        return self._known(session)

    def again(self) -> str:
        key = f"k{self.dice.randrange(30)}"
        session = self._session()
        session.add_message({"role": "user", "content": f"same {self.dice.randrange(2)}"}, key=key)
        return self._known(session)

    def fork(self) -> str:
        session = self._session()
        at = self.dice.randint(1, max(1, session.message_count))
        return self._known(self.sessions.fork_session(session.id, at))

    def rewind(self) -> str:
        session = self._session()
        at = self.dice.randint(1, max(1, session.message_count))
        return self._known(self.sessions.rewind_session(session.id, at))

    def reset(self) -> str:
        return self._known(self.sessions.reset_session(self._id(), system="Anew."))

    def summarise(self) -> str:
        session = self._session()
        session.trimmed(self.dice.choice((60, 200, 2_000)), summary="en")
        return self._known(session)

    def end(self) -> str:
        return self._known(self.sessions.end_session(self._id()))

    def delete(self) -> str:
        return str(self.sessions.delete_session(self._id()))

    def go_on(self) -> str:
        return self._known(self.sessions.create_continuation_session(self._session()))

    def update(self) -> str:
        title = f"title {self.dice.randrange(5)}"
        return self._known(self.sessions.update_session(self._id(), title=title))

    def note(self) -> str:
        name, value = f"note/{self.dice.randrange(20)}", self.dice.choice((b"1", b"2", None))
        before = self.store.note(self.tenant, name)
        version = before.version if before else 0
        version += self.dice.choice((0, 0, 0, 1))
        return str(self.store.put_note(self.tenant, name, value, expected=version))

    def push(self) -> str:
        scope = Scope(actor_id=f"a{self.dice.randrange(3)}", session_id=self._id())
        parent = self._frame() if self.dice.random() < 0.5 else None
        frame = self.index.push_frame(scope, parent_frame_id=parent, goal="g", budget=self.dice.choice((100, 1_000)))  # fmt: skip
        self._frames[self.tenant].append(frame.frame_id)
        return frame.frame_id

    def pop(self) -> str:
        how = self.dice.choice((FrameStatus.COMPLETED, FrameStatus.CANCELLED))
        return str(self.index.pop_frame(self._frame(), how, cascade=self.dice.random() < 0.5).status)

    def suspend(self) -> str:
        token = self.index.suspend_frame(self._frame(), reason="approval", payload={"ask": 1})
        self._tokens[self.tenant].append(token)
        return token.suspension_id

    def decide(self) -> str:
        waiting = self.index.list_suspensions()
        if not waiting:
            return "none"
        found = self.dice.choice(waiting)
        how = self.dice.choice(("approve", "reject"))
        return str(self.index.decide_suspension(found.suspension_id, how, by="ada").status)

    def resume(self) -> str:
        token = self.dice.choice([*self._tokens[self.tenant][-2:], "nobody's"])
        return str(self.index.resume_frame(token).status)

    def spend(self) -> str:
        return str(self.index.record_usage(self._frame(), self.dice.randrange(1, 60)).frame_id)

    def expire(self) -> str:
        return " ".join([*self.sessions.expire(idle_s=3_600), *self.index.expire()])


def canonical(store: Store, told: list[str]) -> str:
    """Return the hash over everything that can be read of a store, but for salts and links."""
    made = hashlib.sha256()
    for line in (*told, *_read(store)):
        made.update(line.encode() if isinstance(line, str) else msgspec.json.encode(line))
        made.update(b"\n")
    return made.hexdigest()


def _read(store: Store) -> Iterator[object]:
    for tenant in sorted(store.tenants()):
        yield tenant
        streams: dict[str, None] = {}
        for raw in store.copy_events(tenant, limit=10**6):
            streams[raw.stream] = None
            yield raw.stream, raw.header, raw.payload, raw.base, sorted(raw.blobs)
        for stream in streams:
            events = store.read(tenant, stream, limit=10**6)
            yield stream, store.forks(tenant, stream), [event.position for event in events]
        for kind in KINDS:
            rows = store.query_projections(tenant, Query(kind=kind, limit=10**6))
            yield [msgspec.structs.replace(row, terms=tuple(sorted(row.terms))) for row in rows]
        yield store.copy_keys(tenant, limit=10**6)
        yield [(name, note.value) for name, note in store.notes(tenant, limit=10**6)]


def lived(store: Store, commands: int = COMMANDS, seed: int = SEED) -> History:
    """Give the commands to a store."""
    history = History(store, seed)
    for number in range(commands):
        history.step(number)
    return history


@functools.cache
def expected() -> tuple[str, Counter[str]]:
    """What the plainest store comes to."""
    store = VolatileStore()
    history = lived(store)
    return canonical(store, history.told), history.taken


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder where syncing costs nothing: this asks about rules and not about disks."""
    shm = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="limpet-", dir=shm if shm.is_dir() else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.req("A-20")
@pytest.mark.parametrize("backend", OPENERS)
def test_the_same_history_leads_to_the_same_state(backend: str, folder: Path):
    with opened(backend, folder) as store:
        history = lived(store)
        hash_, taken = expected()
        assert canonical(store, history.told) == hash_
        assert history.taken == taken
        Admin(history.engine).rebuild()
        assert canonical(store, history.told) == hash_
        *_, report = store.verify()
        assert not isinstance(report, int)
        assert report.ok


def test_the_history_has_all_that_there_is():
    _, taken = expected()
    assert set(taken) == set(VERBS)
    assert min(taken.values()) >= 5, taken
    assert sum(taken.values()) > COMMANDS / 2


def test_a_copy_has_the_same_state(folder: Path):
    source = VolatileStore()
    history = lived(source, 600)
    before = canonical(source, history.told)
    with opened("sqlite", folder) as store:
        migrate(source, store, lambda *_: None)
        assert canonical(store, history.told) == before


def test_the_hash_tells_one_difference():
    hashes: set[str] = set()
    for seed in (1, 2):
        store = VolatileStore()
        hashes.add(canonical(store, lived(store, 50, seed).told))
    store = VolatileStore()
    history = lived(store, 50, 1)
    again = canonical(store, history.told)
    assert again in hashes
    assert len(hashes) == 2
    store.put_note("default", "note/new", b"1", expected=0)
    assert canonical(store, history.told) != again
