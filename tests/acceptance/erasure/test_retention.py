"""What ended long ago goes; what somebody needs, or memory has not taken, stays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import FrameStatus, Limpet, Scope, errors, limits
from limpet.admin import retention
from limpet.admin.erasure import ErasureOutcome, ErasureService
from limpet.admin.retention import Retained
from limpet.core.values.session_state import SessionState
from limpet.stores import sqlite
from limpet.testing.memory_fakes import Scribe
from tests.acceptance import full_store
from tests.acceptance.cli.command_runs import run
from tests.acceptance.conversation_steps import engine_of, set_clock
from tests.acceptance.marker_words import WORDS, found
from tests.contract.test_redis import client_of
from tests.property.backends import OPENERS
from tests.servers import valkey

DAY_US = 86_400_000_000
SECRET = "Kestrel0001 MARMOT0001"


@pytest.fixture
def lp(fast_dir: Path) -> Iterator[Limpet]:
    with limpet.connect(fast_dir / "state.db", memory=True, idle_timeout_s=None) as made:
        yield made


def later(lp: Limpet, days: float) -> None:
    set_clock(lp, engine_of(lp).now_us() + int(days * DAY_US))


def there(lp: Limpet) -> set[str]:
    return {row["id"] for row in lp.sessions.list_sessions(limit=100)}


def why(told: Retained) -> dict[str, tuple[str, str | None]]:
    return {kept.session_id: (kept.why, kept.other) for kept in told.kept}


def test_what_ended_long_ago_goes_and_the_rest_stays(lp: Limpet, fast_dir: Path):
    full_store.said(lp, "old", "ada", f"I live in {SECRET}.")
    full_store.said(lp, "open", "ada", "words", end=False)
    full_store.worked(lp)
    later(lp, 20)
    full_store.said(lp, "young", "bob", "words")
    full_store.worked(lp)
    later(lp, 15)
    told = lp.admin.retention(30, dry_run=True)
    assert (told.gone, told.stays, told.dry_run) == (("old",), {"active": 1, "young": 1}, True)
    assert there(lp) == {"old", "open", "young"}
    done = lp.admin.retention(30)
    assert (done.gone, done.dry_run) == (("old",), False)
    assert done.events > 2
    assert there(lp) == {"open", "young"}
    assert lp.admin.verify().ok
    assert lp.admin.retention(30).gone == ()
    assert "state.db" not in found(fast_dir)


def test_what_memory_has_learnt_stays(lp: Limpet):
    full_store.said(lp, "old", "cleo", "My name is Cleo and I live in Oslo.")
    full_store.worked(lp)
    known = full_store.known(lp, "cleo")
    assert known
    later(lp, 31)
    assert lp.admin.retention(30).gone == ("old",)
    full_store.worked(lp)
    assert full_store.known(lp, "cleo") == known
    assert not lp.archive.search("Oslo", user_id="cleo")
    lp.memory.forget("cleo")
    assert not full_store.known(lp, "cleo")


def test_what_memory_has_not_taken_stays(lp: Limpet):
    full_store.said(lp, "old", "ada", "words")
    lp.sessions.create_session("free").add_message({"role": "user", "content": "words"})
    lp.sessions.end_session("free")
    later(lp, 31)
    told = lp.admin.retention(30)
    assert told.gone == ("free",)
    assert why(told) == {"old": ("not taken", None)}
    full_store.worked(lp)
    assert lp.admin.retention(30).gone == ("old",)


@pytest.fixture(params=OPENERS)
def place(request: pytest.FixtureRequest, fast_dir: Path) -> Iterator[str]:
    """Where a store is to be, on each backend."""
    with OPENERS[request.param](fast_dir) as url:
        yield url


def payloads(lp: Limpet) -> str:
    return "".join(str(event.payload) for event in engine_of(lp).store.feed("default"))


@pytest.mark.req("A-20")
@pytest.mark.parametrize("by_worker", [False, True])
def test_on_every_backend_it_goes_after_it_ended_and_memory_has_it_and_not_before(
    place: str, fast_dir: Path, by_worker: bool
):
    memory = Scribe()
    options: dict[str, Any] = {"memory": memory, "idle_timeout_s": None}
    if by_worker:
        options["keep_ended_days"] = 30
    with limpet.connect(place, **options) as lp:

        def let_go() -> set[str]:
            lp.worker().run_once()
            if not by_worker:
                lp.admin.retention(30)
            return there(lp)

        full_store.said(lp, "old", "ada", f"Words of {SECRET}.", end=False)
        later(lp, 31)
        assert let_go() == {"old"}, "it has not ended"
        lp.sessions.end_session("old")
        memory.fails_for["old#0"] = errors.Unavailable("memory is away.")
        later(lp, 31)
        assert let_go() == {"old"}, "memory has not taken it"
        assert why(lp.admin.retention(30, dry_run=True)) == {"old": ("not taken", None)}
        assert memory.offered and not memory.taken
        assert SECRET in payloads(lp)
        memory.fails_for.clear()
        later(lp, 1)
        full_store.said(lp, "young", "bob", "words")
        # Twice: a worker may look at what is to go before memory has it.
        let_go()
        assert let_go() == {"young"}
        for _ in range(2):
            assert there(lp) == {"young"}
            assert lp.sessions.load_session("old") is None
            assert SECRET not in payloads(lp)
            assert not lp.archive.search("Kestrel0001", user_id="ada")
            assert lp.admin.verify().ok
            lp.admin.rebuild()
        assert [m.content for m in lp.sessions.get_session("young").messages] == ["words"]
    assert memory.texts("default", "old#0") == [f"Words of {SECRET}."]
    assert not memory.forgotten
    every = [path for path in fast_dir.rglob("*") if path.is_file()]
    assert not [path for path in every if WORDS.search(path.read_bytes().lower())]


def test_a_redis_server_lets_nothing_go_by_itself():
    url = valkey.fresh()
    with limpet.connect(url, memory=True, idle_timeout_s=None, keep_ended_days=30) as lp:
        full_store.said(lp, "old", "ada", "I live in Oslo.")
        lp.sessions.create_session("open").add_message({"role": "user", "content": "hi"}, key="k")
        full_store.worked(lp)
    with client_of(url) as client:
        every: Any = client.keys(f"{url.rpartition('=')[2]}:*")
        keys = [key for key in every if not key.endswith(b":guard")]
        assert keys and {client.ttl(key) for key in keys} == {-1}


def test_without_memory_nobody_is_waited_for(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db", idle_timeout_s=None) as lp:
        full_store.said(lp, "old", "ada", "words")
        later(lp, 31)
        assert lp.admin.retention(30).gone == ("old",)


def test_a_store_that_has_a_memory_waits_for_it_whoever_asks(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db", memory=True, idle_timeout_s=None) as lp:
        full_store.said(lp, "first", "ada", "words")
        full_store.worked(lp)
    with limpet.connect(fast_dir / "state.db", idle_timeout_s=None) as lp:
        full_store.said(lp, "second", "ada", "words")
        later(lp, 31)
        told = lp.admin.retention(30, dry_run=True)
        assert (told.gone, why(told)) == (("first",), {"second": ("not taken", None)})


def test_what_a_fork_or_a_continuation_needs_stays_until_they_go(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db", idle_timeout_s=None) as lp:
        for name in ("forked", "continued"):
            full_store.said(lp, name, "ada", "words", end=False)
        fork = lp.sessions.fork_session("forked", new_id="fork")
        follower = lp.sessions.create_continuation_session(lp.sessions.get_session("continued"))
        lp.sessions.end_session("forked")
        later(lp, 31)
        told = lp.admin.retention(30)
        assert told.gone == ()
        assert why(told) == {"forked": ("forked", "fork")}
        fork.add_message({"role": "user", "content": "more"})
        lp.sessions.end_session("fork")
        lp.sessions.end_session(follower.id)
        assert lp.admin.retention(30).gone == ()
        later(lp, 31)
        told = lp.admin.retention(30)
        assert set(told.gone) == {"forked", "fork", "continued", follower.id}
        assert there(lp) == set()
        assert lp.admin.verify().ok


@pytest.mark.parametrize("others", [(), ("other",)])
@pytest.mark.parametrize("looked", [False, True])
def test_a_session_that_is_forked_meanwhile_stays_whole_and_is_said_to(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch, looked: bool, others: tuple[str, ...]
):
    """It is forked after it was found, before or after it is looked at again to be erased."""
    for name in ("old", *others):
        full_store.said(lp, name, "ada", "I live in Oslo.")
    full_store.worked(lp)
    later(lp, 31)
    real = ErasureService.erase_retired

    def forked_meanwhile(
        erasing: ErasureService, may_go: Callable[[], Iterable[SessionState]], *, finish: bool = True
    ) -> ErasureOutcome:
        def and_forked() -> list[SessionState]:
            found = list(may_go()) if looked else []
            if "fork" not in there(lp):
                lp.sessions.fork_session("old", new_id="fork")
            return found or list(may_go())

        return real(erasing, and_forked, finish=finish)

    monkeypatch.setattr(ErasureService, "erase_retired", forked_meanwhile)
    told = lp.admin.retention(30)
    assert (told.gone, why(told)) == (others, {"old": ("forked", "fork")})
    assert told.stays["forked"] == 1
    assert (told.events > 0) is bool(others)
    assert there(lp) == {"old", "fork"}
    (hit,) = lp.archive.search("Oslo", user_id="ada", fresh=False)
    assert hit.session_id == "old"


def test_a_continuation_keeps_what_it_goes_on_from(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db", idle_timeout_s=None) as lp:
        full_store.said(lp, "first", "ada", "words", end=False)
        second = lp.sessions.create_continuation_session(lp.sessions.get_session("first"))
        third = lp.sessions.create_continuation_session(second)
        fork = lp.sessions.fork_session(second.id)
        lp.sessions.end_session(third.id)
        later(lp, 31)
        told = lp.admin.retention(30)
        assert told.gone == (third.id,)
        assert there(lp) == {"first", second.id, fork.id}
        assert [m.content for m in fork.messages] == [m.content for m in second.messages]


def test_a_session_that_an_open_frame_is_about_stays(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db", idle_timeout_s=None) as lp:
        full_store.said(lp, "old", "ada", "words")
        frame = lp.index.push_frame(Scope(actor_id="planner", session_id="old"), goal="g", budget=100)
        lp.index.suspend_frame(frame.frame_id, reason="approval")
        later(lp, 31)
        told = lp.admin.retention(30)
        assert (told.gone, why(told)) == ((), {"old": ("open frames", None)})
        lp.index.pop_frame(frame.frame_id, FrameStatus.CANCELLED, cascade=True)
        assert lp.admin.retention(30).gone == ("old",)


def test_keys_are_kept_as_long_as_they_were_promised(lp: Limpet):
    for days in (0, 6.9, -1, True, float("nan"), float("inf"), 1e300, 10**400, "30"):
        with pytest.raises(errors.InvalidRequest, match="7 days"):
            lp.admin.retention(days)  # type: ignore[arg-type]
    assert lp.admin.retention(limits.RETENTION_DAYS_MAX).gone == ()
    with pytest.raises(errors.InvalidRequest, match="7 days"):
        limpet.connect("volatile:", keep_ended_days=1)


def test_a_worker_lets_go_what_it_is_told_to(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db", memory=True, idle_timeout_s=None, keep_ended_days=30) as lp:
        for number in range(70):
            full_store.said(lp, f"s{number}", "ada", "words")
        full_store.worked(lp)
        assert len(there(lp)) == 70
        later(lp, 31)
        full_store.said(lp, "young", "ada", "words")
        full_store.worked(lp)
        assert there(lp) == {"young"}
        assert lp.admin.verify().ok


@pytest.fixture
def scrubs(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Let sessions go four at a time; return what is pending each time that files are scrubbed."""
    real, told = sqlite.SQLiteStore.scrub, list[bytes]()

    def scrub(store: sqlite.SQLiteStore, done: bytes = b"", left: bytes = b"") -> None:
        told.append(done)
        real(store, done, left)

    monkeypatch.setattr(limits, "PURGE_BATCH_SESSIONS", 4)
    monkeypatch.setattr(sqlite.SQLiteStore, "scrub", scrub)
    return told


@pytest.mark.parametrize(("at_once", "times"), [(4_096, 1), (8, 2)])
def test_files_are_scrubbed_once_for_many_batches(
    fast_dir: Path, scrubs: list[bytes], monkeypatch: pytest.MonkeyPatch, at_once: int, times: int
):
    monkeypatch.setattr(limits, "SCRUB_INTERVAL_SESSIONS", at_once)
    with limpet.connect(fast_dir / "state.db", idle_timeout_s=None, keep_ended_days=30) as lp:
        for let_go in (lambda: lp.admin.retention(30), lambda: full_store.worked(lp)):
            for number in range(10):
                full_store.said(lp, f"s{number}", "ada", f"I live in {SECRET}.")
            later(lp, 31)
            let_go()
            assert there(lp) == set()
            assert len(scrubs) == times
            assert engine_of(lp).store.pending_erasures() is None
            scrubs.clear()
    assert "state.db" not in found(fast_dir)


@pytest.mark.usefixtures("scrubs")
def test_what_stays_is_judged_once_by_a_worker(fast_dir: Path, monkeypatch: pytest.MonkeyPatch):
    real, judged = retention._RetentionScan.keep_reason, Counter[str]()

    def verdict(look: retention._RetentionScan, state: SessionState) -> retention.KeptSession | None:
        judged[state.id] += 1
        return real(look, state)

    monkeypatch.setattr(limits, "SCRUB_INTERVAL_SESSIONS", 4)
    with limpet.connect(fast_dir / "state.db", idle_timeout_s=None, keep_ended_days=30) as lp:
        for number in range(10):
            full_store.said(lp, f"s{number}", "ada", "words")
        full_store.said(lp, "forked", "ada", "words", end=False)
        lp.sessions.fork_session("forked", new_id="fork")
        lp.sessions.end_session("forked")
        later(lp, 31)
        monkeypatch.setattr(retention._RetentionScan, "keep_reason", verdict)
        full_store.worked(lp)
        assert there(lp) == {"forked", "fork"}
    assert judged["forked"] == 1


def test_the_command_says_what_it_would_do_and_asks(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db", idle_timeout_s=None) as lp:
        set_clock(lp, engine_of(lp).now_us() - 60 * DAY_US)
        full_store.said(lp, "old", "ada", "words")
        set_clock(lp, engine_of(lp).now_us() + 60 * DAY_US)
        full_store.said(lp, "new", "ada", "words")
    dry = run("retention", "--keep", "30d", "--dry-run", "--no-memory", cwd=tmp_path)
    assert (dry.code, dry.out) == (0, "would go\told\n")
    kept = run("retention", "--keep", "30d", "--dry-run", cwd=tmp_path)
    assert kept.out == "stays\told\tnot taken\t\n"
    none = run("retention", "--keep", "90d", "--dry-run", cwd=tmp_path)
    assert (none.code, none.out) == (0, "") and "0 sessions would go" in none.err
    bare = run("retention", "--keep", "90", cwd=tmp_path)
    assert bare.code == 2 and "--keep 90d" in bare.err and "30m" not in bare.err
    assert run("retention", "--keep", "30d", "--no-memory", cwd=tmp_path).code == 2
    done = run("retention", "--keep", "30d", "--no-memory", "--yes", "--json", cwd=tmp_path)
    assert json.loads(done.out)["gone"] == ["old"]
    assert run("retention", "--keep", "1d", cwd=tmp_path).code == 2
    with limpet.connect(tmp_path / "state.db") as lp:
        assert there(lp) == {"new"}
