"""Forks and rewinds of sessions: at any message, by reference, for every verb that follows."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import limpet
from limpet import Limpet, Message, Session, WindowPolicy, errors, limits
from limpet.stores.sqlite import database
from tests.acceptance.conversation_steps import Opener, answer, asking, engine_of, giving, neighbour, texts, user
from tests.acceptance.stores.test_page_checksum_repair import visit


def filled(lp: Limpet, count: int = 6, name: str = "s") -> Session:
    session = lp.sessions.create_session(name, user_id="ada", title="T", metadata={"team": "a"})
    said = [user(f"{n}") if n % 2 else answer(f"{n}") for n in range(1, count + 1)]
    return session.add_messages(said)


def test_a_fork_keeps_everything_up_to_its_message(lp: Limpet):
    session = filled(lp)
    fork = lp.sessions.fork_session("s", 4, new_id="f")
    assert lp.sessions.current_session is not None and lp.sessions.current_session.id == "f"
    assert texts(fork) == ["1", "2", "3", "4"]
    assert (fork.title, fork.user_id, fork.message_count) == ("T", "ada", 4)
    assert fork.metadata == {"team": "a", "forked_from": "s", "message_count": 4}
    assert fork.state.forked_from == ("s", 5)
    assert fork.total_tokens == sum(m.tokens or 1 for m in fork.messages)
    session.add_message(user("7"))
    fork.add_message(user("other"))
    assert texts(session) == ["1", "2", "3", "4", "5", "6", "7"]
    assert texts(fork) == texts(lp.sessions.get_session("f")) == ["1", "2", "3", "4", "other"]
    assert fork.messages[-1].content == "other" and fork.messages[1:3] == session.messages[1:3]
    assert lp.admin.verify().ok


def test_a_message_is_named_by_its_id_or_its_number(lp: Limpet):
    session = filled(lp)
    third = session.messages[2]
    assert texts(session.fork(third.id)) == texts(session.fork(3)) == ["1", "2", "3"]
    assert texts(session.fork()) == texts(session)
    for at in (0, -1, True, 1.5, b"x", []):
        with pytest.raises(errors.InvalidRequest):
            session.fork(at)  # pyright: ignore[reportArgumentType]
    for missing in (7, "nothing", 10**9):
        with pytest.raises(errors.MessageNotFound) as info:
            session.rewind(missing)
        assert info.value.facts["messages"] == 6


def test_a_fork_can_say_otherwise(lp: Limpet):
    session = filled(lp)
    fork = session.fork(2, title="F", metadata={"team": "b"})
    assert (fork.title, fork.state.metadata["team"]) == ("F", "b")
    with pytest.raises(errors.InvalidRequest):
        session.fork(2, metadata={"forked_from": "me"})
    with pytest.raises(errors.InvalidRequest, match="same user"):
        lp.sessions.fork_session("s", user_id="eve")
    assert lp.sessions.fork_session("s", user_id="ada").user_id == "ada"
    with pytest.raises(errors.DuplicateSession):
        session.fork(new_id="s")
    with pytest.raises(errors.SessionNotFound):
        lp.sessions.fork_session("nobody")
    with pytest.raises(errors.SessionNotFound):
        neighbour(lp, "other").fork_session("s")


def test_calls_that_a_fork_leaves_unanswered_are_open_in_it(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_messages([user(), asking("a", "b"), giving("a"), giving("b"), answer("done")])
    at_calls, between = session.fork(2), session.fork(3)
    assert [call.call_id for call in at_calls.pending_calls()] == ["a", "b"]
    assert [call.call_id for call in between.pending_calls()] == ["b"]
    with pytest.raises(errors.OpenCalls):
        between.add_message(user("too early"))
    with pytest.raises(errors.SecondResult):
        between.add_message(giving("a"))
    between.add_messages([giving("b"), answer("otherwise")])
    assert session.pending_calls() == [] and between.pending_calls() == []
    session.rewind(2)
    assert [call.call_id for call in session.pending_calls()] == ["a", "b"]


def test_a_rewound_session_goes_on_from_its_message(lp: Limpet):
    session = filled(lp)
    before = lp.sessions.get_session("s")
    session.rewind(3)
    assert texts(session) == ["1", "2", "3"]
    assert session.version == 8 and session.message_count == 3
    session.add_message(answer("4b"))
    assert texts(session) == texts(lp.sessions.get_session("s")) == ["1", "2", "3", "4b"]
    assert texts(before) == ["1", "2", "3", "4", "5", "6"], "a handle is frozen at its state"
    assert [row["message_count"] for row in lp.sessions.list_sessions()] == [4]
    assert texts(session.rewind(4)) == ["1", "2", "3", "4b"], "nothing is later than the last"
    assert session.version == 9
    assert lp.admin.verify().ok


def test_title_and_metadata_stay_when_a_session_is_rewound(lp: Limpet):
    filled(lp)
    lp.sessions.update_session("s", title="New", metadata={"n": 1})
    session = lp.sessions.rewind_session("s", 1)
    assert (session.title, session.state.metadata["n"]) == ("New", 1)
    engine_of(lp).states.invalidate("default", "s")
    assert lp.sessions.get_session("s").title == "New"


def test_the_id_of_a_message_that_was_rewound_is_free_again(lp: Limpet):
    session = lp.sessions.create_session("s")
    kept, gone = Message("user", "kept", id="m1"), Message("assistant", "gone", id="m2")
    session.add_messages([kept, gone])
    fork = session.fork(1)
    session.rewind("m1")
    other = Message("assistant", "other", id="m2")
    assert texts(session.add_message(other)) == ["kept", "other"]
    assert texts(session.add_message(other)) == ["kept", "other"], "said before"
    with pytest.raises(errors.DuplicateMessage):
        session.add_message(gone)
    with pytest.raises(errors.DuplicateMessage):
        session.add_message(Message("user", "x", id="m1"))
    with pytest.raises(errors.DuplicateMessage):
        fork.add_message(Message("user", "x", id="m1"))
    assert texts(fork.add_message(gone)) == ["kept", "gone"]


def test_an_id_that_came_after_a_rewind_is_taken(lp: Limpet):
    session = filled(lp)
    session.rewind(2).add_message(Message("user", "new", id="m"))
    with pytest.raises(errors.DuplicateMessage):
        session.add_message(Message("user", "other", id="m"))
    assert texts(session.fork().add_message(user("x"))) == ["1", "2", "new", "x"]


def test_a_rewind_on_condition(lp: Limpet):
    session = filled(lp)
    with pytest.raises(errors.StaleVersion):
        session.rewind(2, expected_version=3)
    assert texts(session.rewind(2, expected_version=7)) == ["1", "2"]


def test_a_key_has_one_effect(lp: Limpet):
    session = filled(lp)
    fork = session.fork(4, key="f")
    assert session.fork(4, key="f").id == fork.id
    with pytest.raises(errors.KeyReused):
        session.fork(3, key="f")
    lp.sessions.rewind_session("s", session.messages[4].id, key="r")
    lp.sessions.rewind_session("s", 1)
    again = lp.sessions.rewind_session("s", session.messages[4].id, key="r")
    assert texts(again) == ["1"], "its message is gone, its answer is not"


def test_ended_and_deleted_sessions(lp: Limpet):
    session = filled(lp)
    fork = session.fork(2, new_id="f")
    lp.sessions.end_session("s")
    with pytest.raises(errors.SessionEnded):
        lp.sessions.rewind_session("s", 2)
    again = lp.sessions.fork_session("s", new_id="g")
    assert again.status == "active" and texts(again.add_message(user("7")))[-1] == "7"
    lp.sessions.delete_session("s")
    for verb in (lp.sessions.fork_session, lp.sessions.rewind_session):
        with pytest.raises(errors.SessionNotFound):
            verb("s", 1)
    assert texts(fork) == texts(lp.sessions.get_session("f")) == ["1", "2"]
    assert len(texts(again)) == 7
    lp.sessions.delete_session("f")
    with pytest.raises(errors.DuplicateSession):
        again.fork(new_id="f")
    lp.sessions.create_session("s").add_message(user("new"))
    assert texts(lp.sessions.fork_session("s")) == ["new"]
    with pytest.raises(errors.MessageNotFound):
        lp.sessions.fork_session("s", 2)


def test_a_fork_within_the_generation(lp: Limpet):
    filled(lp)
    lp.sessions.reset_session("s", system="S")
    session = lp.sessions.add_messages("s", [user("a"), answer("b")])
    fork = session.fork(2)
    assert texts(fork) == ["S", "a"] and fork.generation == 1
    assert texts(lp.sessions.reset_session(fork.id)) == []
    assert texts(session.rewind(1)) == ["S"]


def test_a_fork_is_a_conversation_of_its_own(opener: Opener):
    lp = opener(max_messages_per_session=4)
    session = lp.sessions.create_session("s", system="S")
    for n in range(6):
        session.add_messages([user(f"q{n}"), answer(f"a{n}")])
    chain = lp.sessions.session_chain("s")
    assert len(chain) > 1
    fork = chain[1].fork(new_id="f")
    assert texts(fork) == texts(chain[1])
    assert [part.id for part in lp.sessions.session_chain("f")] == ["f"]
    assert [part.id for part in lp.sessions.session_chain("s")] == [part.id for part in chain]
    assert lp.sessions.chain_tokens("f") == fork.total_tokens
    fork.add_message(user("on"))
    assert lp.sessions.session_chain("f")[0].id == "f" and fork.messages[-1].content == "on"
    assert "continued_from" not in lp.sessions.get_session("f").metadata


def test_rewinding_a_continued_session_takes_the_conversation_back(opener: Opener):
    lp = opener(max_messages_per_session=4)
    session = lp.sessions.create_session("s")
    for n in range(3):
        session.add_messages([user(f"q{n}"), answer(f"a{n}")])
    assert len(lp.sessions.session_chain("s")) == 2
    lp.sessions.rewind_session("s", 4)
    assert [part.id for part in lp.sessions.session_chain("s")] == ["s"]
    lp.sessions.rewind_session("s", 2)
    lp.sessions.add_messages("s", [user("again")])
    assert texts(lp.sessions.get_session("s")) == ["q0", "a0", "again"]


def test_open_calls_stay_with_a_fork_of_a_continued_session(opener: Opener):
    lp = opener(max_messages_per_session=50)
    session = lp.sessions.create_session("s")
    session.add_messages([user(), asking("a")])
    lp.sessions.create_continuation_session(session)
    fork = lp.sessions.fork_session("s")
    assert [call.call_id for call in fork.pending_calls()] == ["a"]
    assert fork.add_message(giving("a")).message_count == 3


def test_windows_see_what_the_session_is_now(lp: Limpet):
    session = filled(lp)
    shown = [message.content for message in session.window(10_000).messages]
    assert shown == ["1", "2", "3", "4", "5", "6"]
    fork = session.fork(3)
    session.rewind(2)
    assert [message.content for message in session.window(10_000).messages] == ["1", "2"]
    session.add_messages([user("3b"), answer("4b")])
    assert [m.content for m in session.window(10_000).messages] == ["1", "2", "3b", "4b"]
    assert [m.content for m in fork.window(10_000).messages] == ["1", "2", "3"]
    fork.add_message(answer("4c"))
    assert [m.content for m in fork.window(10_000).messages] == ["1", "2", "3", "4c"]


def test_windows_look_back_over_what_was_left_out(lp: Limpet):
    session = lp.sessions.create_session("s", system="S")
    for n in range(5):
        session.add_messages([user(f"{n}-{m} " + "x" * 40) for m in range(150)])
        session.rewind(1 + 75 * (n + 1))
    engine_of(lp).message_cache._cached.clear()
    shown = session.window(1_000_000).messages
    assert [m.content for m in shown] == texts(session) and len(shown) == 376
    small = session.window(1_000).messages
    assert [m.content for m in small] == ["S", *texts(session)[1 - len(small) :]]


def test_a_group_is_whole_across_a_rewind(lp: Limpet):
    session = lp.sessions.create_session("s")
    asked = Message("assistant", tool_calls=asking("a").tool_calls, metadata={"priority": "critical"})
    session.add_messages([user("q"), asked])
    for n in range(3):
        session.add_messages([giving("a"), *(user(f"{n}{m}") for m in range(100))])
        session.rewind(2)
    session.add_messages([giving("a"), answer("done"), *(user(f"{m} " * 50) for m in range(60))])
    session.window(2_000)
    engine_of(lp).message_cache._cached.clear()
    shown = session.window(2_000).messages
    calls = {call.id for message in shown for call in message.tool_calls}
    results = {result.tool_call_id for message in shown for result in message.tool_results}
    assert calls == results == {"a"}


def test_recorded_windows_are_found_in_forks_and_not_after_rewinds(lp: Limpet):
    session = lp.sessions.create_session("s", system="S")
    ids: list[str] = []
    for n in range(3):
        session.add_message(user(f"q{n}"))
        window = session.window(10_000)
        reply = answer(f"a{n}")
        session.add_message(reply, window=window)
        ids.append(reply.id)
    fork = session.fork(ids[1])
    before = session.window_of(ids[1])
    lp.sessions.rewind_session("s", ids[0])
    session.reload()
    assert [one.message_id for one in session.recorded_windows()] == ids[:1]
    assert [one.message_id for one in fork.recorded_windows()] == [ids[1], ids[0]]
    assert fork.window_of(ids[1]).messages == before.messages
    assert fork.window_of(ids[1]).digest == before.digest
    with pytest.raises(errors.MessageNotFound):
        session.window_of(ids[1])
    session.add_message(user("other"))
    window, reply = session.window(10_000), answer("another")
    session.add_message(reply, window=window)
    assert [one.message_id for one in session.recorded_windows()] == [reply.id, ids[0]]


def test_a_policy_is_as_it_was(lp: Limpet):
    policy = WindowPolicy(budget=600, counter="estimate")
    session = lp.sessions.create_session("s", policy=policy)
    for n in range(40):
        session.add_messages([user(f"{n} " + "x" * 120), answer("y" * 120)])
    assert session.state.cut is not None
    fork = session.fork(6)
    assert (fork.policy, fork.state.cut) == (policy, None)
    lp.sessions.rewind_session("s", 6)
    session.reload()
    assert (session.policy, session.state.cut, session.state.live) == (policy, None, fork.state.live)
    for each in (session, fork):
        for n in range(40):
            each.add_messages([user(f"{n} " + "z" * 120), answer("y" * 120)])
        assert each.state.cut is not None
        assert each.window().tokens <= 600


def test_deferred_writes_come_before_a_fork_and_a_rewind(opener: Opener):
    lp = opener(write="deferred")
    session = lp.sessions.create_session("s")
    for n in range(20):
        session.add_message(user(f"{n}"))
    assert len(texts(lp.sessions.fork_session("s"))) == 20
    for n in range(20, 40):
        session.add_message(user(f"{n}"))
    assert lp.sessions.rewind_session("s", 30).message_count == 30
    session.add_message(user("next"))
    lp.sessions.save_session(session)
    assert texts(lp.sessions.get_session("s"))[-2:] == ["29", "next"]


def test_forks_and_rewinds_among_appends_of_one_loop(fast_dir: Path):
    async def scenario() -> None:
        async with limpet.connect_async(fast_dir / "state.db") as lp:
            session = await lp.sessions.create_session("s")
            await session.add_messages([user("0"), answer("0")])
            verbs = [lp.sessions.add_messages("s", [user(f"{n}")]) for n in range(30)]
            verbs += [lp.sessions.fork_session("s", 2, new_id=f"f{n}") for n in range(10)]
            verbs += [lp.sessions.rewind_session("s", 2) for _ in range(3)]
            made = await asyncio.gather(*verbs)
            for n in range(10):
                fork = await lp.sessions.get_session(f"f{n}")
                assert [message.content async for message in fork.messages] == ["0", "0"]
            for one in made[:30]:
                said = [message.content async for message in one.messages]
                assert said[:2] == ["0", "0"] and len(said) == one.message_count
            now = await lp.sessions.get_session("s")
            said = [message.content async for message in now.messages]
            assert len(said) == now.message_count and len(set(said[2:])) == len(said) - 2
            assert (await lp.admin.verify()).ok

    asyncio.run(scenario())


def test_a_fork_of_a_long_session_writes_little(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db") as lp:
        session = lp.sessions.create_session("s")
        session.add_messages([user("x" * 200) for _ in range(10_000)])
        before = lp.admin.status()
        for n in range(50):
            session.fork(new_id=f"f{n}")
        for n in range(50):
            session.rewind(9_999 - n)
        after = lp.admin.status()
        assert after["events"] - before["events"] == 100
        log = sum(len(e.payload or b"") for e in engine_of(lp).store.feed("default", after=10_001))
        assert log < 100 * 2_000
        assert len(lp.sessions.get_session("f0").messages) == 10_000
        assert lp.sessions.get_session("f0").messages[9_998].content == "x" * 200
        assert after["bytes"] - before["bytes"] < 4_000_000


def test_forks_and_rewinds_are_mended_with_the_rest(fast_dir: Path):
    path = fast_dir / "state.db"
    child = os.fork()
    if child == 0:
        lp = limpet.connect(path)
        session = lp.sessions.create_session("s")
        session.add_messages([Message("user", f"{n}", id=f"m{n}") for n in range(10)])
        fork = session.fork(5, new_id="f")
        session.rewind(3).add_message(Message("user", "gone", id="m5"))
        session.rewind(3).add_message(Message("user", "other", id="m5"))
        fork.add_message(Message("user", "mine", id="m9"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    visit(path, "DELETE FROM claims")
    with limpet.connect(path) as lp:
        session, fork = lp.sessions.get_session("s"), lp.sessions.get_session("f")
        assert texts(session) == ["0", "1", "2", "other"]
        assert texts(fork) == ["0", "1", "2", "3", "4", "mine"]
        for handle, taken in ((session, "m5"), (session, "m2"), (fork, "m9"), (fork, "m4")):
            with pytest.raises(errors.DuplicateMessage):
                handle.add_message(Message("user", "x", id=taken))
        assert session.add_message(Message("user", "x", id="m7")).message_count == 5
        assert lp.admin.verify().ok


def test_forks_and_rewinds_are_rebuilt_with_the_rest(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_messages([Message("user", f"{n}", id=f"m{n}") for n in range(10)])
    fork = session.fork(5, new_id="f")
    for text in ("gone", "other"):
        session.rewind(3).add_message(Message("user", text, id="m5"))
    fork.add_message(Message("user", "x" * limits.BLOB_BYTES_MIN * 2, id="m9"))
    made = lp.admin.rebuild()
    assert (made.events, made.claims) == (17, 13)
    assert texts(lp.sessions.get_session("s")) == ["0", "1", "2", "other"]
    assert texts(lp.sessions.get_session("f"))[:-1] == ["0", "1", "2", "3", "4"]
    for name, taken in (("s", "m5"), ("s", "m2"), ("f", "m9"), ("f", "m4")):
        with pytest.raises(errors.DuplicateMessage):
            lp.sessions.add_messages(name, [Message("user", "y", id=taken)])
    assert lp.sessions.add_messages("s", [Message("user", "y", id="m7")]).message_count == 5
    assert [row["message_count"] for row in lp.sessions.list_sessions()] == [5, 6]
    assert lp.admin.verify().ok


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE bases SET version = version - 1",
        "UPDATE bases SET first = first + 1",
        "DELETE FROM bases WHERE key = stream",
        "DELETE FROM events WHERE key = (SELECT key FROM bases LIMIT 1)",
    ],
)
def test_a_base_that_was_changed_is_found(fast_dir: Path, statement: str):
    path = fast_dir / "state.db"
    with limpet.connect(path) as lp:
        session = filled(lp)
        session.fork(3)
        session.rewind(4)
        vandal = database.connect(path, write=True)
        vandal.execute(statement)
        vandal.close()
        assert not lp.admin.verify().ok
