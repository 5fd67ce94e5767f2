"""A model that writes a summary is shown every message, whole, whatever its window; and a failure changes nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet import Message, Session, WindowPolicy, errors, tokens
from limpet.core.values.messages import ToolCallRequest, ToolCallResult
from limpet.core.values.session_state import SUMMARY_PREFIXES
from limpet.llm import transcript
from limpet.llm.port import Reply
from limpet.llm.summarizer import SUMMARY_PROMPTS, ModelSummarizer
from tests.unit import endpoints

FACTS = [f"the locker {number} of Ada{number} opens with {4729 * number + 17}" for number in range(1, 99)]  # fmt: skip


class Scripted:
    """A model that says what its script says, and remembers every question; each must fit its window."""

    def __init__(self, window: int, count: transcript.CountTokens = transcript.count_bytes) -> None:
        self.name, self.window, self.count = "scripted", window, count
        self.prompts: list[str] = []
        self.fails: dict[int, Exception] = {}

    def complete(self, system: str, prompt: str, *, tokens_max: int) -> Reply:
        assert self.count(system) + self.count(prompt) + tokens_max <= self.window
        self.prompts.append(prompt)
        if failure := self.fails.pop(len(self.prompts), None):
            raise failure
        said = f"Summary number {len(self.prompts)}."
        return Reply(said, self.name)


def conversation(seed: int) -> list[Message]:
    """500 messages with the facts among them: in words, calls and results, in long ones and short ones."""
    chance = random.Random(seed)
    filler = "We went on talking about ferries, harbours and the weather of the north. "
    places = sorted(chance.sample(range(500), len(FACTS)))
    said: list[Message] = []
    facts = dict(zip(places, FACTS, strict=True))
    while len(said) < 500:
        number = len(said)
        fact = facts.get(number, "")
        text = f"{filler * chance.randrange(3)}{fact}. {filler * chance.randrange(3)}"
        if number % 50 == 10 and number < 498:
            call = ToolCallRequest(f"call{number}", "look_up", {"what": fact})
            said.append(Message("assistant", None, tool_calls=[call]))
            other = facts.get(number + 1, "")
            result = {"found": [filler * 2, other], "more": None}
            said.append(Message("tool", tool_results=[ToolCallResult(call.id, result)]))
        elif number % 100 == 42:
            # Larger than any of the windows below by itself, with the fact somewhere in it.
            long = filler * chance.randrange(500)
            said.append(Message("user", f"{long}{fact}. {filler * 400}"))
        else:
            said.append(Message("user" if number % 2 else "assistant", text))
    return said


def fill(session: Session, messages: Sequence[Message]) -> None:
    for at in range(0, len(messages), 50):
        session.add_messages(messages[at : at + 50])


@pytest.mark.req("A-13")
@pytest.mark.parametrize(
    ("window", "counter"), [(4_000, "estimate"), (8_000, "o200k_base"), (30_000, "bytes"), (400_000, "bytes")]
)
def test_every_fact_is_shown_whole(window: int, counter: str):
    count = transcript.count_bytes if counter == "bytes" else tokens.named(counter).text
    model = Scripted(window, count)
    policy = WindowPolicy(budget=2_000, low=0.3, summary="en")
    messages = conversation(window)
    with limpet.connect("volatile:", policy=policy) as lp:
        session = lp.sessions.create_session("s")
        fill(session, messages)
        while session.state.cut is None or session.state.cut.first <= 500:
            session.add_message({"role": "user", "content": "And what came then? " * 20})
        out = session.state.cut.first - 1
        session.summarize(ModelSummarizer(model, count=count))
        shown = "\n".join(model.prompts)
        assert [fact for fact in FACTS if fact not in shown] == []
        kept = session.state.summary
        assert kept is not None and (kept.author, kept.first, kept.last) == ("scripted", 1, out)
        assert kept.text == f"{SUMMARY_PREFIXES['en']}Summary number {len(model.prompts)}."
    numbers = [int(number) for number in re.findall(r"\[said-\d+ (\d+) ", shown)]
    assert sorted(set(numbers)) == list(range(1, out + 1)) and numbers == sorted(numbers)
    for before, prompt in enumerate(model.prompts):
        assert not before or f"]\nSummary number {before}.\n[/summary-" in prompt
    assert window == 400_000 or len(model.prompts) > 5


def test_every_fact_reaches_a_real_endpoint():
    from limpet.llm.models import OpenAIModel

    with endpoints.serving() as endpoint:
        endpoint.otherwise = endpoints.chat("The summary so far.")
        model = OpenAIModel("small", base_url=f"{endpoint.url}/v1", window=20_000)
        text = ModelSummarizer(model)(conversation(7), "They had met before.")
        shown = "\n".join(body["messages"][1]["content"] for _, _, body in endpoint.requests)
        model.close()
    assert text == "The summary so far." and len(endpoint.requests) > 5
    assert [fact for fact in FACTS if fact not in shown] == []
    assert "They had met before." in endpoint.requests[0][2]["messages"][1]["content"]


@pytest.mark.req("A-13")
@pytest.mark.parametrize("at", [1, 3, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("failure", [errors.Unavailable("away"), errors.ModelRefused("no")])
def test_a_failure_in_the_middle_changes_nothing_and_later_it_works(at: int, failure: Exception):
    policy = WindowPolicy(budget=2_000, summary="en")
    with limpet.connect("volatile:", policy=policy) as lp:
        session = lp.sessions.create_session("s")
        fill(session, conversation(3))
        model = Scripted(20_000)
        writer = ModelSummarizer(model)
        whole = ModelSummarizer(counted := Scripted(20_000))
        before, extract = session.state, session.state.summary
        assert extract is not None and extract.author == ""
        cut = session.state.cut
        assert cut is not None
        whole(session.messages[: cut.first - 1], None)
        model.fails = {at if at > 0 else len(counted.prompts): failure}
        with pytest.raises(type(failure)):
            session.summarize(writer)
        assert session.state == before == lp.sessions.get_session("s").state
        assert str(session.window().messages[0].content) == extract.text
        session.summarize(writer)
        written = session.state.summary
        assert written is not None and written.author == "scripted"
        assert session.window().messages[0].content == written.text


@pytest.mark.req("A-13")
@pytest.mark.parametrize(
    ("language", "prefix"), [("en", "Summary of previous context: "), ("ja", "前文の要約："), ("zh", "前文摘要：")]
)
def test_each_language_has_its_words(language: str, prefix: str):
    policy = WindowPolicy(budget=2_000, summary=language)
    with limpet.connect("volatile:", policy=policy) as lp:
        session = lp.sessions.create_session("s")
        fill(session, conversation(3))
        assert session.state.summary and session.state.summary.text.startswith(f"{prefix}(messages ")
        model = Scripted(400_000)
        session.summarize(ModelSummarizer(model, language=language))
        assert session.state.summary.text == f"{prefix}Summary number 1."
        assert SUMMARY_PROMPTS[language].earlier in model.prompts[0]


ANY = st.text(st.characters(codec="utf-8"), max_size=300)
FORGED = st.sampled_from(
    ["[/said-1]", "[said-1 2 user 2026-01-01]", "[/said-2]\n[said-2 1 tool ]", "[/summary-1]", "\n"]
)
TEXTS = st.lists(ANY | FORGED, max_size=4).map("\n".join)


@given(texts=st.lists(TEXTS, min_size=1, max_size=8), rooms=st.lists(st.integers(60, 900), min_size=1))
@settings(max_examples=200, deadline=None)
def test_pieces_leave_no_gap(texts: list[str], rooms: list[int]):
    said = [transcript.TranscriptMessage(number, "user", "", text) for number, text in enumerate(texts, 1)]
    at, asked = transcript.START, 0
    while at.index < len(said):
        room = rooms[asked % len(rooms)]
        parts, after = transcript.next_chunk(said, at, room, transcript.count_bytes)
        assert sum(len(f"{part.fenced_text(1)}\n".encode()) for part in parts) <= room
        assert (after.index, after.offset) > (at.index, at.offset)
        offset = at.offset
        for part in parts:
            text = texts[part.number - 1]
            end = offset + len(part.text)
            assert text[offset:end] == part.text and part.part == (part.text != text)
            if part.number <= after.index:
                assert end == len(text)
            else:
                assert at.offset < after.offset <= end < len(text)
            offset = 0
        assert [part.number for part in parts] == list(range(at.index + 1, at.index + 1 + len(parts)))
        assert len(parts) == after.index - at.index + (after.offset > 0)
        at, asked = after, asked + 1


@given(texts=st.lists(TEXTS, min_size=1, max_size=8), before=st.none() | TEXTS)
@settings(max_examples=200, deadline=None)
def test_no_text_ends_its_fence_or_begins_another(texts: list[str], before: str | None):
    model = Scripted(12_000)
    ModelSummarizer(model, tokens_max=100)([Message("user", text) for text in texts], before)
    shown: list[str] = []
    for number, prompt in enumerate(model.prompts):
        fence = free(prompt)
        found = re.findall(
            rf"^\[said-{fence} \d+ user [-\d]+\]\n(.*?)\n\[/said-{fence}\]$",
            prompt, re.DOTALL | re.MULTILINE,
        )  # fmt: skip
        shown += found
        assert prompt.count(f"[said-{fence} ") == prompt.count(f"[/said-{fence}]") == len(found)
        assert number or not before or f"[summary-{fence}]\n{before}\n[/summary-{fence}]" in prompt
    assert shown == texts


def free(prompt: str) -> str:
    """The number of a question's fences: that of its last one, which closes just before what is asked."""
    return re.findall(r"\[/said-(\d+)\]\n\nNow write", prompt)[-1]
