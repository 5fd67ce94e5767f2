"""To forget a user, to erase a session: nothing of it is left in any byte, and nothing of others is touched."""

import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast import errors, limits
from holdfast.engine.erasing import Erasing
from holdfast.engine.purging import PurgeTask
from holdfast.store import sqlite
from holdfast.store.sqlite import opening
from holdfast.values.event import SessionErased
from tests.acceptance.canaries import Canaries, fill, found


def told(hf: holdfast.Holdfast, *, user_id: str = "bob", name: str = "kept") -> list[str]:
    session = hf.sessions.create_session(name, user_id=user_id, system="You plan trips.")
    session.add_messages([{"role": "user", "content": f"say {n}"} for n in range(5)])
    return [str(message.content) for message in session.messages]


def said(hf: holdfast.Holdfast, session_id: str) -> list[str]:
    return [str(m.content) for m in hf.sessions.get_session(session_id).messages]


def test_a_forgotten_user_is_in_no_byte_of_any_file(tmp_path: Path):
    home, c = tmp_path / "home", Canaries()
    home.mkdir()
    path = home / "state.db"
    with holdfast.connect(path) as hf, holdfast.connect(path, tenant="globex") as other:
        mine, theirs = told(hf), told(other, user_id="Kestrel")
        user = c()
        fill(hf, user, c, 1_000)
        hidden = fill(hf, user, c, c.count + 1)[0]
        hf.sessions.delete_session(hidden)
        hf.admin.backup(home / "old.db")
        assert found(home)["state.db-wal"] + found(home)["state.db"] > 1_000
        receipt = hf.admin.erase(user_id=user)
        hf.admin.backup(home / "new.db")
        assert set(found(home)) == {"old.db"}
        assert hf.admin.verify().ok
        assert (said(hf, "kept"), said(other, "kept")) == (mine, theirs)
        assert [row["id"] for row in hf.sessions.list_sessions()] == ["kept"]
        hf.admin.rebuild()
        assert hf.admin.verify().ok
    assert set(found(home)) == {"old.db"}
    assert receipt.sessions > 60
    assert (receipt.what, receipt.pending, receipt.waiting) == ("user", False, 0)
    restored(path, home / "old.db")
    with holdfast.connect(path) as hf, holdfast.connect(path, tenant="globex") as other:
        assert found(home) == {}
        assert (said(hf, "kept"), said(other, "kept")) == (mine, theirs)
        assert [row["id"] for row in hf.sessions.list_sessions()] == ["kept"]
        assert hf.admin.verify().ok


def restored(path: Path, copy: Path) -> None:
    """Put a backup in the place of a store, as the docs say."""
    for end in ("", "-wal", "-shm", "-anchor"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    copy.replace(path)


@pytest.fixture(params=["volatile", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path):
    url = "volatile:" if request.param == "volatile" else tmp_path / "state.db"
    with holdfast.connect(url) as hf:
        yield hf


def test_an_erased_session_is_gone_and_its_id_is_free(hf: holdfast.Holdfast):
    told(hf, name="trip")
    told(hf)
    receipt = hf.admin.erase(session_id="trip")
    assert (receipt.sessions, receipt.events, receipt.what) == (1, 7, "session")
    assert hf.sessions.load_session("trip") is None
    with pytest.raises(errors.UnknownSession):
        hf.admin.erase(session_id="trip")
    again = hf.sessions.create_session("trip")
    assert (again.version, again.message_count, list(again.messages)) == (1, 0, [])
    assert hf.admin.verify().ok


def test_a_receipt_names_nobody_and_is_plain_json(hf: holdfast.Holdfast):
    told(hf, name="trip")
    receipt = hf.admin.erase(session_id="trip")
    data = receipt.to_dict()
    assert data["id"].startswith("erasure_")
    assert data["erased_at"].endswith("Z") or "+00:00" in data["erased_at"]
    assert "trip" not in str(data)


def test_the_feed_goes_on_over_what_is_gone(hf: holdfast.Holdfast):
    told(hf, name="trip")
    told(hf)
    hf.admin.erase(session_id="trip")
    facts = list(hf.events.feed())
    assert [fact.position for fact in facts] == list(range(1, len(facts) + 1))
    assert next(fact.kind for fact in facts if not fact.session_id) == "session.created"
    assert facts[-1].kind == "session.erased"
    last = facts[-1].event
    assert isinstance(last, SessionErased)
    assert last.events == 7


def test_deleted_sessions_go_when_somebody_asks(hf: holdfast.Holdfast):
    told(hf, name="one")
    told(hf, name="two")
    told(hf)
    assert hf.admin.erase().sessions == 0
    hf.sessions.delete_session("one")
    hf.sessions.delete_session("two")
    receipt = hf.admin.erase()
    assert (receipt.what, receipt.sessions) == ("deleted", 2)
    assert hf.admin.erase().events == 0
    assert [row["id"] for row in hf.sessions.list_sessions()] == ["kept"]


def test_what_was_deleted_before_an_id_was_used_again_goes_too(hf: holdfast.Holdfast):
    told(hf, name="trip", user_id="ada")
    hf.sessions.rewind_session("trip", 3)
    hf.sessions.update_session("trip", title="Kestrel0001")
    hf.sessions.delete_session("trip")
    now = told(hf, name="trip", user_id="bob")
    receipt = hf.admin.erase(user_id="ada")
    assert receipt.events >= 8
    assert said(hf, "trip") == now
    assert hf.sessions.get_session("trip").user_id == "bob"
    feed = [fact for fact in hf.events.feed() if fact.kind == "session.message_added"]
    words = {str(getattr(fact.event, "message").content) for fact in feed}  # noqa: B009
    assert words == {"[erased]", *now}
    assert hf.admin.erase().events == 0
    before = list(hf.sessions.list_sessions())
    hf.admin.rebuild()
    assert list(hf.sessions.list_sessions()) == before
    assert said(hf, "trip") == now
    assert hf.admin.verify().ok


def test_a_source_waits_for_its_last_fork(hf: holdfast.Holdfast):
    words = told(hf, name="trip")
    hf.sessions.fork_session("trip", new_id="fork")
    hf.sessions.fork_session("fork", new_id="fork of fork")
    receipt = hf.admin.erase(session_id="trip")
    assert (receipt.sessions, receipt.waiting) == (0, 1)
    assert hf.sessions.load_session("trip") is None
    assert said(hf, "fork") == said(hf, "fork of fork") == words
    hf.sessions.delete_session("fork")
    assert hf.admin.erase().sessions == 0
    assert said(hf, "fork of fork") == words
    assert hf.admin.erase(session_id="fork of fork").sessions == 3
    assert hf.admin.verify().ok


def test_erasing_one_of_a_chain_leaves_the_others(hf: holdfast.Holdfast):
    told(hf, name="first")
    source = hf.sessions.get_session("first")
    following = hf.sessions.create_continuation_session(source)
    following.add_message({"role": "user", "content": "further"})
    hf.admin.erase(session_id="first")
    assert "further" in said(hf, following.id)
    assert [s.id for s in hf.sessions.session_chain(following.id)] == [following.id]
    hf.admin.erase(session_id=following.id)
    assert hf.sessions.list_sessions() == []


def test_frames_about_a_session_go_with_it_and_others_lose_what_they_had_of_it(
    hf: holdfast.Holdfast,
):
    told(hf, name="trip")
    told(hf)
    mine = holdfast.Scope("agent", session_id="trip")
    root = hf.index.push_frame(holdfast.Scope("chief"), goal="all", budget=9_000)
    about = hf.index.push_frame(mine, goal="book", budget=3_000)
    hf.index.pop_frame(about.frame_id)
    handle = holdfast.ContextHandle(
        handle_id="h", handle_type=holdfast.HandleType.MESSAGE_RANGE, target={"session_id": "trip", "first": 1, "last": 3}
    )  # fmt: skip
    hf.index.add_context_handle(root.frame_id, handle)
    hf.index.assemble_context_pack(holdfast.Scope("chief"), frame_id=root.frame_id)
    receipt = hf.admin.erase(session_id="trip")
    assert receipt.frames == 1
    with pytest.raises(errors.FrameNotFound):
        hf.index.get_frame(about.frame_id)
    left = hf.index.get_frame(root.frame_id).handle("h")
    assert left is not None
    assert left.target == {}
    with pytest.raises(errors.Erased):
        hf.index.pack_of(root.frame_id)
    hf.index.assemble_context_pack(holdfast.Scope("chief"), frame_id=root.frame_id)
    hf.admin.rebuild()
    assert hf.admin.verify().ok


def test_hooks_are_told_until_they_have_heard_it(tmp_path: Path):
    heard: list[tuple[str, str | None, int | None]] = []
    deaf = [True]

    def hook(who: object, session_id: str | None, position: int | None) -> int:
        if deaf[0]:
            raise errors.Unavailable("nobody there.")
        heard.append((who.user_id, session_id, position))  # pyright: ignore[reportAttributeAccessIssue]
        return 2

    with holdfast.connect(tmp_path / "state.db") as hf:
        told(hf, name="trip", user_id="ada")
        erasing = Erasing(hf.sessions._engine, "default", (hook,))
        with pytest.raises(errors.Unavailable) as error:
            erasing.user("ada")
        assert "'pending': True" in str(error.value.facts["receipt"])
        assert hf.sessions.load_session("trip") is None
        deaf[0] = False
        assert erasing.finish() == 2
        assert erasing.finish() == 0
        assert heard == [("ada", None, None)]
        assert erasing.user("ada").rows == 2


def test_a_step_of_the_background_work_erases_what_was_deleted(hf: holdfast.Holdfast):
    told(hf, name="trip")
    hf.sessions.delete_session("trip")
    task, beats = PurgeTask(hf.sessions._engine), list[int]()
    assert task.name == "purge"
    while task.step("default", lambda: beats.append(1)):
        pass
    assert beats
    assert hf.admin.erase().events == 0


def test_another_opener_does_not_serve_what_is_gone(tmp_path: Path):
    path = tmp_path / "state.db"
    with holdfast.connect(path) as hf, holdfast.connect(path) as other:
        told(hf, name="trip")
        there = other.sessions.get_session("trip")
        assert len(there.window(1_000).messages) == 6
        hf.admin.erase(session_id="trip")
        for read in (lambda: list(there.messages), lambda: there.window(1_000)):
            with pytest.raises(errors.NotFound):
                read()
        assert other.sessions.load_session("trip") is None
        with pytest.raises(errors.UnknownSession):
            other.sessions.add_messages("trip", [{"role": "user", "content": "late"}])
        anew = other.sessions.create_session("trip")
        anew.add_message({"role": "user", "content": "new"})
        assert said(hf, "trip") == ["new"]


def test_a_reader_delays_the_scrub_and_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "SCRUB_WAIT_S", 0.05)
    with holdfast.connect(tmp_path / "state.db") as hf:
        told(hf, name="trip")
        reader = opening.connect(tmp_path / "state.db", write=False)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchall()
        with pytest.raises(errors.StoreBusy, match="reading") as error:
            hf.admin.erase(session_id="trip")
        assert "'events': 7" in str(error.value.facts["receipt"])
        assert hf.sessions.load_session("trip") is None
        reader.close()
        hf.admin.erase()
        assert hf.sessions._engine.store.pending() is None


def test_a_log_that_went_on_elsewhere_loses_nothing_to_an_old_list(tmp_path: Path):
    path, copy, away = tmp_path / "state.db", tmp_path / "old.db", tmp_path / "away"
    with holdfast.connect(path) as hf:
        told(hf, name="trip")
        told(hf)
        hf.admin.backup(copy)
        hf.sessions.add_messages("trip", [{"role": "user", "content": "later"}])
        hf.admin.erase(session_id="trip")
    away.mkdir()
    shutil.copy(copy, away / "state.db")
    with holdfast.connect(away / "state.db") as hf:
        hf.sessions.add_messages("trip", [{"role": "user", "content": "said elsewhere"}])
        hf.sessions.fork_session("trip", new_id="fork")
        told(hf, name="new")
    restored(path, away / "state.db")
    with holdfast.connect(path) as hf:
        assert said(hf, "trip") == said(hf, "fork") == ["[erased]"] * 6 + ["said elsewhere"]
        assert said(hf, "new") == said(hf, "kept")
        assert hf.admin.verify().ok


def test_arguments_that_do_not_go_together_are_refused(hf: holdfast.Holdfast):
    with pytest.raises(errors.InvalidRequest):
        hf.admin.erase(message_id="m")
    with pytest.raises(errors.InvalidRequest):
        hf.admin.erase(user_id="u", session_id="s")
    with pytest.raises(errors.UnknownSession):
        hf.admin.erase(session_id="nobody")
    assert hf.admin.erase(user_id="nobody").events == 0


def test_tenants_are_apart(tmp_path: Path):
    path = tmp_path / "state.db"
    with holdfast.connect(path) as hf, holdfast.connect(path, tenant="globex") as other:
        told(hf, name="trip", user_id="ada")
        words = told(other, name="trip", user_id="ada")
        hf.admin.erase(user_id="ada")
        assert said(other, "trip") == words


def test_a_store_opened_by_itself_keeps_its_schema(tmp_path: Path):
    with holdfast.connect(tmp_path / "state.db") as hf:
        told(hf, name="trip")
        hf.admin.erase(session_id="trip")
    store = sqlite.open_store(tmp_path / "state.db")
    assert store.pending() is None
    store.close()
