"""To forget a user, to erase a session: nothing of it is left in any byte, and nothing of others is touched."""

import shutil
from pathlib import Path

import pytest

import limpet
from limpet import errors, limits
from limpet.admin.erasure import ErasureHooks, ErasureService
from limpet.core.values.events import SessionErasedEvent
from limpet.jobs.cleanup import PurgeTask
from limpet.stores import sqlite
from limpet.stores.sqlite import database
from tests.acceptance.marker_words import Canaries, fill, found


def told(lp: limpet.Limpet, *, user_id: str = "bob", name: str = "kept") -> list[str]:
    session = lp.sessions.create_session(name, user_id=user_id, system="You plan trips.")
    session.add_messages([{"role": "user", "content": f"say {n}"} for n in range(5)])
    return [str(message.content) for message in session.messages]


def said(lp: limpet.Limpet, session_id: str) -> list[str]:
    return [str(m.content) for m in lp.sessions.get_session(session_id).messages]


def test_a_forgotten_user_is_in_no_byte_of_any_file(tmp_path: Path):
    home, c = tmp_path / "home", Canaries()
    home.mkdir()
    path = home / "state.db"
    with limpet.connect(path) as lp, limpet.connect(path, tenant="globex") as other:
        mine, theirs = told(lp), told(other, user_id="Kestrel")
        user = c()
        fill(lp, user, c, 1_000)
        hidden = fill(lp, user, c, c.count + 1)[0]
        lp.sessions.delete_session(hidden)
        lp.admin.backup(home / "old.db")
        assert found(home)["state.db-wal"] + found(home)["state.db"] > 1_000
        receipt = lp.admin.erase(user_id=user)
        lp.admin.backup(home / "new.db")
        assert set(found(home)) == {"old.db"}
        assert lp.admin.verify().ok
        assert (said(lp, "kept"), said(other, "kept")) == (mine, theirs)
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]
        lp.admin.rebuild()
        assert lp.admin.verify().ok
    assert set(found(home)) == {"old.db"}
    assert receipt.sessions > 60
    assert (receipt.what, receipt.pending, receipt.waiting) == ("user", False, 0)
    restored(path, home / "old.db")
    with limpet.connect(path) as lp, limpet.connect(path, tenant="globex") as other:
        assert found(home) == {}
        assert (said(lp, "kept"), said(other, "kept")) == (mine, theirs)
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]
        assert lp.admin.verify().ok


def restored(path: Path, copy: Path) -> None:
    """Put a backup in the place of a store, as the docs say."""
    for end in ("", "-wal", "-shm", "-anchor"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    copy.replace(path)


@pytest.fixture(params=["volatile", "sqlite"])
def lp(request: pytest.FixtureRequest, tmp_path: Path):
    url = "volatile:" if request.param == "volatile" else tmp_path / "state.db"
    with limpet.connect(url) as lp:
        yield lp


def test_an_erased_session_is_gone_and_its_id_is_free(lp: limpet.Limpet):
    told(lp, name="trip")
    told(lp)
    receipt = lp.admin.erase(session_id="trip")
    assert (receipt.sessions, receipt.events, receipt.what) == (1, 7, "session")
    assert lp.sessions.load_session("trip") is None
    with pytest.raises(errors.SessionNotFound):
        lp.admin.erase(session_id="trip")
    again = lp.sessions.create_session("trip")
    assert (again.version, again.message_count, list(again.messages)) == (1, 0, [])
    assert lp.admin.verify().ok


def test_a_receipt_names_nobody_and_is_plain_json(lp: limpet.Limpet):
    told(lp, name="trip")
    receipt = lp.admin.erase(session_id="trip")
    data = receipt.to_dict()
    assert data["id"].startswith("erasure_")
    assert data["erased_at"].endswith("Z") or "+00:00" in data["erased_at"]
    assert "trip" not in str(data)


def test_the_feed_goes_on_over_what_is_gone(lp: limpet.Limpet):
    told(lp, name="trip")
    told(lp)
    lp.admin.erase(session_id="trip")
    facts = list(lp.events.feed())
    assert [fact.position for fact in facts] == list(range(1, len(facts) + 1))
    assert next(fact.kind for fact in facts if not fact.session_id) == "session.created"
    assert facts[-1].kind == "session.erased"
    last = facts[-1].event
    assert isinstance(last, SessionErasedEvent)
    assert last.events == 7


def test_deleted_sessions_go_when_somebody_asks(lp: limpet.Limpet):
    told(lp, name="one")
    told(lp, name="two")
    told(lp)
    assert lp.admin.erase().sessions == 0
    lp.sessions.delete_session("one")
    lp.sessions.delete_session("two")
    receipt = lp.admin.erase()
    assert (receipt.what, receipt.sessions) == ("deleted", 2)
    assert lp.admin.erase().events == 0
    assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]


def test_what_was_deleted_before_an_id_was_used_again_goes_too(lp: limpet.Limpet):
    told(lp, name="trip", user_id="ada")
    lp.sessions.rewind_session("trip", 3)
    lp.sessions.update_session("trip", title="Kestrel0001")
    lp.sessions.delete_session("trip")
    now = told(lp, name="trip", user_id="bob")
    receipt = lp.admin.erase(user_id="ada")
    assert receipt.events >= 8
    assert said(lp, "trip") == now
    assert lp.sessions.get_session("trip").user_id == "bob"
    feed = [fact for fact in lp.events.feed() if fact.kind == "session.message_added"]
    words = {str(getattr(fact.event, "message").content) for fact in feed}  # noqa: B009
    assert words == {"[erased]", *now}
    assert lp.admin.erase().events == 0
    before = list(lp.sessions.list_sessions())
    lp.admin.rebuild()
    assert list(lp.sessions.list_sessions()) == before
    assert said(lp, "trip") == now
    assert lp.admin.verify().ok


def test_a_source_waits_for_its_last_fork(lp: limpet.Limpet):
    words = told(lp, name="trip")
    lp.sessions.fork_session("trip", new_id="fork")
    lp.sessions.fork_session("fork", new_id="fork of fork")
    receipt = lp.admin.erase(session_id="trip")
    assert (receipt.sessions, receipt.waiting) == (0, 1)
    assert lp.sessions.load_session("trip") is None
    assert said(lp, "fork") == said(lp, "fork of fork") == words
    lp.sessions.delete_session("fork")
    assert lp.admin.erase().sessions == 0
    assert said(lp, "fork of fork") == words
    assert lp.admin.erase(session_id="fork of fork").sessions == 3
    assert lp.admin.verify().ok


def test_erasing_one_of_a_chain_leaves_the_others(lp: limpet.Limpet):
    told(lp, name="first")
    source = lp.sessions.get_session("first")
    following = lp.sessions.create_continuation_session(source)
    following.add_message({"role": "user", "content": "further"})
    lp.admin.erase(session_id="first")
    assert "further" in said(lp, following.id)
    assert [s.id for s in lp.sessions.session_chain(following.id)] == [following.id]
    lp.admin.erase(session_id=following.id)
    assert lp.sessions.list_sessions() == []


def test_frames_about_a_session_go_with_it_and_others_lose_what_they_had_of_it(lp: limpet.Limpet):
    told(lp, name="trip")
    told(lp)
    mine = limpet.Scope("agent", session_id="trip")
    root = lp.index.push_frame(limpet.Scope("chief"), goal="all", budget=9_000)
    about = lp.index.push_frame(mine, goal="book", budget=3_000)
    lp.index.pop_frame(about.frame_id)
    handle = limpet.ContextHandle(
        handle_id="h", handle_type=limpet.frames.HandleType.MESSAGE_RANGE, target={"session_id": "trip", "first": 1, "last": 3}
    )  # fmt: skip
    lp.index.add_context_handle(root.frame_id, handle)
    lp.index.assemble_context_pack(limpet.Scope("chief"), frame_id=root.frame_id)
    receipt = lp.admin.erase(session_id="trip")
    assert receipt.frames == 1
    with pytest.raises(errors.FrameNotFound):
        lp.index.get_frame(about.frame_id)
    left = lp.index.get_frame(root.frame_id).handle("h")
    assert left is not None
    assert left.target == {}
    with pytest.raises(errors.Erased):
        lp.index.pack_of(root.frame_id)
    lp.index.assemble_context_pack(limpet.Scope("chief"), frame_id=root.frame_id)
    lp.admin.rebuild()
    assert lp.admin.verify().ok


def test_hooks_are_told_until_they_have_heard_it(tmp_path: Path):
    heard: list[tuple[str, str | None, int | None]] = []
    deaf = [True]

    def hook(user: object, session_id: str | None, position: int | None) -> int:
        if deaf[0]:
            raise errors.Unavailable("nobody there.")
        heard.append((user.user_id, session_id, position))  # pyright: ignore[reportAttributeAccessIssue]
        return 2

    with limpet.connect(tmp_path / "state.db") as lp:
        told(lp, name="trip", user_id="ada")
        erasing = ErasureService(lp.sessions._service.engine, "default", ErasureHooks(all=(hook,)))
        with pytest.raises(errors.Unavailable) as error:
            erasing.erase_user("ada")
        assert "'pending': True" in str(error.value.facts["receipt"])
        assert lp.sessions.load_session("trip") is None
        deaf[0] = False
        assert erasing.finish() == 2
        assert erasing.finish() == 0
        assert heard == [("ada", None, None)]
        assert erasing.erase_user("ada").rows == 2


def test_a_step_of_the_background_work_erases_what_was_deleted(lp: limpet.Limpet):
    told(lp, name="trip")
    lp.sessions.delete_session("trip")
    task, beats = PurgeTask(lp.sessions._service.engine), list[int]()
    assert task.name == "purge"
    while task.step("default", lambda: beats.append(1)):
        pass
    assert beats
    assert lp.admin.erase().events == 0


def test_another_opener_does_not_serve_what_is_gone(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp, limpet.connect(path) as other:
        told(lp, name="trip")
        there = other.sessions.get_session("trip")
        assert len(there.window(1_000).messages) == 6
        lp.admin.erase(session_id="trip")
        for read in (lambda: list(there.messages), lambda: there.window(1_000)):
            with pytest.raises(errors.NotFound):
                read()
        assert other.sessions.load_session("trip") is None
        with pytest.raises(errors.SessionNotFound):
            other.sessions.add_messages("trip", [{"role": "user", "content": "late"}])
        anew = other.sessions.create_session("trip")
        anew.add_message({"role": "user", "content": "new"})
        assert said(lp, "trip") == ["new"]


def test_a_reader_delays_the_scrub_and_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "SCRUB_WAIT_S", 0.05)
    with limpet.connect(tmp_path / "state.db") as lp:
        told(lp, name="trip")
        reader = database.connect(tmp_path / "state.db", write=False)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchall()
        with pytest.raises(errors.StoreBusy, match="reading") as error:
            lp.admin.erase(session_id="trip")
        assert "'events': 7" in str(error.value.facts["receipt"])
        assert lp.sessions.load_session("trip") is None
        reader.close()
        lp.admin.erase()
        assert lp.sessions._service.engine.store.pending_erasures() is None


def test_a_log_that_went_on_elsewhere_loses_nothing_to_an_old_list(tmp_path: Path):
    path, copy, away = tmp_path / "state.db", tmp_path / "old.db", tmp_path / "away"
    with limpet.connect(path) as lp:
        told(lp, name="trip")
        told(lp)
        lp.admin.backup(copy)
        lp.sessions.add_messages("trip", [{"role": "user", "content": "later"}])
        lp.admin.erase(session_id="trip")
    away.mkdir()
    shutil.copy(copy, away / "state.db")
    with limpet.connect(away / "state.db") as lp:
        lp.sessions.add_messages("trip", [{"role": "user", "content": "said elsewhere"}])
        lp.sessions.fork_session("trip", new_id="fork")
        told(lp, name="new")
    restored(path, away / "state.db")
    with limpet.connect(path) as lp:
        assert said(lp, "trip") == said(lp, "fork") == ["[erased]"] * 6 + ["said elsewhere"]
        assert said(lp, "new") == said(lp, "kept")
        assert lp.admin.verify().ok


def test_arguments_that_do_not_go_together_are_refused(lp: limpet.Limpet):
    with pytest.raises(errors.InvalidRequest):
        lp.admin.erase(message_id="m")
    with pytest.raises(errors.InvalidRequest):
        lp.admin.erase(user_id="u", session_id="s")
    with pytest.raises(errors.SessionNotFound):
        lp.admin.erase(session_id="nobody")
    assert lp.admin.erase(user_id="nobody").events == 0


def test_tenants_are_apart(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp, limpet.connect(path, tenant="globex") as other:
        told(lp, name="trip", user_id="ada")
        words = told(other, name="trip", user_id="ada")
        lp.admin.erase(user_id="ada")
        assert said(other, "trip") == words


def test_a_store_opened_by_itself_keeps_its_schema(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        told(lp, name="trip")
        lp.admin.erase(session_id="trip")
    store = sqlite.open_store(tmp_path / "state.db")
    assert store.pending_erasures() is None
    store.close()
