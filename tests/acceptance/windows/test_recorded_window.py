"""What the model saw at step N, byte for byte, whatever has happened since."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import msgspec
import pytest

import limpet
from limpet import CompactionLevel, Message, StateManager, ToolCallResult, WindowPolicy, errors
from tests.acceptance.conversation_steps import Opener, answer, asking, giving, user

COUNTER = "estimate"


def rendered(window: limpet.Window) -> list[str]:
    made = (window.to_openai(), window.to_openai_responses(), window.to_anthropic(), window.to_gemini())
    return [json.dumps(one, sort_keys=True) for one in made]


def turn(session: limpet.Session, dice: random.Random) -> None:
    session.add_message(user("why " * dice.choice((3, 40, 400))))
    if dice.random() < 0.6:
        session.add_message(asking("c1", "c2"))
        huge = "output of a tool, line by line\n" * dice.choice((1, 20, 400))
        session.add_message(Message("tool", tool_results=[ToolCallResult("c2", huge)]))
        session.add_message(giving("c1"))


@pytest.mark.slow
@pytest.mark.req("A-2")
def test_a_thousand_recorded_windows_come_back_byte_for_byte(tmp_path: Path):
    dice, path = random.Random(7), tmp_path / "state.db"
    seen: list[tuple[str, str, limpet.Window, list[str]]] = []
    policy = WindowPolicy(budget=2_500, counter=COUNTER, summary="en")
    with limpet.connect(path, max_messages_per_session=600, policy=policy) as lp:
        for name in range(4):
            session = lp.sessions.create_session(f"s{name}", system="Be brief.")
            for number in range(250):
                turn(session, dice)
                level = dice.choice(list(CompactionLevel))
                budget = dice.choice((900, None, 9_000))
                window = session.window(budget, min_compaction=level)
                reply = Message("assistant", f"reply {number}", id=f"reply_{name}_{number}")
                session.add_message(reply, window=window)
                seen.append((session.id, reply.id, window, rendered(window)))
        lp.sessions.reset_session("s3")
        kinds = [recorded.kind for recorded in lp.events.feed()]
    assert kinds.count("session.window_cut") > 50
    with limpet.connect(path, policy=WindowPolicy(budget=400)) as lp:
        for name in range(3):
            turn(lp.sessions.get_session(f"s{name}").trimmed(700), dice)
        for session_id, reply_id, window, before in seen:
            again = lp.sessions.get_session(session_id).window_of(reply_id)
            assert again.messages == window.messages
            assert rendered(again) == before
            assert (again.tokens, again.budget, again.sizes) == (
                window.tokens, window.budget, window.sizes
            )  # fmt: skip
            assert again.ledger.messages() == window.ledger.messages()
    assert len(seen) == 1_000
    assert {len(window.messages) > 5 for _, _, window, _ in seen} == {True, False}


def test_a_window_that_was_not_recorded(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_message(user("hello"))
        reply = answer("hi")
        session.add_message(reply)
        with pytest.raises(errors.NotFound, match="no window was recorded"):
            session.window_of(reply.id)
        with pytest.raises(errors.MessageNotFound):
            session.window_of("nobody")
        listed = StateManager(500, counter=COUNTER).window([user("hello")])
        with pytest.raises(errors.InvalidRequest, match="made of a list"):
            session.add_message(answer("hm"), window=listed)


def test_a_recorded_window_is_part_of_the_answer_and_not_of_the_conversation(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_message(user("hello"))
        window = session.window(500, counter=COUNTER)
        reply = answer("hi")
        session.add_message(reply, window=window)
        session.add_message(reply, window=window)
        assert [m.role for m in session.messages] == ["system", "user", "assistant"]
        assert session.window_of(reply.id).messages == window.messages
        kinds = [event.event.kind for event in lp.events.feed()]
        assert kinds.count("session.window_recorded") == 1


def test_one_window_for_several_messages(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_message(user("hello"))
        window = session.window(500, counter=COUNTER)
        said = [asking("c1"), giving("c1"), answer("hi")]
        session.add_messages(said, window=window)
        for message in said:
            again = session.window_of(message.id)
            assert again.messages == window.messages
            assert again.tenant == window.tenant
        events = range(session.version - 3, session.version + 1)
        assert len({session.recorded_window(event).version for event in events}) == 1
        after = answer("and more")
        session.add_message(after)
        with pytest.raises(errors.NotFound, match="no window was recorded"):
            session.window_of(after.id)
        with pytest.raises(errors.NotFound, match="no window was recorded"):
            session.window_of(session.messages[1].id)


def test_a_rebuilt_window_knows_its_summary(opener: Opener):
    with opener() as lp:
        policy = WindowPolicy(budget=400, counter=COUNTER, summary="en")
        session = lp.sessions.create_session("s", system="Be brief.", policy=policy)
        session.add_messages([user(f"question {number} " * 9) for number in range(40)])
        window = session.window()
        reply = answer("hi")
        session.add_message(reply, window=window)
        again = session.window_of(reply.id)
        assert again.summary_at == window.summary_at == 1
        session.add_message(answer("said again"), window=again)


def test_async_callers_record_and_rebuild_too(tmp_path: Path):
    async def work() -> None:
        async with await limpet.connect_async(tmp_path / "state.db") as lp:
            session = await lp.sessions.create_session("s", system="Be brief.")
            await session.add_message(user("hello"))
            window = await session.window(500, counter=COUNTER)
            reply = answer("hi")
            await session.add_message(reply, window=window)
            again = await session.window_of(reply.id)
            assert again.messages == window.messages

    asyncio.run(work())


def test_a_long_history_with_recorded_windows_is_read_whole(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_messages([user(f"q{number}") for number in range(250)])
        for number in range(12):
            window = session.window(500, counter=COUNTER)
            session.add_message(answer(f"a{number}"), window=window)
        assert len(list(session.messages)) == session.message_count == 263
        assert session.messages[255].content == "a4"
        assert [m.content for m in session.messages[250:254]] == ["q249", "a0", "a1", "a2"]


class Wrong:
    """A counter that breaks its promise."""

    name, exact, margin, reply = "wrong", True, 0.0, 0

    def __init__(self, given: object) -> None:
        self.given = given

    def text(self, _: str) -> object:
        return self.given

    def message(self, _: Message) -> object:
        return self.given

    def tools(self, _: object) -> int:
        return 0


@pytest.mark.parametrize("given", [1.5, -1, None, True])
def test_a_counter_that_does_not_count_is_refused(opener: Opener, given: object):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        with pytest.raises(errors.InvalidRequest, match="a count is an int"):
            session.window(500, counter=Wrong(given))  # pyright: ignore[reportArgumentType]


def test_an_altered_window_is_not_recorded(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        window = session.add_message(user("hello")).window(500, counter=COUNTER)
        altered = msgspec.structs.replace(window, version="x")
        with pytest.raises(errors.InvalidRequest, match="not as it was made"):
            session.add_message(answer("hi"), window=altered)
        assert lp.sessions.get_session("s").message_count == 2
