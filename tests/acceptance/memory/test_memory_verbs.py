"""The verbs of lp.memory, and the worker that an open store brings along."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import errors, limits
from limpet.core.values.memory_records import FactKind, Hit, MemoryResult, Source, TenantUser
from limpet.memory.api import merge_results
from limpet.testing.memory_fakes import Scribe
from tests.acceptance.conversation_steps import Opener, user

ADA = TenantUser("default", "ada")


def scribe() -> Scribe:
    memory = Scribe()
    memory.known[ADA] = "Lives in Oslo."
    return memory


def hit(position: int, text: str) -> Hit:
    return Hit(
        session_id="s", generation=0, number=1, message_id=f"m{position}", position=position,
        role="user", time_us=1, excerpt=text, score=9.0,
    )  # fmt: skip


@pytest.mark.req("A-14", "A-16")
def test_what_is_known_can_be_asked_searched_listed_and_forgotten(opener: Opener):
    memory = scribe()
    lp = opener(memory=memory)
    assert lp.memory.profile("ada").text == "Lives in Oslo."
    assert [one.text for one in lp.memory.search("ada", "oslo")] == ["Lives in Oslo."]
    assert [fact.source.message_id for fact in lp.memory.facts("ada")] == ["m-ada"]
    assert lp.memory.forget("ada").rows == 1
    assert lp.memory.profile("ada").text == ""
    assert memory.forgotten == [ADA]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: m.profile("ada", budget=0),
        lambda m: m.profile("ada", budget="x"),
        lambda m: m.search("ada", ""),
        lambda m: m.search("ada", None),
        lambda m: m.search("ada", "x", limit=0),
        lambda m: m.search("ada", "x", limit=limits.MEMORY_RESULTS_MAX + 1),
        lambda m: m.facts(""),
        lambda m: m.forget(None),
    ],
)
def test_wrong_questions_are_refused(opener: Opener, wrong: Any):
    with pytest.raises(errors.Refused):
        wrong(opener(memory=scribe()).memory)


def test_what_is_known_and_what_was_said_are_found_together(opener: Opener):
    lp = opener(memory=scribe())
    session = lp.sessions.create_session("s", user_id="ada")
    session.add_message({"role": "user", "content": "I moved to Oslo", "id": "m4"})
    lp.sessions.create_session("t", user_id="bo").add_message({"role": "user", "content": "Oslo!"})
    found = lp.memory.search("ada", "oslo", limit=2)
    assert [one.text for one in found] == ["Lives in Oslo.", "I moved to Oslo"]
    assert found[1].source is not None and found[1].source.session_id == "s"


def known(text: str, position: int | None, *, since: int = 1, until: int | None = None) -> MemoryResult:
    source = None if position is None else Source("s", f"m{position}", position)
    return MemoryResult(text=text, score=0.1, time_us=since, kind=FactKind.FACT, source=source, until_us=until)


def test_a_fact_and_its_message_take_one_place():
    facts = [known("Lives in Oslo.", 5), known("Likes tea.", None)]
    found = merge_results("oslo", facts, [hit(3, "Oslo is cold"), hit(5, "I moved to Oslo")])
    assert [one.text for one in found] == ["Likes tea.", "Oslo is cold", "Lives in Oslo."]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_a_message_with_more_of_the_question_speaks_for_itself():
    said = [hit(5, "I moved to Oslo, pistachios make me ill")]
    found = merge_results("pistachios in oslo", [known("Lives in Oslo.", 5)], said)
    assert [one.text for one in found] == [said[0].excerpt]


def test_what_holds_stands_ahead_of_what_it_replaced_wherever_that_is_found():
    facts = [known("Lives in Kobe.", 9, since=7), known("Lives in Oslo.", 5, until=7)]
    for said in ([hit(5, "Oslo")], [hit(5, "Oslo"), hit(9, "Kobe")], []):
        found = merge_results("oslo", facts, said)
        assert [one.text for one in found] == ["Lives in Kobe.", "Lives in Oslo."]


def test_forgetting_reaches_the_engine_the_log_and_the_archive(opener: Opener):
    memory = scribe()
    lp = opener(memory=memory)
    lp.sessions.create_session("s", user_id="ada").add_message({"role": "user", "content": "Oslo"})
    lp.sessions.create_session("t", user_id="bo").add_message({"role": "user", "content": "Oslo"})
    receipt = lp.memory.forget("ada")
    assert (receipt.what, receipt.sessions, receipt.pending) == ("user", 1, False)
    assert lp.memory.facts("ada") == [] and lp.sessions.load_session("s") is None
    assert not lp.archive.search("Oslo", user_id="ada")
    assert len(lp.archive.search("Oslo", user_id="bo")) == 1
    assert lp.admin.verify().ok


@pytest.mark.req("A-15", "A-16")
def test_a_worker_in_the_background_hands_over_what_ends(opener: Opener):
    memory, taken = Scribe(), threading.Event()
    ingest = memory.ingest

    def telling(history: Any, messages: Any) -> None:
        ingest(history, messages)
        taken.set()

    memory.ingest = telling
    lp = opener(memory=memory, worker=True)
    session = lp.sessions.create_session("s", user_id="ada")
    session.add_message(user("I live in Oslo."))
    lp.sessions.end_session("s")
    assert taken.wait(120)
    names = {thread.name for thread in threading.enumerate()}
    assert "limpet-worker" in names
    lp.close()
    assert memory.texts("default", "s#0") == ["I live in Oslo."]


@pytest.mark.req("A-15", "A-16")
@pytest.mark.parametrize("write", ["durable", "deferred"])
def test_closing_hands_over_what_has_just_ended(tmp_path: Path, write: Any):
    prompt = ""
    for _ in range(2):
        with limpet.connect(tmp_path / "a.db", memory=True, worker=True, write=write) as lp:
            session = lp.sessions.create_session(user_id="ada", system="You plan trips.")
            prompt = str(lp.sessions.get_session(session.id).messages[0].content)
            session.add_message(user("I prefer an aisle seat."))
            lp.sessions.end_session(session.id)
    assert "aisle seat" in prompt
    with limpet.connect(tmp_path / "a.db") as lp:
        assert lp.archive.search("aisle", user_id="ada", fresh=False)


def test_awaited_closing_hands_over_what_has_just_ended(tmp_path: Path):
    async def prompt() -> str:
        async with limpet.connect_async(tmp_path / "a.db", memory=True, worker=True) as lp:
            session = await lp.sessions.create_session(user_id="ada", system="You plan trips.")
            await session.add_message(user("I prefer an aisle seat."))
            await lp.sessions.end_session(session.id)
            return str((await session.messages.at(0)).content)

    assert "aisle" not in asyncio.run(prompt())
    assert "aisle seat" in asyncio.run(prompt())


@pytest.mark.parametrize("busy", ["memory", "summarizer"])
def test_what_hangs_does_not_hold_closing_up(opener: Opener, monkeypatch: pytest.MonkeyPatch, busy: str):
    monkeypatch.setattr(limits, "WORKER_FINAL_WORK_S", 0.2)
    monkeypatch.setattr(limits, "WORKER_STOP_S", 0.4)
    begun, over = threading.Event(), threading.Event()

    def hang(*_: Any) -> str:
        begun.set()
        over.wait(120)
        return "x"

    memory = Scribe()
    if busy == "memory":
        monkeypatch.setattr(memory, "ingest", hang)
    policy = limpet.WindowPolicy(budget=400, summary="en")
    lp = opener(memory=memory, summarizer=hang, policy=policy, worker=True)
    session = lp.sessions.create_session("s", user_id="ada")
    session.add_messages([user(f"Question {number}? " * 5) for number in range(40)])
    if busy == "memory":
        lp.sessions.end_session("s")
    assert begun.wait(120)
    (thread,) = (one for one in threading.enumerate() if one.name == "limpet-worker")
    lp.close()
    lp.close()
    assert thread.is_alive(), "closing did not wait for the end of the work"
    over.set()
    thread.join(120)
    assert not thread.is_alive()


def test_no_thread_runs_that_nobody_asked_for(opener: Opener):
    before = threading.active_count()
    lp = opener(memory=Scribe(), summarizer=lambda messages, text: "x")
    lp.sessions.create_session("s")
    assert threading.active_count() == before


def test_the_queue_shows_what_was_given_up_and_has_it_tried_again(opener: Opener):
    memory = Scribe()
    memory.failures = [errors.Refused("never")]
    lp = opener(memory=memory)
    lp.sessions.create_session("s", user_id="ada")
    lp.sessions.add_messages("s", [user("1")])
    lp.sessions.end_session("s")
    lp.worker().run_once()
    (dead,) = lp.memory.queue()
    assert (dead.key, dead.dead, dead.error, dead.tries) == ("s#0@1", True, "refused", 1)
    assert lp.memory.replay() == 1
    lp.worker().run_once()
    assert lp.memory.queue() == []
    assert memory.texts("default", "s#0") == ["1"]


def test_a_worker_works_for_its_tenant_or_for_all(tmp_path: Path):
    memory = Scribe()
    with (
        limpet.connect(tmp_path / "a.db", memory=memory) as ours,
        limpet.connect(tmp_path / "a.db", tenant="globex", memory=memory) as theirs,
    ):
        for lp in (ours, theirs):
            lp.sessions.create_session("s", user_id="ada")
            lp.sessions.add_messages("s", [user("1")])
            lp.sessions.end_session("s")
        ours.worker().run_once()
        assert set(memory.taken) == {("default", "s#0")}
        ours.worker(every_tenant=True).run_once()
        assert set(memory.taken) == {("default", "s#0"), ("globex", "s#0")}
        rows = {(row.tenant, row.task) for row in ours.worker(every_tenant=True).status()}
        assert ("globex", "offload") in rows and ("default", "expire") in rows


def test_idle_sessions_are_ended_by_the_worker_and_then_handed_over(opener: Opener):
    memory = Scribe()
    lp = opener(memory=memory, idle_timeout_s=0)
    lp.sessions.create_session("s", user_id="ada")
    lp.sessions.add_messages("s", [user("1")])
    lp.worker().run_once()
    assert lp.sessions.get_session("s").state.end_reason == "timeout"
    assert memory.texts("default", "s#0") == ["1"]
    later = opener(memory=memory, idle_timeout_s=None)
    later.sessions.create_session("t", user_id="ada")
    later.worker().run_once()
    assert later.sessions.get_session("t").status == "active"


def test_awaited_the_verbs_are_the_same(tmp_path: Path):
    async def scenario() -> None:
        async with limpet.connect_async(tmp_path / "a.db", memory=scribe(), worker=True) as lp:
            assert (await lp.memory.profile("ada")).text == "Lives in Oslo."
            assert [one.text for one in await lp.memory.search("ada", "oslo")] == ["Lives in Oslo."]
            assert len(await lp.memory.facts("ada")) == 1
            assert await lp.memory.queue() == []
            assert await lp.memory.replay() == 0
            assert (await lp.memory.forget("ada")).rows == 1

    asyncio.run(scenario())
    assert "limpet-worker" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.req("A-16", "A-17")
def test_without_an_engine_the_built_in_one_is_opened_when_it_is_asked(tmp_path: Path):
    with limpet.connect(tmp_path / "a.db", memory=True) as lp:
        first = lp.sessions.create_session(user_id="ada", system="You plan trips.")
        assert first.messages[0].content == "You plan trips."
        first.add_message(user("I live in Oslo. I prefer an aisle seat."))
        lp.sessions.end_session(first.id)
        assert lp.worker().run_once().failures == 0
        assert "aisle" in lp.memory.profile("ada").text
        second = lp.sessions.create_session(user_id="ada", system="You plan trips.")
        assert "aisle seat" in str(second.messages[0].content)
        assert "aisle" not in str(lp.sessions.create_session(user_id="bo", system="x").messages[0])
    with limpet.connect(tmp_path / "a.db") as lp:
        assert "aisle" in lp.memory.profile("ada").text


def test_an_engine_that_has_taken_something_is_told_sooner_or_later(tmp_path: Path):
    """Whoever forgets without the engine that learnt is told so; what is pending is done when it is there again."""
    memory, path = Scribe(), tmp_path / "a.db"
    with limpet.connect(path, memory=memory) as lp:
        lp.sessions.create_session("s", user_id="ada").add_message(user("I live in Oslo."))
        lp.sessions.end_session("s")
        assert lp.worker().run_once().failures == 0
        assert memory.taken
    with limpet.connect(path) as lp:
        with pytest.raises(errors.Unavailable) as caught:
            lp.memory.forget("ada")
        assert caught.value.facts["pending"] is True
        assert lp.sessions.load_session("s") is None
    with limpet.connect(path, memory=memory) as lp:
        assert lp.memory.forget("ada").pending is False
    assert memory.forgotten


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": "yes"}, {"memory": 5}, {"model": "gpt-4o"}, {"model": True}, {"embedder": "x"},
        {"summarizer": "x"}, {"idle_timeout_s": -1}, {"idle_timeout_s": "1"}, {"worker": "yes"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_engine_model_or_embedder_is_refused_at_once(tmp_path: Path, wrong: Any):
    with pytest.raises(errors.InvalidRequest):
        limpet.connect(tmp_path / "a.db", **wrong)
    assert list(tmp_path.iterdir()) == []
