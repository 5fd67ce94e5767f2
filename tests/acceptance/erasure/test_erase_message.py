"""One message of a living session: its words go everywhere they went, and the conversation goes on."""

from pathlib import Path

import pytest

import limpet
from limpet import errors
from limpet.testing import providers
from tests.acceptance.marker_words import Canaries, found

SECRET = "Kestrel0001 the secret MARMOT0001"


@pytest.fixture(params=["volatile", "sqlite"])
def lp(request: pytest.FixtureRequest, tmp_path: Path):
    url = "volatile:" if request.param == "volatile" else tmp_path / "state.db"
    with limpet.connect(url) as lp:
        yield lp


def say(session: limpet.Session, text: str, name: str = "", role: str = "user") -> None:
    session.add_message(limpet.Message(role, text, id=name))


def words(session: limpet.Session) -> list[str]:
    return [str(message.content) for message in session.messages]


def test_it_is_read_as_erased_and_the_rest_as_ever(lp: limpet.Limpet):
    session = lp.sessions.create_session("trip", system="Plan.")
    for number in range(4):
        say(session, SECRET if number == 2 else f"say {number}", f"m{number}")
    receipt = lp.admin.erase(session_id="trip", message_id="m2")
    assert (receipt.what, receipt.events, receipt.sessions) == ("message", 1, 0)
    again = lp.sessions.get_session("trip")
    assert words(again) == ["Plan.", "say 0", "say 1", "[erased]", "say 3"]
    assert again.messages[3].id.startswith("erased_")
    say(again, "and on", "m9")
    assert again.message_count == 6
    for name in ("m2", again.messages[3].id):
        with pytest.raises(errors.MessageNotFound) as caught:
            lp.admin.erase(session_id="trip", message_id=name)
        assert name == "m2" or "erased already" in str(caught.value)
    lp.admin.rebuild()
    assert words(lp.sessions.get_session("trip"))[3] == "[erased]"
    assert lp.admin.verify().ok


def test_the_listing_shows_nothing_of_it(lp: limpet.Limpet):
    session = lp.sessions.create_session("trip")
    say(session, SECRET, "m1")
    assert lp.sessions.list_sessions()[0]["title"] == SECRET
    lp.sessions.fork_session("trip", new_id="fork")
    lp.sessions.rewind_session("fork", 1)
    lp.admin.erase(session_id="trip", message_id="m1")
    assert {row["title"] for row in lp.sessions.list_sessions()} == {"[erased]"}
    assert words(lp.sessions.get_session("fork")) == ["[erased]"]


@pytest.mark.parametrize("which", ["m_call", "m_result"])
def test_calls_and_results_stay_paired(lp: limpet.Limpet, which: str):
    session = lp.sessions.create_session("trip")
    say(session, "find it", "m_ask")
    call = limpet.ToolCallRequest("c1", "look", {"q": SECRET}, f'{{"q": "{SECRET}"}}')
    session.add_message(limpet.Message("assistant", SECRET, id="m_call", tool_calls=[call], metadata={"x": SECRET}))
    result = limpet.ToolCallResult("c1", {"found": SECRET})
    session.add_message(limpet.Message("tool", id="m_result", tool_results=[result]))
    say(session, "thanks", "m_end")
    lp.admin.erase(session_id="trip", message_id=which)
    again = lp.sessions.get_session("trip")
    erased = next(m for m in again.messages if m.id.startswith("erased_"))
    assert SECRET not in str(erased.to_dict())
    assert [c.id for m in again.messages for c in m.tool_calls] == ["c1"]
    assert [r.tool_call_id for m in again.messages for r in m.tool_results] == ["c1"]
    assert again.pending_calls() == []
    window = again.window(1_000)
    assert providers.check_openai_chat(window.to_openai()) == []
    assert providers.check_anthropic(window.to_anthropic()) == []


def test_summaries_of_it_go_and_those_of_others_stay(lp: limpet.Limpet):
    session = lp.sessions.create_session("trip")
    for number in range(90):
        weighty = f"Remember: we decided on {SECRET}"
        say(session, weighty if number == 3 else "and some plain talk of no weight", f"m{number}")
    session = session.trimmed(600, summary="en")
    assert "Kestrel0001" in str(session.state.summary)
    following = lp.sessions.create_continuation_session(session)
    lp.admin.erase(session_id="trip", message_id="m89")
    assert lp.sessions.get_session("trip").state.summary == session.state.summary
    lp.admin.erase(session_id="trip", message_id="m3")
    assert "Kestrel" not in str(list(lp.events.feed()))
    for state in (lp.sessions.get_session("trip").state, lp.sessions.get_session(following.id).state):
        assert state.summary is not None
        assert "Kestrel" not in state.summary.text
        assert "[erased]" in state.summary.text
    window = lp.sessions.get_session("trip").window(80)
    assert all("Kestrel" not in str(message.content) for message in window.messages)


def test_a_window_that_had_it_says_that_it_can_not_be_made_again(lp: limpet.Limpet):
    session = lp.sessions.create_session("trip")
    say(session, "hello", "m1")
    session.add_message(limpet.Message("assistant", "hi", id="a1"), window=session.window(500))
    say(session, SECRET, "m2")
    session.add_message(limpet.Message("assistant", "ok", id="a2"), window=session.window(500))
    lp.admin.erase(session_id="trip", message_id="m2")
    again = lp.sessions.get_session("trip")
    assert len(again.window_of("a1").messages) == 1
    with pytest.raises(errors.Erased):
        again.window_of("a2")
    assert len(again.recorded_windows()) == 2


def test_a_pack_that_had_it_says_that_it_can_not_be_made_again(lp: limpet.Limpet):
    session = lp.sessions.create_session("trip")
    say(session, SECRET * 40, "m1")
    scope = limpet.Scope("agent", session_id="trip")
    frame = lp.index.push_frame(scope, goal="book", budget=9_000)
    handle = limpet.ContextHandle(
        handle_id="h", handle_type=limpet.frames.HandleType.MESSAGE_RANGE, target={"session_id": "trip", "first": 1, "last": 1}
    )  # fmt: skip
    lp.index.add_context_handle(frame.frame_id, handle)
    lp.index.assemble_context_pack(scope, frame_id=frame.frame_id)
    lp.admin.erase(session_id="trip", message_id="m1")
    with pytest.raises(errors.Erased):
        lp.index.pack_of(frame.frame_id)
    made = lp.index.assemble_context_pack(scope, frame_id=frame.frame_id)
    assert "Kestrel" not in str([m.to_dict() for m in made.messages])
    assert lp.index.get_frame(frame.frame_id).goal == "book"


def test_copies_in_sessions_that_follow_go_too(lp: limpet.Limpet):
    session = lp.sessions.create_session("first", system=SECRET)
    name = session.messages[0].id
    say(session, "hello")
    second = lp.sessions.create_continuation_session(session)
    third = lp.sessions.create_continuation_session(second)
    assert SECRET in words(third)
    lp.admin.erase(session_id="first", message_id=name)
    for each in ("first", second.id, third.id):
        assert SECRET not in words(lp.sessions.get_session(each))
        assert "[erased]" in words(lp.sessions.get_session(each))
    assert lp.admin.verify().ok


def test_it_is_in_no_byte_of_any_file(tmp_path: Path):
    home, c = tmp_path / "home", Canaries()
    home.mkdir()
    with limpet.connect(home / "state.db") as lp:
        session = lp.sessions.create_session("trip", user_id="ada", system="Plan.")
        say(session, "first")
        session.add_message(limpet.Message("user", f"{c()} " * 3_000, id=c(), metadata={c(): c()}), key=c())
        name = session.messages[-1].id
        session.add_message(limpet.Message("assistant", "ok"), window=session.window(60_000))
        for number in range(20):
            say(session, f"more of number {number}")
        session.trimmed(200, summary="en")
        frame = lp.index.push_frame(limpet.Scope("a", "trip"), goal="g", budget=90_000)
        lp.index.assemble_context_pack(limpet.Scope("a", "trip"), frame_id=frame.frame_id)
        lp.sessions.fork_session("trip", new_id="fork")
        lp.sessions.rewind_session("trip", 5)
        lp.admin.backup(home / "old.db")
        assert found(home)
        lp.admin.erase(session_id="trip", message_id=name)
        assert set(found(home)) == {"old.db"}
        assert lp.admin.verify().ok
        before = [words(lp.sessions.get_session(each)) for each in ("trip", "fork")]
    for end in ("", "-wal", "-shm", "-anchor"):
        (home / f"state.db{end}").unlink(missing_ok=True)
    (home / "old.db").replace(home / "state.db")
    with limpet.connect(home / "state.db") as lp:
        assert found(home) == {}
        assert [words(lp.sessions.get_session(each)) for each in ("trip", "fork")] == before
        assert lp.admin.verify().ok


def test_one_that_a_rewind_left_out_can_be_erased(lp: limpet.Limpet):
    session = lp.sessions.create_session("trip")
    say(session, "stays", "m1")
    say(session, SECRET, "m2")
    version = session.version
    session.rewind(1)
    lp.admin.erase(session_id="trip", message_id="m2")
    past = lp.sessions.get_session("trip").at(version)
    assert [str(m.content) for m in past.messages] == ["stays", "[erased]"]


def test_what_keeps_it_in_sight_stays(lp: limpet.Limpet):
    session = lp.sessions.create_session("trip")
    session.add_message(limpet.Message("user", SECRET, id="m1", metadata={"pinned": True, "who": SECRET}))
    for number in range(200):
        say(session, f"much more to say about number {number}")
    lp.admin.erase(session_id="trip", message_id="m1")
    again = lp.sessions.get_session("trip")
    assert again.messages[0].metadata == {"pinned": True}
    assert again.window(200).messages[0].content == "[erased]"
