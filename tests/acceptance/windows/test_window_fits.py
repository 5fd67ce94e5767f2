"""Windows of real sessions: they fit, are whole, and tell what they leave out."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import CompactionLevel, Message, MessageCategory, ToolCallRequest, ToolCallResult, errors
from limpet.core.values import messages
from limpet.core.values.context import Fate
from limpet.runtime import message_cache
from tests.acceptance.conversation_steps import Opener, answer, asking, giving, user

COUNTER = "estimate"


def talk(session: limpet.Session, turns: int, words: int = 20) -> None:
    for number in range(turns):
        session.add_messages(
            [
                user(f"question {number} " + "why " * words),
                asking("c1", "c2"),
                giving("c2", "c1"),
                answer(f"answer {number} " + "because " * words),
            ]
        )


@pytest.mark.req("A-10")
@pytest.mark.req("A-12")
def test_a_window_fits_and_the_history_stays(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 50)
        for budget in (200, 500, 2_000, 100_000):
            window = session.window(budget, counter=COUNTER)
            assert window.tokens <= budget
            assert window.messages[0].content == "Be brief."
            assert window.ledger.messages() == session.message_count == 201
            assert not [g for g in messages.group_messages(window.messages) if g.fault]
            assert window.messages[-1].content == session.messages[-1].content
        assert [m.id for m in session.window(10**6, counter=COUNTER)] == [m.id for m in session.messages]
        assert session.message_count == 201, "making a window changes nothing"


@pytest.mark.parametrize("seed", range(12))
def test_a_large_turn_that_fits_is_not_thrown_away(opener: Opener, seed: int):
    dice = random.Random(seed)
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        for _ in range(40):
            session.add_messages([user("why " * dice.randint(20, 150)), answer("so " * 20)])
        session.add_messages([user("tell me all"), answer("much " * 6_300)])
        session.add_message(user("And now?"))
        fullest = session.window(8_000, stable=False).tokens
        assert session.window(8_000).tokens > 6_000 <= fullest


def test_a_stable_window_keeps_its_beginning(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 80)
        shares, full = list[float](), list[float]()
        before = session.window(5_000, counter=COUNTER)
        sliding = session.window(5_000, counter=COUNTER, stable=False)
        assert sliding.tokens > 0.9 * 5_000
        for _ in range(120):
            talk(session, 1)
            now = session.window(5_000, counter=COUNTER)
            shares.append(before.diff(now).share)
            full.append(now.tokens / now.budget)
            before = now
        assert sum(shares) / len(shares) > 0.7
        assert sum(full) / len(full) > 0.6
        assert min(shares) < 0.2, "now and then it moves"


def test_what_became_of_a_window(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_message(user("first"))
        one = session.window(1_000, counter=COUNTER)
        session.add_message(answer("<b>second</b>"))
        two = session.window(1_000, counter=COUNTER)
        difference = one.diff(two)
        assert [m.content for m in difference.new] == ["<b>second</b>"]
        assert (difference.gone, difference.same) == ((), 2)
        assert "the first 2 messages are the same" in str(difference)
        assert two.diff(one).gone == difference.new
        assert "&lt;b&gt;second" in two._repr_html_()
        assert "3 messages" in two.explain()


def test_a_window_begins_with_a_question(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 30)
        for budget in range(120, 1_200, 7):
            window = session.window(budget, counter=COUNTER)
            assert window.messages[1].role == "user"


@pytest.mark.req("A-12")
def test_the_current_question_stays_however_long_its_turn_gets(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 100)
        session.add_message(user("THE QUESTION"))
        for number in range(200):
            call = ToolCallRequest(f"c{number}", "look", {"n": number})
            session.add_message(Message("assistant", tool_calls=[call]))
            session.add_message(Message("tool", tool_results=[ToolCallResult(call.id, "x " * 200)]))
        window = session.window(1_000, counter=COUNTER)
        assert "THE QUESTION" in [m.content for m in window]
        assert window.messages[-1].tool_results[0].tool_call_id == "c199"
        assert window.ledger.messages() == session.message_count
        assert [e.first for e in window.ledger] == sorted({e.first for e in window.ledger})


def test_what_was_said_long_ago_as_context_stays(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 3)
        session.add_message(Message("user", "the map", MessageCategory.CONTEXT))
        talk(session, 100)
        window = session.window(600, counter=COUNTER)
        assert [m.content for m in window.messages[:2]] == ["Be brief.", "the map"]
        fates = {e.first: e.fate for e in window.ledger}
        assert fates[14] is Fate.KEPT
        assert window.ledger.messages(Fate.LEFT_OUT) > 300


def test_what_is_pinned_stays_however_old(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_message(Message("user", "my name is Ola", metadata={"pinned": True}))
        session.add_message(Message("assistant", "noted", metadata={"priority": "high"}))
        session.add_message(Message("assistant", "by the way", metadata={"priority": "soon"}))
        talk(session, 200)
        window = session.window(400, counter=COUNTER)
        said = [message.content for message in window.messages[:3]]
        assert said == ["Be brief.", "my name is Ola", "noted"]
        assert window.explain(2).endswith("pinned")
        assert window.ledger.messages() == session.message_count
    with opener() as lp:
        again = lp.sessions.load_session("s")
        assert again is None or again.window(400, counter=COUNTER) == window


def test_a_huge_result_of_now_is_shortened_not_dropped(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_messages([user("read it"), asking("c1")])
        result = ToolCallResult("c1", "line of the file\n" * 20_000)
        session.add_message(Message("tool", tool_results=[result]))
        window = session.window(3_000, counter=COUNTER)
        shown = window.messages[-1].tool_results[0].result
        assert shown.startswith("line of the file")
        assert "characters left out" in shown
        assert window.ledger.entry_of(4).fate is Fate.SHORTENED  # pyright: ignore[reportOptionalMemberAccess]
        assert "#4 is shortened" in window.explain(4)
        smallest = session.window(150, counter=COUNTER).messages[-1].tool_results[0].result
        assert smallest == "[340,000 characters of output left out]"


def test_calls_that_wait_are_always_there(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 20)
        session.add_messages([user("now"), asking("c1", "c2"), giving("c2")])
        window = session.window(120, counter=COUNTER)
        assert [m.role for m in window] == ["system", "user", "assistant", "tool"]
        with pytest.raises(errors.ContextOverflow, match="calls that wait"):
            session.window(20, counter=COUNTER)


def test_too_little_room_is_said_with_numbers(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="word " * 400)
        session.add_message(user("and now?"))
        with pytest.raises(errors.ContextOverflow, match="Largest: #1 initial system prompt") as caught:
            session.window(100, counter=COUNTER)
        required = caught.value.facts["required"]
        assert isinstance(required, int)
        whole = session.window(10_000, counter=COUNTER)
        assert required == whole.tokens
        assert session.window(whole.tokens, counter=COUNTER).tokens == whole.tokens


def test_each_level_of_compaction(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 10, words=900)
        sizes, window = {}, session.window(50_000, counter=COUNTER)
        for level in CompactionLevel:
            window = session.window(50_000, counter=COUNTER, min_compaction=level)
            assert window.level is level
            sizes[level] = window.tokens
            assert ("Summary of previous context" in str(window.messages[1].content)) == (
                CompactionLevel.MODERATE <= level < CompactionLevel.CRITICAL
            )
        assert sorted(sizes.values(), reverse=True) == list(sizes.values())
        assert [m.role for m in window] == ["system", "user"]


def test_windows_follow_appends_resets_and_other_writers(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path) as one, limpet.connect(path) as other:
        session = one.sessions.create_session("s", system="first")
        talk(session, 5)
        behind = other.sessions.get_session("s")
        before = behind.window(10_000, counter=COUNTER)
        session.add_message(user("more"))
        ahead = other.sessions.get_session("s").window(10_000, counter=COUNTER)
        assert ahead.messages[-1].content == "more"
        assert behind.window(10_000, counter=COUNTER) == before, "a handle shows its own moment"
        assert behind.reload().window(10_000, counter=COUNTER).messages[-1].content == "more"
        one.sessions.reset_session("s", system="second")
        fresh = other.sessions.get_session("s").add_message(user("hello"))
        window = fresh.window(10_000, counter=COUNTER)
        assert [m.content for m in window] == ["second", "hello"]
        assert [entry.first for entry in window.ledger] == [1, 2]


def test_windows_are_the_same_whatever_is_in_memory(opener: Opener, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limpet.limits, "MESSAGE_CACHE_MESSAGES_MAX", 30)
    monkeypatch.setattr(message_cache, "BACKWARD_CHUNK", 7)
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        for _ in range(30):
            talk(session, 1)
            session.window(400, counter=COUNTER)
        seen = {b: session.window(b, counter=COUNTER) for b in (150, 400, 3_000, 50_000)}
        lp._opened.engine.message_cache._cached.clear()
        for budget, window in reversed(seen.items()):
            assert session.window(budget, counter=COUNTER).messages == window.messages


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"budget": 0}, "a budget is a number of tokens"),
        ({"budget": True}, "a budget is a number of tokens"),
        ({"budget": "9"}, "a budget is a number of tokens"),
        ({"budget": 9, "reserve": -1}, "reserve is"),
        ({"budget": 9, "model": "gpt-4o", "counter": "estimate"}, "both given"),
        ({"budget": 9, "min_compaction": 2}, "min_compaction is"),
        ({"budget": 9, "model": 4}, "model is a name"),
        ({"budget": 9, "counter": 5}, "counter is a name"),
        ({"budget": 9, "counter": ""}, "no token counter"),
        ({"budget": 9, "tools": "abc"}, "tools is a list"),
        ({"budget": 9, "tools": ["abc"]}, "tools is a list"),
        ({"budget": 9, "stable": "no"}, "stable is True or False"),
        ({"budget": 9, "counter": len}, "or a tokens.Counter, not builtin"),
    ],
)
def test_what_can_not_be_asked_for(opener: Opener, given: dict[str, Any], said: str):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        with pytest.raises(errors.InvalidRequest, match=said):
            session.window(**given)


def test_async_windows_are_the_same(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 20)
        expected = session.window(500, counter=COUNTER)

    async def look() -> limpet.Window:
        async with await limpet.connect_async(tmp_path / "state.db") as lp:
            session = await lp.sessions.get_session("s")
            return await session.window(500, counter=COUNTER)

    assert asyncio.run(look()) == expected


def test_a_read_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "state.db"
    with limpet.connect(path) as one, limpet.connect(path) as other:
        session = one.sessions.create_session("s", system="Be brief.")
        session.add_messages([user(f"q{n}") for n in range(20)])
        session.window(20_000, counter=COUNTER)
        other.sessions.get_session("s").add_messages([user(f"more {n}") for n in range(600)])
        session.reload()
        store: Any = one._opened.engine.store
        read, calls = store.read, list[int]()

        def failing(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise errors.StoreBusy
            return read(*args, **options)

        monkeypatch.setattr(store, "read", failing)
        with pytest.raises(errors.StoreBusy):
            session.window(20_000, counter=COUNTER)
        assert len(session.window(20_000, counter=COUNTER)) == session.message_count == 621


def test_a_pinned_call_or_result_brings_its_group(opener: Opener):
    with opener() as lp:
        for place in (1, 2):
            session = lp.sessions.create_session(f"s{place}", system="Be brief.")
            said = [user("find it"), asking("c1", "c2"), giving("c2"), giving("c1")]
            pinned = said[place]
            said[place] = Message(
                pinned.role, tool_calls=pinned.tool_calls, tool_results=pinned.tool_results, metadata={"pinned": True}
            )
            session.add_messages(said)
            talk(session, 100)
            window = session.window(700, counter=COUNTER)
            assert [m.role for m in window.messages[:4]] == ["system", "assistant", "tool", "tool"]
            assert window.explain(3).endswith("pinned")
            listed = limpet.StateManager(700, counter=COUNTER).window(list(session.messages))
            assert [m.role for m in listed.messages[:4]] == ["system", "assistant", "tool", "tool"]


@pytest.mark.parametrize("also_results", [False, True])
def test_a_pinned_call_is_followed_until_its_results_are_there(opener: Opener, also_results: bool):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        pin = {"pinned": True}
        calls = asking("c1", "c2").tool_calls
        session.add_message(Message("assistant", tool_calls=calls, metadata=pin))
        assert [m.role for m in session.window(500, counter=COUNTER)] == ["system", "assistant"]
        for call in ("c2", "c1"):
            said = Message(
                "tool", tool_results=[ToolCallResult(call, "found " * 60)], metadata=pin if also_results else {}
            )
            session.add_message(said)
            session.window(1_000, counter=COUNTER)
        talk(session, 100)
        window = session.window(1_500, counter=COUNTER, stable=False)
        assert [m.role for m in window.messages[:4]] == ["system", "assistant", "tool", "tool"]
        listed = limpet.StateManager(1_500, counter=COUNTER).window(list(session.messages))
        assert window.messages == listed.messages, "what is pinned takes its room once"


def test_a_fresh_process_begins_where_a_warm_one_does(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        for number in range(150):
            talk(session, 1, words=number * 7 % 50)
            warm = session.window(900, counter=COUNTER)
            lp._opened.engine.message_cache._cached.clear()
            assert session.window(900, counter=COUNTER).messages == warm.messages


def test_a_large_result_of_now_leaves_room_for_what_came_before(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_message(user("go"))
        for number in range(6):
            size = 3_000 if number == 5 else 10
            session.add_message(asking("c1"))
            result = ToolCallResult("c1", "word " * size)
            session.add_message(Message("tool", tool_results=[result]))
        window = session.window(1_400, counter=COUNTER, stable=False)
        assert window.ledger.messages(Fate.LEFT_OUT) == 0


def test_a_window_of_another_session_is_not_recorded(opener: Opener):
    with opener() as lp:
        one, other = (lp.sessions.create_session(name, system=name) for name in "ab")
        window = one.add_message(user("secret")).window(500, counter=COUNTER)
        for wrong in (window, "window"):
            with pytest.raises(errors.InvalidRequest, match="window"):
                other.add_message(user("x"), window=wrong)  # pyright: ignore[reportArgumentType]
        odd = Message("user", "mine", id="summary_of_mine")
        window = other.add_message(odd).window(500, counter=COUNTER)
        reply = answer("ok")
        other.add_message(reply, window=window)
        assert other.window_of(reply.id).messages == window.messages


def test_the_first_prompt_stays_whatever_its_category(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s")
        session.add_message(Message("system", "the prompt", MessageCategory.DIALOG))
        talk(session, 100)
        assert session.window(400, counter=COUNTER).messages[0].content == "the prompt"


def test_parts_of_unknown_shape_are_left_as_they_are(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_message(Message("assistant", [{"type": ["x"]}, "plain", {"text": 5}]))
        session.add_message(user("and now?"))
        window = session.window(20_000, counter=COUNTER, min_compaction=CompactionLevel.LIGHT)
        assert len(window) == 3
