"""A store is copied or backed up while others use it: what comes is a moment of its log, and verifies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, limits
from holdfast.engine import migrating
from holdfast.store.port import Raw, Store
from holdfast.wiring.stores import open_store
from tests.acceptance import whole
from tests.acceptance.canaries import Canaries, fill, found
from tests.acceptance.scenes import engine_of
from tests.property.backends import OPENERS

COPIED = [name for name in OPENERS if name not in ("sqlite", "files")]
"""Backends without a file that could be copied."""


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IMPORT_STEP_EVENTS", 4)


def filled(hf: Holdfast) -> None:
    fill(hf, "ada", Canaries(), 40)
    whole.said(hf, "kept", "bob", "stays")


def erasing(hf: Holdfast, at: int) -> Callable[[int, int], None]:
    """Return a progress that has a user erased when it is told of something for that time."""
    told: list[int] = []

    def progress(done: int, _: int) -> None:
        told.append(done)
        if len(told) == at:
            hf.admin.erase(user_id="ada")

    return progress


def same_beginning(store: Store, copy: Path) -> int:
    """Check that a copy is the beginning of a store's log, but for what was erased since; return how long it is."""
    with closing(open_store(copy)) as made:
        assert made.tenants() == store.tenants()
        came = made.copy("default", limit=10**6)
        ours = store.copy("default", limit=len(came))
    assert [raw.link for raw in came] == [raw.link for raw in ours]
    return len(came)


@pytest.mark.parametrize("at", [1, 3, 7])
@pytest.mark.parametrize("backend", list(OPENERS))
def test_what_is_erased_while_it_is_copied_to_a_moment_is_no_damage(
    backend: str, at: int, fast_dir: Path
):
    (fast_dir / "source").mkdir()
    home = fast_dir / "copy"
    home.mkdir()
    with OPENERS[backend](fast_dir / "source") as url, holdfast.connect(url) as hf:
        filled(hf)
        store = engine_of(hf).store
        with closing(open_store(home / "b.db")) as made:
            migrating.migrate(store, made, erasing(hf, at), follow=False)
        same_beginning(store, home / "b.db")
    assert found(home) == {}
    with holdfast.connect(home / "b.db") as hf:
        assert [row["id"] for row in hf.sessions.list_sessions()] == ["kept"]


@pytest.mark.parametrize("backend", COPIED)
def test_what_is_erased_during_a_backup_is_no_damage(backend: str, fast_dir: Path):
    home = fast_dir / "copy"
    home.mkdir()
    with OPENERS[backend](fast_dir) as url, holdfast.connect(url) as hf:
        filled(hf)
        hf.admin.backup(home / "b.db", erasing(hf, 3))
        same_beginning(engine_of(hf).store, home / "b.db")
    with holdfast.connect(home / "b.db") as hf:
        assert hf.admin.verify().ok
        assert [row["id"] for row in hf.sessions.list_sessions()] == ["kept"]
    assert found(home) == {}


class Between:
    """A source in which a user is erased between a look at events and one at their blobs."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf, self._store, self.erased = hf, engine_of(hf).store, False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def copy(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[Raw]:
        page = self._store.copy(tenant, after=after, limit=limit)
        if not self.erased and any(raw.blobs for raw in page):
            self.erased = True
            self._hf.admin.erase(user_id="ada")
        return page


@pytest.mark.parametrize("follow", [False, True])
def test_what_is_erased_before_its_blobs_are_asked_for_is_no_damage(fast_dir: Path, follow: bool):
    home = fast_dir / "copy"
    home.mkdir()
    with holdfast.connect("volatile:") as hf:
        filled(hf)
        source = Between(hf)
        with closing(open_store(home / "b.db")) as made:
            migrating.migrate(source, made, lambda *_: None, follow=follow)  # type: ignore[arg-type]
        assert source.erased
        same_beginning(engine_of(hf).store, home / "b.db")
    assert found(home) == {}


WRITERS = 3
"""Threads that write during a backup; every second has a store object of its own where there can be several."""


@contextmanager
def written_to(hf: Holdfast, url: str) -> Iterator[Callable[[], int]]:
    """Have a store written to; yield what tells how many messages were acknowledged so far."""
    stop, begun = threading.Event(), threading.Barrier(WRITERS + 1)
    counts, failures = [0] * WRITERS, list[BaseException]()

    def write(which: int) -> None:
        own = which % 2 and not url.startswith("volatile")
        try:
            opened = (
                holdfast.connect(url, max_messages_per_session=10**6) if own else nullcontext(hf)
            )
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
    with (
        OPENERS[backend](tmp_path / "source") as url,
        holdfast.connect(url, max_messages_per_session=10**6) as hf,
    ):
        whole.said(hf, "first", "ada", *("words" for _ in range(50)))
        with written_to(hf, url) as acknowledged:
            before = acknowledged()
            hf.admin.backup(copy)
            after = acknowledged()
        store = engine_of(hf).store
        came = same_beginning(store, copy)
        ours = store.copy("default", limit=came)
        with closing(open_store(copy)) as made:
            assert made.copy("default", limit=came) == ours
        assert store.head("default") >= came
    with holdfast.connect(copy, max_messages_per_session=10**6) as hf:
        assert hf.admin.verify().ok
        assert hf.sessions.get_session("first").message_count == 50
        said = 0
        for which in range(WRITERS):
            texts = [m.content for m in hf.sessions.get_session(f"writer-{which}").messages]
            assert texts == [f"{which} {count}" for count in range(len(texts))]
            said += len(texts)
    assert before <= said <= after + WRITERS, "all that was acknowledged when it began"
