"""A store is copied into one that somebody has open: nothing that was acknowledged is lost or locked away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import limpet
from limpet import Limpet, errors, limits
from limpet.admin import migrate
from limpet.admin.erasure import ErasureService
from limpet.core.values import ids
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings
from limpet.stores import store_copy
from limpet.stores.port import RawEvent, Store
from limpet.stores.volatile import VolatileStore
from limpet.wiring.store_opener import open_store
from tests.acceptance import full_store
from tests.acceptance.admin.test_migrate import kept, kept_at
from tests.acceptance.cli.command_runs import run
from tests.acceptance.conversation_steps import engine_of
from tests.property.backends import OPENERS

TARGETS = [name for name in OPENERS if name != "volatile"]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IMPORT_STEP_EVENTS", 4)


def said(store: Store, tenant: str, session_id: str, *texts: str) -> None:
    """Have somebody say something in a store that is open already."""
    engine = Engine(store, factory=ids.SYSTEM_FACTORY)
    manager = Sessions(SessionService(engine, Settings(tenant=tenant)))
    session = manager.create_session(session_id, user_id="ada")
    session.add_messages([{"role": "user", "content": text} for text in texts])


class Meanwhile:
    """A source; something happens before it gives the first page of a tenant."""

    def __init__(self, store: Store, tenant: str, happens: Callable[[], object]) -> None:
        self._store, self._tenant, self._happens = store, tenant, happens
        self.happened = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[RawEvent]:
        if tenant == self._tenant and limit > 1 and not self.happened:
            self.happened = True
            self._happens()
        return self._store.copy_events(tenant, after=after, limit=limit)


def moved(source: Meanwhile, target: str | Path) -> None:
    with closing(open_store(target)) as store:
        migrate.migrate(source, store, lambda *_: None)  # type: ignore[arg-type]


@pytest.fixture
def source() -> VolatileStore:
    """A store with two tenants, and a note of the background work."""
    store = VolatileStore()
    for tenant in ("default", "globex"):
        said(store, tenant, "s", *("words" for _ in range(9)))
        store.put_note(tenant, "cursor/index", b"10", expected=0)
    return store


@pytest.mark.parametrize("backend", TARGETS)
def test_who_has_the_target_open_is_kept_out_until_it_is_there(backend: str, source: VolatileStore, fast_dir: Path):
    refused: list[str] = []

    def write(other: Limpet) -> None:
        for work in (
            lambda: other.sessions.create_session("mine"),
            lambda: other.sessions.get_session("s"),
            lambda: other.admin.erase(user_id="ada"),
        ):
            with pytest.raises(errors.UnsafeStore, match="incomplete"):
                work()
            refused.append(backend)

    with OPENERS[backend](fast_dir) as url, limpet.connect(url) as other:
        other.sessions.list_sessions()
        told: list[int] = []

        def progress(done: int, _: int) -> None:
            told.append(done)
            if len(told) == 2:
                write(other)

        with closing(open_store(url)) as store:
            done = migrate.migrate(source, store, progress)
            assert kept(store) == kept(source)
        assert (len(refused), done.behind) == (3, {})
        other.sessions.create_session("mine")
        assert other.sessions.get_session("s").message_count == 9
        assert other.admin.verify().ok


@pytest.mark.parametrize("complete", [False, True], ids=["empty", "a part"])
@pytest.mark.parametrize("backend", TARGETS)
def test_what_is_written_first_stays_and_can_be_used(
    backend: str, complete: bool, source: VolatileStore, fast_dir: Path
):
    with OPENERS[backend](fast_dir) as url:
        if complete:
            with closing(open_store(url)) as store:
                migrate.migrate(source, store, lambda *_: None)
            said(source, "default", "t", "more", "of", "the", "same")
        with limpet.connect(url) as other:
            other.sessions.load_session("s")
            with closing(open_store(url)) as store:
                before = store.notes("default")
            asking = Meanwhile(source, "default", lambda: other.sessions.create_session("mine"))
            with pytest.raises(errors.Conflict, match="'default' of the target"):
                moved(asking, url)
            assert asking.happened
        with limpet.connect(url) as other:
            assert "mine" in [row["id"] for row in other.sessions.list_sessions()]
            assert other.admin.verify().ok
            assert engine_of(other).store.notes("default") == before
        with limpet.connect(url, tenant="globex") as other:
            assert len(other.sessions.list_sessions()) == complete


def test_what_is_written_behind_the_end_is_a_conflict_too(source: VolatileStore, fast_dir: Path):
    target = fast_dir / "b.db"
    with limpet.connect(target) as other:
        asking = Meanwhile(source, "default", lambda: said(engine_of(other).store, "default", "mine", *"abcdefghijkl"))  # fmt: skip
        with pytest.raises(errors.Conflict, match="another process"):
            moved(asking, target)
    with limpet.connect(target) as other:
        assert other.sessions.get_session("mine").message_count == 12


def test_two_copies_at_once_do_not_open_what_the_other_has_begun(source: VolatileStore, fast_dir: Path):
    target = fast_dir / "b.db"

    def begin_another() -> None:
        def stopped(*_: int) -> None:
            raise errors.Unavailable("told to.")

        with closing(open_store(target)) as store, pytest.raises(errors.Unavailable):
            migrate.migrate(source, store, stopped)

    with pytest.raises(errors.Conflict, match="another process"):
        moved(Meanwhile(source, "default", begin_another), target)
    with pytest.raises(errors.UnsafeStore):
        limpet.connect(target)
    moved(Meanwhile(source, "none", begin_another), target)
    assert kept_at(target) == kept(source)


@pytest.fixture
def stuck(source: VolatileStore, fast_dir: Path) -> Path:
    """A target into which one tenant was copied, when somebody wrote to the other."""
    target = fast_dir / "b.db"
    with closing(open_store(target)) as other:
        asking = Meanwhile(source, "default", lambda: said(other, "globex", "mine", "not to be lost"))
        with pytest.raises(errors.Conflict):
            moved(asking, target)
    with pytest.raises(errors.UnsafeStore, match="--give-up-copy"):
        limpet.connect(target)
    return target


def test_a_copy_can_be_given_up(stuck: Path, source: VolatileStore):
    with limpet.connect(stuck, tenant="globex") as lp:
        assert [m.content for m in lp.sessions.get_session("mine").messages] == ["not to be lost"]
    done = run("rebuild", stuck.name, "--give-up-copy", cwd=stuck.parent)
    assert done.code == 0, done.err
    assert "Tenant default is usable" in done.err
    with limpet.connect(stuck) as lp:
        assert lp.sessions.get_session("s").message_count == 9
        assert lp.admin.verify().ok
    assert run("rebuild", stuck.name, "--give-up-copy", cwd=stuck.parent).code == 0


def test_a_copy_that_had_not_begun_is_given_up_by_its_tenant(fast_dir: Path):
    with closing(open_store(fast_dir / "b.db")) as store:
        store_copy.set_note(store, "acme", store_copy.COPY_NOTE, b"unfinished")
    with pytest.raises(errors.UnsafeStore):
        limpet.connect(fast_dir / "b.db", tenant="acme")
    done = run("rebuild", "b.db", "--give-up-copy", "--tenant", "acme", cwd=fast_dir)
    assert done.code == 0, done.err
    limpet.connect(fast_dir / "b.db", tenant="acme").close()


def test_what_came_erased_without_its_notice_can_not_be_used(fast_dir: Path):
    source = VolatileStore()
    said(source, "default", "gone", "words")
    said(source, "default", "s", "words")
    ErasureService(Engine(source, factory=ids.SYSTEM_FACTORY), "default").erase_session("gone")
    page = source.copy_events("default", limit=4)
    with closing(open_store(fast_dir / "b.db")) as store:
        store_copy.set_note(store, "default", store_copy.COPY_NOTE, b"unfinished")
        store.paste("default", page)
        with pytest.raises(errors.Corrupt):
            migrate.abandon_copy(store, (), lambda *_: None)
        assert store_copy.is_copy_incomplete(store, "default")
    with pytest.raises(errors.UnsafeStore):
        limpet.connect(fast_dir / "b.db")


def test_a_store_that_nobody_copies_into_is_as_it_was(fast_dir: Path):
    with limpet.connect(fast_dir / "a.db") as lp:
        full_store.said(lp, "s", "ada", "words")
    before = kept_at(fast_dir / "a.db")
    with closing(open_store(fast_dir / "a.db")) as store:
        assert migrate.abandon_copy(store, ("default", "none"), lambda *_: None) == []
    assert kept_at(fast_dir / "a.db") == before
