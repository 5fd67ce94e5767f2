"""Rolling summaries: a model writes them, sentences stand in until it has, and nothing is lost meanwhile."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from limpet import Limpet, Message, Session, WindowPolicy, errors
from limpet.core.windows.summary import SUMMARY_PREFIXES

POLICY = WindowPolicy(budget=1_200, summary="en")


def talk(session: Session, first: int, count: int) -> None:
    """So many questions with their answers, each with a number of its own."""
    for number in range(first, first + count):
        session.add_message({"role": "user", "content": f"Book flight SK{4000 + number} for Ada Lovelace."})
        session.add_message({"role": "assistant", "content": f"Done; the reference is REF-{number:04d}."})


class Writer:
    """Writes all it is shown into one text; remembers what that was."""

    name = "a model"

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], str | None]] = []

    def __call__(self, messages: Sequence[Message], before: str | None) -> str:
        self.seen.append(([str(message.content) for message in messages], before))
        first, last = messages[0].content, messages[-1].content
        return f"{len(messages)} messages, from {first!r} to {last!r}. Before: {(before or '')[:60]}"


def covered(session: Session) -> None:
    """Every message is in the window, under the summary, or left out with a reason; the summary stands once."""
    window, state = session.window(), session.state
    numbers = [n for entry in window.ledger for n in range(entry.first, entry.last + 1)]
    assert sorted(numbers) == list(range(1, state.message_count + 1))
    assert all(entry.rule for entry in window.ledger)
    told = [m for m in window.messages if str(m.content).startswith(tuple(SUMMARY_PREFIXES.values()))]
    assert len(told) <= 1
    assert window.tokens <= window.budget


@pytest.mark.req("A-13")
def test_sentences_stand_in_until_a_model_has_written_the_summary(lp: Limpet):
    session = lp.sessions.create_session(policy=POLICY)
    talk(session, 0, 60)
    extract = session.state.summary
    assert extract is not None and extract.author == "" and extract.last > 0
    covered(session)
    writer = Writer()
    session.summarize(writer)
    written = session.state.summary
    assert written is not None
    assert (written.author, written.first, written.last) == ("a model", 1, extract.last)
    assert len(writer.seen[0][0]) == extract.last and writer.seen[0][1] is None
    assert written.recall is not None and 0 <= written.recall < 1
    covered(session)
    session.summarize(writer)
    assert len(writer.seen) == 1, "there is nothing new to write about"


@pytest.mark.req("A-13")
def test_the_next_summary_takes_the_last_one_in_and_replaces_it(lp: Limpet):
    session = lp.sessions.create_session(policy=POLICY)
    talk(session, 0, 60)
    writer = Writer()
    session.summarize(writer)
    first = session.state.summary
    talk(session, 60, 60)
    between = session.state.summary
    assert first and between and between.author == "" and between.last > first.last
    session.summarize(writer)
    second = session.state.summary
    assert second and (second.first, second.last, second.author) == (1, between.last, "a model")
    shown, before = writer.seen[1]
    assert before == first.text and len(shown) == second.last - first.last
    covered(session)
    again = lp.sessions.get_session(session.id)
    assert again.state.summary == second and again.state.written == second


@pytest.mark.req("A-13")
def test_what_is_added_while_a_model_writes_stays(lp: Limpet):
    session = lp.sessions.create_session(policy=POLICY)
    talk(session, 0, 60)
    planned = session.state.summary
    assert planned is not None

    def slow(messages: Sequence[Message], before: str | None) -> str:
        lp.sessions.get_session(session.id).add_message({"role": "user", "content": "One more, SK9999."})
        return f"{len(messages)} messages about bookings"

    session.summarize(slow)
    now = lp.sessions.get_session(session.id)
    assert now.state.summary and now.state.summary.last == planned.last
    assert str(now.window().messages[-1].content) == "One more, SK9999."
    covered(now)


@pytest.mark.req("A-13")
def test_a_summary_of_a_range_that_has_grown_changes_nothing(lp: Limpet):
    session = lp.sessions.create_session(policy=POLICY)
    talk(session, 0, 60)

    def overtaken(messages: Sequence[Message], before: str | None) -> str:
        talk(lp.sessions.get_session(session.id), 60, 60)
        return "too late"

    with pytest.raises(errors.Conflict):
        session.summarize(overtaken)
    now = lp.sessions.get_session(session.id)
    assert now.state.summary and now.state.summary.author == ""
    covered(now)
    writer = Writer()
    now.summarize(writer)
    assert now.state.summary.author == "a model"
    assert len(writer.seen[0][0]) == now.state.summary.last


@pytest.mark.req("A-13")
@pytest.mark.parametrize("failure", [RuntimeError("the model is away"), TimeoutError(), errors.Unavailable("no")])
def test_a_failing_model_leaves_the_sentences(lp: Limpet, failure: Exception):
    session = lp.sessions.create_session(policy=POLICY)
    talk(session, 0, 60)
    before = session.state

    def fails(messages: Sequence[Message], text: str | None) -> str:
        raise failure

    with pytest.raises(type(failure)):
        session.summarize(fails)
    assert session.state == before == lp.sessions.get_session(session.id).state
    covered(session)


@pytest.mark.req("A-13")
def test_a_summary_that_has_lost_too_much_is_refused(lp: Limpet):
    policy = WindowPolicy(budget=1_200, summary="en", recall=0.5)
    session = lp.sessions.create_session(policy=policy)
    talk(session, 0, 60)
    before = session.state
    with pytest.raises(errors.SummaryRefused) as refused:
        session.summarize(lambda messages, text: "They booked some flights.")
    assert refused.value.facts["recall"] == 0.0 and "ada lovelace" in str(refused.value.facts["missing"])
    assert lp.sessions.get_session(session.id).state == before
    marks = re.compile(r"SK\d+|REF-\d+")
    session.summarize(
        lambda messages, text: (
            "For Ada Lovelace: " + ", ".join(mark for m in messages for mark in marks.findall(str(m.content)))
        )
    )
    assert session.state.summary and (session.state.summary.recall or 0) >= 0.5


@pytest.mark.req("A-13")
@pytest.mark.parametrize(("language", "prefix"), SUMMARY_PREFIXES.items())
def test_each_language_has_its_beginning(lp: Limpet, language: str, prefix: str):
    session = lp.sessions.create_session(policy=WindowPolicy(budget=1_200, summary=language))
    talk(session, 0, 60)
    assert session.state.summary and session.state.summary.text.startswith(prefix)
    session.summarize(Writer(), language=language)
    assert session.state.summary.text.startswith(prefix)
    covered(session)


@pytest.mark.parametrize("recall", [-0.1, 1.1, "half", None, True])
def test_a_threshold_is_a_part(recall: object):
    with pytest.raises(errors.InvalidRequest):
        WindowPolicy(budget=1_200, recall=recall)  # pyright: ignore[reportArgumentType]
