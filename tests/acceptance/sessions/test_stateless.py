"""The stateless form: message lists in, message lists out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from limpet import Message, MessageCategory, StateManager, errors
from limpet.core.values.context import Fate
from tests.acceptance.conversation_steps import answer, asking, giving, user

COUNTER = "estimate"


def history(turns: int) -> list[Message]:
    said = [Message("system", "Be brief.")]
    for number in range(turns):
        said += [user(f"q{number} " + "why " * 20), asking("c"), giving("c"), answer("a " * 20)]
    return said


@pytest.mark.req("A-10")
@pytest.mark.req("A-19")
def test_lists_in_lists_out_and_the_input_is_untouched():
    manager, said = StateManager(200, counter=COUNTER), history(30)
    copy = list(said)
    shorter = manager.truncate(said)
    assert said == copy
    assert manager.count(shorter) <= 200 < manager.count(said)
    assert shorter[0] is said[0]
    assert shorter[1].role == "user"
    assert shorter[-1] is said[-1]
    assert manager.truncate(shorter) == shorter, "what fits stays as it is"


def test_what_is_left_begins_with_a_question():
    said = history(30)
    for limit in range(60, 900, 7):
        assert StateManager(limit, counter=COUNTER).truncate(said)[1].role == "user"


@pytest.mark.req("A-11")
def test_the_new_message_counts_before_it_is_added():
    manager = StateManager(120, counter=COUNTER)
    said: list[Message] = []
    for number in range(40):
        new = user(f"question {number} " + "why " * 10)
        fitted = manager.fits(said, new)
        before, said = said, manager.add(said, new)
        assert manager.count(said) <= 120
        assert said[-1] is new
        assert (len(said) == len(before) + 1) == fitted


@pytest.mark.req("A-12")
def test_the_system_prompt_can_go_if_it_may():
    said = history(30)
    kept = StateManager(200, counter=COUNTER).truncate(said)
    gone = StateManager(200, counter=COUNTER, keep_system=False).truncate(said)
    assert kept[0].role == "system"
    assert gone[0].role == "user"


def test_what_may_not_follow_is_refused():
    manager = StateManager(1_000, counter=COUNTER)
    with pytest.raises(errors.OpenCalls):
        manager.add([user(), asking("c")], user())
    with pytest.raises(errors.ResultWithoutCall):
        manager.add([user()], giving("c"))
    with pytest.raises(errors.ContextOverflow):
        manager.add([], user("word " * 5_000))


def test_broken_lists_come_out_whole():
    manager = StateManager(1_000, counter=COUNTER)
    said = [giving("lost"), user(), asking("c1", "c2"), giving("c1"), answer(), user()]
    window = manager.window(said)
    assert [m.role for m in window] == ["user", "assistant", "user"]
    assert [e.fate for e in window.ledger] == [
        Fate.LEFT_OUT, Fate.KEPT, Fate.LEFT_OUT, Fate.LEFT_OUT, Fate.KEPT, Fate.KEPT
    ]  # fmt: skip


def test_dicts_and_reserves():
    manager = StateManager(60, counter=COUNTER)
    said = [{"role": "user", "content": f"number {n}"} for n in range(50)]
    whole, reserved = manager.window(said), manager.window(said, reserve=30)
    assert len(reserved) < len(whole) < 50
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert manager.window(said, tools=tools).overhead > whole.overhead
    assert whole.messages[-1].raw() == said[-1]


@pytest.mark.req("A-13", "A-19")
@pytest.mark.parametrize(
    ("language", "prefix"), [("en", "Summary of previous context: "), ("ja", "前文の要約："), ("zh", "前文摘要：")]
)
def test_earlier_rounds_become_one_summary(language: str, prefix: str):
    manager, said = StateManager(400, counter=COUNTER), history(30)
    said.insert(1, user("We decided that key K-77 must stay."))
    copy = list(said)
    shorter = manager.summarize(said, language=language)
    assert said == copy, "the input is untouched"
    assert manager.count(shorter) <= 400
    assert shorter[0] is said[0]
    assert shorter[1].role == "system" and str(shorter[1].content).startswith(prefix)
    assert shorter[2].role == "user"
    assert shorter[-1] is said[-1]
    assert manager.summarize(said[:5]) == said[:5], "what fits stays as it is"
    assert "K-77 must stay" in str(shorter[1].content)
    again = manager.summarize([*shorter, *history(10)[1:]], language=language)
    assert sum(str(m.content).startswith(prefix) for m in again) == 1, "at most one"
    assert "K-77 must stay" in str(again[1].content), "the summary before went into this one"


@pytest.mark.req("A-13")
def test_a_summary_is_made_by_whoever_is_given():
    manager, said = StateManager(400, counter=COUNTER), history(30)
    said.insert(1, Message("system", "Rules.", MessageCategory.CONTEXT))
    said.insert(2, Message("user", "Never forget this.", metadata={"pinned": True}))
    seen: list[tuple[Sequence[Message], str | None]] = []

    def model(messages: Sequence[Message], before: str | None) -> str:
        seen.append((messages, before))
        return "They asked and were answered."

    shorter = manager.summarize(said, model)
    assert [m.content for m in shorter[:4]] == [
        "Be brief.",
        "Summary of previous context: They asked and were answered.",
        "Rules.",
        "Never forget this.",
    ]
    assert seen[0][1] is None and len(seen[0][0]) == len(said) - len(shorter) + 1
    manager.summarize([*shorter, *history(10)[1:]], model)
    assert seen[1][1] == shorter[1].content
    with pytest.raises(errors.InvalidRequest):
        manager.summarize(said, lambda messages, before: "")
    with pytest.raises(errors.InvalidRequest, match="language"):
        manager.summarize(said, language="fr")


@pytest.mark.req("A-13")
def test_a_list_may_grow_while_it_is_summarised():
    manager, said = StateManager(400, counter=COUNTER), history(30)

    async def growing(messages: Sequence[Message], before: str | None) -> str:
        said.append(user("meanwhile"))
        return "short"

    async def cut(messages: Sequence[Message], before: str | None) -> str:
        del said[3:9]
        return "of what is not there any more"

    shorter = asyncio.run(manager.summarize_async(said, growing))
    assert shorter[-1].content == "meanwhile"
    assert str(shorter[1].content).endswith("short")
    kept = asyncio.run(manager.summarize_async(said, cut))
    assert not [m for m in kept if "not there any more" in str(m.content)], "it was dropped"
    assert kept[-1].content == "meanwhile" and manager.count(kept) <= 400
