"""A store is copied or backed up while others use it: what comes is a moment of its log, and verifies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest

import limpet
from limpet import Limpet, limits
from limpet.admin import migrate
from limpet.stores.port import RawEvent, Store
from limpet.wiring.store_opener import open_store
from tests.acceptance import full_store
from tests.acceptance.conversation_steps import engine_of
from tests.acceptance.marker_words import Canaries, fill, found
from tests.property.backends import OPENERS

COPIED = [name for name in OPENERS if name not in ("sqlite", "files")]
"""Backends without a file that could be copied."""


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IMPORT_STEP_EVENTS", 4)


def filled(lp: Limpet) -> None:
    fill(lp, "ada", Canaries(), 40)
    full_store.said(lp, "kept", "bob", "stays")


def erasing(lp: Limpet, at: int) -> Callable[[int, int], None]:
    """Return a progress that has a user erased when it is told of something for that time."""
    told: list[int] = []

    def progress(done: int, _: int) -> None:
        told.append(done)
        if len(told) == at:
            lp.admin.erase(user_id="ada")

    return progress


def same_beginning(store: Store, copy: Path) -> int:
    """Check that a copy is the beginning of a store's log, but for what was erased since; return how long it is."""
    with closing(open_store(copy)) as made:
        assert made.tenants() == store.tenants()
        came = made.copy_events("default", limit=10**6)
        ours = store.copy_events("default", limit=len(came))
    assert [raw.link for raw in came] == [raw.link for raw in ours]
    return len(came)


@pytest.mark.parametrize("at", [1, 3, 7])
@pytest.mark.parametrize("backend", list(OPENERS))
def test_what_is_erased_while_it_is_copied_to_a_moment_is_no_damage(backend: str, at: int, fast_dir: Path):
    (fast_dir / "source").mkdir()
    home = fast_dir / "copy"
    home.mkdir()
    with OPENERS[backend](fast_dir / "source") as url, limpet.connect(url) as lp:
        filled(lp)
        store = engine_of(lp).store
        with closing(open_store(home / "b.db")) as made:
            migrate.migrate(store, made, erasing(lp, at), follow=False)
        same_beginning(store, home / "b.db")
    assert found(home) == {}
    with limpet.connect(home / "b.db") as lp:
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]


@pytest.mark.parametrize("backend", COPIED)
def test_what_is_erased_during_a_backup_is_no_damage(backend: str, fast_dir: Path):
    home = fast_dir / "copy"
    home.mkdir()
    with OPENERS[backend](fast_dir) as url, limpet.connect(url) as lp:
        filled(lp)
        lp.admin.backup(home / "b.db", erasing(lp, 3))
        same_beginning(engine_of(lp).store, home / "b.db")
    with limpet.connect(home / "b.db") as lp:
        assert lp.admin.verify().ok
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]
    assert found(home) == {}


class Between:
    """A source in which a user is erased between a look at events and one at their blobs."""

    def __init__(self, lp: Limpet) -> None:
        self._lp, self._store, self.erased = lp, engine_of(lp).store, False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[RawEvent]:
        page = self._store.copy_events(tenant, after=after, limit=limit)
        if not self.erased and any(raw.blobs for raw in page):
            self.erased = True
            self._lp.admin.erase(user_id="ada")
        return page


@pytest.mark.parametrize("follow", [False, True])
def test_what_is_erased_before_its_blobs_are_asked_for_is_no_damage(fast_dir: Path, follow: bool):
    home = fast_dir / "copy"
    home.mkdir()
    with limpet.connect("volatile:") as lp:
        filled(lp)
        source = Between(lp)
        with closing(open_store(home / "b.db")) as made:
            migrate.migrate(source, made, lambda *_: None, follow=follow)  # type: ignore[arg-type]
        assert source.erased
        same_beginning(engine_of(lp).store, home / "b.db")
    assert found(home) == {}


WRITERS = 3
"""Threads that write during a backup; every second has a store object of its own where there can be several."""


@contextmanager
def written_to(lp: Limpet, url: str) -> Iterator[Callable[[], int]]:
    """Have a store written to; yield what tells how many messages were acknowledged so far."""
    stop, begun = threading.Event(), threading.Barrier(WRITERS + 1)
    counts, failures = [0] * WRITERS, list[BaseException]()

    def write(which: int) -> None:
        own = which % 2 and not url.startswith("volatile")
        try:
            opened = limpet.connect(url, max_messages_per_session=10**6) if own else nullcontext(lp)
            with opened as here:
                session = here.sessions.create_session(f"writer-{which}", user_id="cleo")
                while not stop.is_set():
                    session.add_message({"role": "user", "content": f"{which} {counts[which]}"})
                    counts[which] += 1
                    if counts[which] == 1:
                        begun.wait()
        except BaseException as error:
            failures.append(error)
            begun.abort()
            raise

    threads = [threading.Thread(target=write, args=(which,)) for which in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        begun.wait()
        yield lambda: sum(counts)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


@pytest.mark.parametrize("backend", list(OPENERS))
def test_a_backup_under_load_is_the_beginning_of_the_log(backend: str, tmp_path: Path):
    (tmp_path / "source").mkdir()
    copy = tmp_path / "copy.db"
    with OPENERS[backend](tmp_path / "source") as url, limpet.connect(url, max_messages_per_session=10**6) as lp:
        full_store.said(lp, "first", "ada", *("words" for _ in range(50)))
        with written_to(lp, url) as acknowledged:
            before = acknowledged()
            lp.admin.backup(copy)
            after = acknowledged()
        store = engine_of(lp).store
        came = same_beginning(store, copy)
        ours = store.copy_events("default", limit=came)
        with closing(open_store(copy)) as made:
            assert made.copy_events("default", limit=came) == ours
        assert store.head("default") >= came
    with limpet.connect(copy, max_messages_per_session=10**6) as lp:
        assert lp.admin.verify().ok
        assert lp.sessions.get_session("first").message_count == 50
        said = 0
        for which in range(WRITERS):
            texts = [m.content for m in lp.sessions.get_session(f"writer-{which}").messages]
            assert texts == [f"{which} {count}" for count in range(len(texts))]
            said += len(texts)
    assert before <= said <= after + WRITERS, "all that was acknowledged when it began"
