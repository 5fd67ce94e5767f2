"""A session with a window policy: cuts in the log, one rolling summary, trimming, corrections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Message, MessageCategory, WindowPolicy, errors
from limpet.core.values.context import Fate
from limpet.runtime import message_cache
from tests.acceptance.conversation_steps import Opener, answer, asking, feed, giving, user

POLICY = WindowPolicy(budget=1_000, reserve=100)


def talk(session: limpet.Session, turns: int, begin: int = 0) -> None:
    for number in range(begin, begin + turns):
        session.add_message(user(f"Question {number}: what was decided on day {number}? " * 3))
        session.add_message(asking(f"c{number}"))
        result = [limpet.ToolCallResult(f"c{number}", f"row {number} " * 20)]
        session.add_message(Message("tool", tool_results=result))
        session.add_message(answer(f"On day {number} we decided on plan {number}."))


def kinds(lp: limpet.Limpet) -> list[str]:
    return [recorded.kind for recorded in feed(lp)]


@pytest.mark.req("A-12")
def test_a_policy_makes_cuts_and_windows_need_no_budget(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.", policy=POLICY)
        talk(session, 40)
        assert "session.window_cut" in kinds(lp)
        window = session.window()
        assert window.tokens <= window.budget == 1_000
        assert window.overhead == 100
        assert session.policy == POLICY
        assert session.message_count == 161, "a cut deletes nothing"
        assert len(list(session.messages)) == 161
        cut = session.state.cut
        assert cut is not None and 1 < cut.first <= 161
        assert window.messages[1].id == session.messages[cut.first - 1].id
        before = len(feed(lp))
        session.window()
        assert len(feed(lp)) == before, "making a window writes nothing"


def test_old_output_of_tools_is_named_by_its_size_first(opener: Opener):
    with opener() as lp:
        plain = WindowPolicy(budget=1_000, stubs=False)
        whole = lp.sessions.create_session("whole", policy=plain)
        stubbed = lp.sessions.create_session("stubbed", policy=WindowPolicy(budget=1_000))
        lengths = {"whole": 0, "stubbed": 0}
        for turn in range(12):
            for session in (whole, stubbed):
                talk(session, 1, turn)
                lengths[session.id] += len(session.window())
        shortened = stubbed.window().ledger.messages(Fate.SHORTENED)
        assert shortened > 0 == whole.window().ledger.messages(Fate.SHORTENED)
        assert any("characters of output left out" in str(m.tool_results) for m in stubbed.window())
        assert lengths["stubbed"] > lengths["whole"], "so more turns fit"


def test_without_a_policy_a_window_needs_a_budget(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s")
        session.add_message(user())
        with pytest.raises(errors.InvalidRequest, match="needs a budget"):
            session.window()
        session.set_policy(POLICY)
        assert session.window().budget == 1_000
        session.set_policy(None)
        with pytest.raises(errors.InvalidRequest, match="needs a budget"):
            session.window()


def test_the_default_policy_is_kept_with_each_session(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path, policy=POLICY) as lp:
        own = WindowPolicy(budget=500)
        lp.sessions.create_session("default")
        lp.sessions.create_session("own", policy=own)
    with limpet.connect(path, policy=WindowPolicy(budget=77)) as lp:
        assert lp.sessions.get_session("default").policy == POLICY
        assert lp.sessions.get_session("own").policy == own
        assert lp.sessions.reset_session("own").policy == own, "as its metadata does"


def test_a_policy_for_a_session_that_is_long_already(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 100)
        session.set_policy(WindowPolicy(budget=1_000, summary="en"))
        window = session.window()
        assert window.tokens <= 1_000
        assert sum(window.sizes) == session.state.live
        assert window.summary_at == 1
        talk(session, 30, begin=100)
        assert session.window().tokens <= 1_000
        assert session.window().ledger.messages() == session.message_count


def test_a_larger_budget_looks_behind_the_cut_and_a_smaller_one_does_not(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.", policy=POLICY)
        talk(session, 40)
        whole = session.window(100_000)
        assert [m.id for m in whole] == [m.id for m in session.messages]
        small = session.window(400)
        assert small.tokens <= 400
        assert small.ledger.messages() == 161
        other = session.window(counter="estimate")
        assert other.counter.startswith("estimate") and other.tokens <= 1_000


@pytest.mark.req("A-13")
@pytest.mark.parametrize(
    ("language", "prefix"), [("en", "Summary of previous context: "), ("ja", "前文の要約："), ("zh", "前文摘要：")]
)
def test_one_rolling_summary_stands_for_what_was_cut(opener: Opener, language: str, prefix: str):
    with opener() as lp:
        policy = WindowPolicy(budget=1_000, summary=language)
        session = lp.sessions.create_session("s", system="Be brief.", policy=policy)
        talk(session, 60)
        window = session.window()
        assert window.summary_at == 1, "right after the initial system prompt"
        stands = window.messages[1]
        assert stands.role == "system" and str(stands.content).startswith(prefix)
        assert sum(str(m.content).startswith(prefix) for m in window) == 1, "at most one"
        summary, cut = session.state.summary, session.state.cut
        assert summary and cut and summary.last == cut.first - 1
        assert window.ledger.messages(Fate.SUMMARISED) == summary.last - 1, "all but the prompt"
        assert window.ledger.messages(Fate.LEFT_OUT) == 0
        assert kinds(lp).count("session.summarized") > 2, "it was replaced more than once"
        assert len(list(session.messages[1 : summary.last])) == summary.last - 1, "still readable"


@pytest.mark.req("A-13")
def test_a_summary_is_written_while_messages_are_added(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.", policy=POLICY)
        talk(session, 30)
        seen: list[tuple[int, str | None]] = []

        def slow(messages: Sequence[Message], before: str | None) -> str:
            seen.append((len(messages), before))
            lp.sessions.add_messages("s", [user("meanwhile"), answer("noted")])
            return f"They decided {len(seen)} things."

        cut = session.state.cut
        session.summarize(slow)
        assert cut and seen == [(cut.first - 2, None)]
        window = session.window()
        assert window.messages[1].content == "Summary of previous context: They decided 1 things."
        assert window.messages[-1].content == "noted", "what came meanwhile is there"
        talk(session, 30, begin=30)
        session.summarize(slow)
        assert seen[1][1] == "Summary of previous context: They decided 1 things."
        assert str(session.window().messages[1].content).endswith("They decided 2 things.")


@pytest.mark.req("A-13")
def test_whoever_summarises_second_changes_nothing(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", policy=POLICY)
        talk(session, 30)
        late = lp.sessions.get_session("s")

        def overtaken(messages: Sequence[Message], before: str | None) -> str:
            session.summarize(lambda messages, before: "first")
            return "second"

        with pytest.raises(errors.Conflict, match="another caller summarised"):
            late.summarize(overtaken)
        text = lp.sessions.get_session("s").window().messages[0].content
        assert text == "Summary of previous context: first"
        version = session.version
        session.summarize(lambda messages, before: "again")
        assert session.version == version, "nothing was left to summarise"


@pytest.mark.req("A-13")
def test_a_failed_summary_leaves_the_sliding_window(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.", policy=POLICY)
        talk(session, 30)
        before = session.window()

        def failing(messages: Sequence[Message], before: str | None) -> str:
            raise TimeoutError("the model did not answer")

        with pytest.raises(TimeoutError):
            session.summarize(failing)
        for wrong in ("", "   ", 3, None, "x" * 70_000, "word " * 600):
            with pytest.raises(errors.Refused):
                session.summarize(lambda messages, before, wrong=wrong: wrong)  # pyright: ignore[reportArgumentType]
        assert session.window() == before
        session.summarize()
        assert str(session.window().messages[1].content).startswith("Summary of previous context:")


@pytest.mark.req("A-13")
def test_summaries_for_async_callers():
    async def run() -> None:
        async with limpet.connect_async("volatile:", policy=POLICY) as lp:
            session = await lp.sessions.create_session("s", system="Be brief.")
            for number in range(40):
                await session.add_messages([user(f"{number} " * 30), answer(f"{number} " * 30)])

            async def model(messages: Sequence[Message], before: str | None) -> str:
                await asyncio.sleep(0)
                await lp.sessions.add_messages("s", [user("meanwhile")])
                return "They counted."

            await session.summarize(model)
            window = await session.window()
            assert window.messages[1].content == "Summary of previous context: They counted."
            assert window.messages[-1].content == "meanwhile"
            smaller = await session.trimmed(300)
            assert (await smaller.window(300)).tokens <= 300
            assert smaller.state != session.state
            await session.set_policy(None)
            assert session.policy is None

    asyncio.run(run())


@pytest.mark.req("B-22")
def test_trimming_returns_a_new_session(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        talk(session, 30)
        state, window = session.state, session.window(2_000)
        trimmed = session.trimmed(500, summary="en")
        assert trimmed is not session
        assert session.state is state, "the original is as it was"
        assert session.window(2_000) == window
        assert trimmed.id == session.id and trimmed.version > session.version
        small = trimmed.window(500)
        assert small.tokens <= 500
        assert small.ledger.messages(Fate.SUMMARISED) > 0
        assert small.ledger.messages() == session.message_count
        assert [m.id for m in trimmed.messages] == [m.id for m in session.messages], "nothing is lost"
        with pytest.raises(errors.InvalidRequest, match="takes a budget"):
            session.trimmed()
        with pytest.raises(AttributeError):
            state.tokens = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_a_continuation_carries_policy_and_summary(opener: Opener):
    with opener(max_messages_per_session=60) as lp:
        policy = WindowPolicy(budget=1_000, summary="en")
        session = lp.sessions.create_session("s", system="Be brief.", policy=policy)
        talk(session, 40)
        assert session.id != "s"
        assert session.policy == policy
        window = session.window()
        assert window.tokens <= 1_000
        assert window.messages[1].id.startswith("summary_")
        assert sum(window.sizes) == session.state.live


def test_a_turn_that_is_too_long_is_cut_between_its_calls(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.", policy=POLICY)
        session.add_message(user("Do all of it."))
        for number in range(60):
            session.add_messages([asking(f"c{number}"), giving(f"c{number}"), answer("so far " * 9)])
            window = session.window()
            assert window.tokens <= 1_000
            assert "Do all of it." in [m.content for m in window], "the question stays"
        while session.state.live > 700:
            session.add_message(answer("and more " * 9))
        cut = session.state.cut
        assert cut and cut.asked == 2
        before = session.window()
        session.add_message(user("Thanks."))
        assert session.window().messages[: len(before)] == before.messages, "until the next cut"


def test_reported_usage_corrects_an_estimate(opener: Opener):
    with opener() as lp:
        policy = WindowPolicy(budget=2_000, counter="estimate")
        session = lp.sessions.create_session("s", policy=policy)
        session.add_message(user("word " * 500))
        plain = session.window()
        name, size = plain.plain
        session.add_message(answer(), window=plain, usage=size * 2)
        (correction,) = session.state.corrections
        assert (correction.counter, correction.observations) == (name, 1)
        assert correction.factor == pytest.approx(2.0)
        after = session.window()
        assert after.counter == f"{name}*2.000"
        assert after.sizes[0] == pytest.approx(2 * plain.sizes[0], rel=0.01)
        assert session.window_of(session.messages[-1].id).messages == plain.messages
        exact = session.window(model="gpt-4o")
        session.add_message(user(), window=exact, usage=5)
        assert len(session.state.corrections) == 1, "an exact count needs no correction"
        assert lp.sessions.reset_session("s").state.corrections == (correction,)


@pytest.mark.parametrize("usage", [0, -1, 1.5, "9", True])
def test_usage_that_is_none(opener: Opener, usage: Any):
    with opener() as lp:
        session = lp.sessions.create_session("s")
        session.add_message(user())
        window = session.window(500, counter="estimate")
        with pytest.raises(errors.InvalidRequest):
            session.add_message(answer(), window=window, usage=usage)
        with pytest.raises(errors.InvalidRequest, match="without its window"):
            session.add_message(answer(), usage=7)
        assert session.message_count == 1


@pytest.mark.req("B-2")
def test_the_least_important_category_shrinks_first(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_message(Message("system", "Rules: " + "r " * 40, MessageCategory.CONTEXT))
        for number in range(12):
            session.add_message(user(f"{number} " * 20))
            session.add_message(Message("assistant", f"log {number} " * 10, MessageCategory.SYSTEM_OUTPUT))
        order = [MessageCategory.SYSTEM_OUTPUT, MessageCategory.DIALOG, MessageCategory.CONTEXT, MessageCategory.SYSTEM]
        gone: set[MessageCategory] = set()
        for budget in range(1_500, 60, -20):
            window = session.window(budget, stable=False)
            missing = {m.category for m in session.messages if m.id not in {w.id for w in window}}
            gone |= missing
            whole = order[max(map(order.index, missing)) + 1 :] if missing else order
            assert not missing & set(whole)
            low = [m for m in window if m.category is MessageCategory.SYSTEM_OUTPUT]
            if MessageCategory.DIALOG in missing:
                assert len(low) <= 1, "only what fits where no question does"
        assert {MessageCategory.SYSTEM_OUTPUT, MessageCategory.DIALOG} <= gone
        assert MessageCategory.SYSTEM not in gone


@pytest.mark.req("B-2")
def test_categories_may_have_shares(opener: Opener):
    with opener() as lp:
        shares = {"SYSTEM": 0.1, "CONTEXT": 0.3, "DIALOG": 0.4, "SYSTEM_OUTPUT": 0.2}
        policy = WindowPolicy(budget=1_000, shares=shares, stubs=False)
        session = lp.sessions.create_session("s", system="Be brief.", policy=policy)
        for number in range(30):
            session.add_message(Message("system", f"fact {number} " * 9, MessageCategory.CONTEXT))
            session.add_message(user(f"{number} " * 20))
            session.add_message(Message("assistant", f"log {number} " * 9, MessageCategory.SYSTEM_OUTPUT))
        window = session.window(1_000, stable=False)
        assert window.tokens <= 1_000
        used: dict[str, int] = {}
        for message, size in zip(window.messages, window.sizes, strict=True):
            used[message.category.name] = used.get(message.category.name, 0) + size
        assert 100 < used["CONTEXT"] <= 450, "no more than its share and what others left"
        assert used["DIALOG"] > 100 and used["SYSTEM_OUTPUT"] > 50
        only = lp.sessions.create_session("only", policy=policy)
        for number in range(30):
            only.add_message(user(f"{number} " * 20))
        assert sum(only.window(1_000, stable=False).sizes) > 700, "the others' shares are borrowed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": 0}, {"budget": -5}, {"budget": 1.5}, {"budget": True}, {"budget": 100, "reserve": 100},
        {"budget": 100, "reserve": -1}, {"budget": 100, "low": 0.9, "high": 0.5},
        {"budget": 100, "high": 1.5}, {"budget": 100, "low": 0}, {"budget": 100, "low": "half"},
        {"budget": 100, "summary": "fr"}, {"budget": 100, "stubs": 1},
        {"budget": 100, "model": "gpt-4o", "counter": "estimate"}, {"budget": 100, "model": 4},
        {"budget": 100, "shares": {"NOISE": 0.1}}, {"budget": 100, "shares": {"DIALOG": 2}},
        {"budget": 100, "shares": {"DIALOG": 0.6, "SYSTEM": 0.6}}, {"budget": 100, "shares": [1]},
    ],
)  # fmt: skip
def test_a_policy_that_is_none(wrong: dict[str, Any]):
    with pytest.raises(errors.InvalidRequest):
        WindowPolicy(**wrong)


def test_a_policy_that_nobody_can_keep_to(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s")
        for make in (
            lambda: session.set_policy(WindowPolicy(budget=100, counter="no-such")),
            lambda: lp.sessions.create_session("t", policy=WindowPolicy(budget=100, model="no-such")),
            lambda: session.set_policy(WindowPolicy(budget=2)),
            lambda: session.set_policy({"budget": 100}),  # pyright: ignore[reportArgumentType]
        ):
            with pytest.raises(errors.Error):
                make()
        assert session.reload().policy is None
        assert lp.sessions.load_session("t") is None


def test_what_can_never_fit_says_so_and_stays(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.", policy=POLICY)
        session.add_message(user("word " * 3_000))
        with pytest.raises(errors.ContextOverflow) as caught:
            session.window()
        required = caught.value.facts["required"]
        assert isinstance(required, int) and required > 3_000
        session.add_message(answer())
        session.add_message(user("And now?"))
        assert session.window().messages[-1].content == "And now?", "the next turn is fine again"


def test_many_writers_and_one_policy(tmp_path: Path):
    """A cut that needs messages which are decided but not committed yet waits for them."""

    async def run() -> None:
        policy = WindowPolicy(budget=300)
        async with limpet.connect_async(tmp_path / "state.db") as lp:
            session = await lp.sessions.create_session("s", policy=policy)
            said = [lp.sessions.add_messages("s", [user(f"{n} " * 9)]) for n in range(300)]
            await asyncio.gather(*said)
            await session.reload()
            assert session.message_count == 300
            window = await session.window()
            assert sum(window.sizes) == session.state.live <= 300
            assert message_cache.policy_counter(policy, ()).counted.overhead == window.overhead

    asyncio.run(run())
