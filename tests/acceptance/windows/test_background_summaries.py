"""Summaries written in the background: where messages are out, once, of what they say, and later if it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from limpet import Limpet, Message, Session, WindowPolicy, errors, limits
from limpet.core.values.context import Fate
from limpet.jobs.summaries import SummaryTask
from limpet.jobs.worker import Worker
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings
from tests.acceptance.conversation_steps import Opener, answer, engine_of, neighbour, user
from tests.unit.job_fixtures import Clock, engine_over

POLICY = WindowPolicy(budget=400, summary="en")


def filled(session: Session, rounds: int = 30, word: str = "round") -> Session:
    for number in range(rounds):
        session.add_messages([user(f"{word} {number}?"), answer(f"{word} {number}. " * 8)])
    return session


class Writer:
    """A summariser that says which messages it was given, and fails as often as it is told to."""

    name = "writer"

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls: list[tuple[list[str], str | None]] = []
        self.during: Callable[[], None] = lambda: None

    def __call__(self, messages: Sequence[Message], before: str | None) -> str:
        self.calls.append(([str(message.content) for message in messages], before))
        self.during()
        if self.failures:
            raise self.failures.pop(0)
        return f"{len(messages)} messages, the last: {str(messages[-1].content)[:20]}"


def work(lp: Limpet, writer: Writer) -> Worker:
    made = Worker(engine_of(lp), [SummaryTask(engine_of(lp), writer)])
    made.run_once()
    return made


@pytest.mark.req("A-13")
@pytest.mark.parametrize(
    ("language", "prefix"), [("en", "Summary of previous context:"), ("ja", "前文の要約："), ("zh", "前文摘要：")]
)
def test_what_cuts_took_out_is_summarised_in_the_background(lp: Limpet, language: str, prefix: str):
    policy = WindowPolicy(budget=400, summary=language)
    session = filled(lp.sessions.create_session("s", system="S", policy=policy))
    stand_in = session.state.summary
    assert stand_in is not None and not stand_in.author
    writer = Writer()
    work(lp, writer)
    written = session.reload().state.summary
    assert written is not None and written.author == "writer"
    assert written.text.startswith(prefix)
    assert session.state.cut is not None
    assert (written.first, written.last) == (1, session.state.cut.first - 1)
    window = session.window()
    assert [m.content for m in window.messages if "messages, the last" in str(m.content)] == [written.text]  # fmt: skip
    assert len(writer.calls) == 1
    work(lp, writer)
    assert len(writer.calls) == 1, "nothing is left to be written"


def test_the_next_summary_takes_the_one_before_and_stands_for_all(lp: Limpet):
    session = filled(lp.sessions.create_session("s", policy=POLICY))
    writer = Writer()
    work(lp, writer)
    first = session.reload().state.written
    filled(session, 20, "more")
    work(lp, writer)
    second = session.reload().state.written
    assert first is not None and second is not None
    assert writer.calls[1][1] == first.text
    assert not set(writer.calls[0][0]) & set(writer.calls[1][0])
    assert (second.first, second.last > first.last) == (first.first, True)
    kinds = [event.kind for event in lp.events.feed()]
    assert kinds.count("session.summarized") >= 2
    assert [m for m in session.window().messages if "messages, the last" in str(m.content)][1:] == []  # fmt: skip


def test_without_a_policy_a_cut_on_demand_is_summarised_too(lp: Limpet):
    session = filled(lp.sessions.create_session("s"))
    session.trimmed(400)
    work(lp, Writer())
    assert session.reload().state.written is not None


def test_what_grew_while_it_was_read_is_read_again_and_what_came_meanwhile_stays(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    engine = engine_over(clock=clock)
    sessions = Sessions(SessionService(engine, Settings(), factory=engine.factory))
    session = filled(sessions.create_session("s", policy=POLICY))
    writer = Writer()
    writer.during = lambda: None if len(writer.calls) > 1 else _grow(sessions)
    working = Worker(engine, [SummaryTask(engine, writer)], monotonic=clock.monotonic)
    working.run_once()
    working.run_once()
    assert len(writer.calls) == 1, "what is paid for is not asked for again at once"
    assert not [one for one in caplog.records if one.name == "limpet.summaries"]
    clock.pass_(limits.BACKOFF_S + 1)
    working.run_once()
    state = session.reload().state
    assert len(writer.calls) == 2
    assert state.written is not None and state.cut is not None
    assert state.written.last == state.cut.first - 1
    assert set(writer.calls[0][0]) < set(writer.calls[1][0]), "the first text stands for too little"
    assert f"{len(writer.calls[1][0])} messages" in state.written.text
    assert session.window().messages[-1].content == session.messages[-1].content


def _grow(sessions: Sessions) -> None:
    filled(sessions.get_session("s"), 20, "meanwhile")


def test_a_summariser_that_knows_its_language_writes_in_it(lp: Limpet):
    class Zh(Writer):
        language = "zh"

    session = filled(lp.sessions.create_session("s", policy=POLICY))
    work(lp, Zh())
    written = session.reload().state.written
    assert written is not None and written.text.startswith("前文摘要：")


def test_conflicts_that_go_on_are_not_paid_for_without_end(lp: Limpet):
    filled(lp.sessions.create_session("s", policy=POLICY))
    writer = Writer(*[errors.Conflict("busy")] * 50)
    made = work(lp, writer)
    assert len(writer.calls) == 1
    assert made.status()[0].told["waiting"] == made.status()[0].told["failing"] == 1


def test_whoever_is_second_changes_nothing_and_is_not_punished(lp: Limpet):
    session = filled(lp.sessions.create_session("s", policy=POLICY))
    writer = Writer()

    def faster() -> None:
        writer.during = lambda: None
        lp.sessions.get_session("s").summarize(lambda messages, before: "the faster one")

    writer.during = faster
    made = work(lp, writer)
    written = session.reload().state.written
    assert written is not None and "the faster one" in written.text
    assert made.status()[0].told["failing"] == made.status()[0].told["waiting"] == 0


@pytest.mark.req("A-13")
@pytest.mark.parametrize("failure", [errors.Unavailable("down"), ValueError("x"), errors.Refused("no")])
def test_a_failing_model_leaves_the_stand_in_and_is_asked_again_later(failure: Exception):
    clock = Clock()
    engine = engine_over(clock=clock)
    sessions = Sessions(SessionService(engine, Settings(), factory=engine.factory))
    session = filled(sessions.create_session("s", policy=POLICY))
    writer = Writer(failure, failure)
    working = Worker(engine, [SummaryTask(engine, writer)], monotonic=clock.monotonic)
    working.run_once()
    working.run_once()
    assert len(writer.calls) == 1, "it is too early"
    state = session.reload().state
    assert state.summary is not None and state.written is None
    assert session.window().tokens <= 400
    told = working.status()[0].told
    assert (told["waiting"], told["failing"]) == (1, 1)
    clock.pass_(limits.BACKOFF_S)
    working.run_once()
    clock.pass_(limits.BACKOFF_S * 2)
    working.run_once()
    assert len(writer.calls) == 3
    assert session.reload().state.written is not None
    assert working.status()[0].told["waiting"] == 0


def test_a_summary_that_has_lost_too_much_is_refused_and_tried_again(lp: Limpet):
    policy = WindowPolicy(budget=400, summary="en", recall=0.9)
    session = filled(lp.sessions.create_session("s", policy=policy))
    session.add_message(user("Order 4711 for Ada."))
    made = work(lp, Writer())
    assert session.reload().state.written is None
    (row,) = made.status()
    assert (row.told["waiting"], row.told["failing"]) == (1, 1)


def test_a_session_that_ended_meanwhile_needs_none(lp: Limpet):
    filled(lp.sessions.create_session("s", policy=POLICY))
    writer = Writer()

    def end() -> None:
        lp.sessions.end_session("s")

    writer.during = end
    made = work(lp, writer)
    assert made.status()[0].told["waiting"] == 0
    filled(lp.sessions.create_session("t", policy=POLICY))
    lp.sessions.end_session("t")
    calls = len(writer.calls)
    work(lp, writer)
    assert len(writer.calls) == calls


def test_two_workers_write_one_summary(lp: Limpet):
    session = filled(lp.sessions.create_session("s", policy=POLICY))
    writers = [Writer(), Writer()]
    threads = [threading.Thread(target=work, args=(lp, writer)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(writer.calls) for writer in writers) == 1
    assert session.reload().state.written is not None


def test_of_two_users_and_two_tenants_none_reads_of_another(lp: Limpet):
    theirs = neighbour(lp, "globex")
    for sessions, session_id, word in (
        (lp.sessions, "a", "apples"), (lp.sessions, "b", "bananas"), (theirs, "a", "cherries"),
    ):  # fmt: skip
        filled(sessions.create_session(session_id, user_id=session_id, policy=POLICY), word=word)
    writer = Writer()
    work(lp, writer)
    assert len(writer.calls) == 3
    for texts, _ in writer.calls:
        assert len({text.split()[0] for text in texts}) == 1
    found = [lp.sessions.get_session("a"), lp.sessions.get_session("b"), theirs.get_session("a")]
    for session, word in zip(found, ("apples", "bananas", "cherries"), strict=True):
        assert session.state.written is not None and word in session.state.written.text


def test_an_open_store_brings_it_along(opener: Opener):
    lp = opener(summarizer=Writer(), policy=POLICY)
    session = filled(lp.sessions.create_session("s"))
    lp.worker().run_once()
    assert session.reload().state.written is not None


@pytest.mark.req("A-13")
def test_what_a_summary_stands_for_can_be_had_again(lp: Limpet):
    session = filled(lp.sessions.create_session("s", policy=POLICY))
    work(lp, Writer())
    session.reload()
    summary = session.state.written
    assert summary is not None
    assert session.expand() == session.messages[: summary.last]
    assert session.expand(summary) == session.expand(summary.first, summary.last)
    assert session.expand(3) == session.messages[2:3]
    assert [m.content for m in session.expand(2, 4)] == [m.content for m in session.messages[1:4]]
    for wrong in ((0, 1), (4, 2), (1, 10_000), ("x", None)):
        with pytest.raises(errors.InvalidRequest):
            session.expand(*wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.NotFound):
        lp.sessions.create_session("t").expand()


@pytest.mark.req("A-13")
def test_every_message_is_in_the_window_under_the_summary_or_left_out_with_a_reason(lp: Limpet):
    session = filled(lp.sessions.create_session("s", system="S", policy=POLICY), 50)
    for _ in range(2):
        work(lp, Writer())
        window = session.reload().window()
        summary = session.state.summary
        assert summary is not None
        assert window.ledger.messages() == session.message_count
        under = {message.id for message in session.expand(summary)}
        shown = {message.id for message in window.messages}
        for number, message in enumerate(session.messages, start=1):
            entry = window.ledger.entry_of(number)
            assert entry is not None and entry.rule, number
            if entry.fate is Fate.SUMMARISED:
                assert message.id in under and message.id not in shown
            elif entry.fate is not Fate.LEFT_OUT:
                assert message.id in shown
        filled(session, 10, "later")
