"""Every conversation that ended reaches long-term memory: whole, once, whatever fails on the way."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

from limpet import Limpet, errors, limits
from limpet.core.rules.session_rules import is_fully_offloaded
from limpet.core.values.events import MessageAddedEvent, SessionOffloadedEvent
from limpet.core.values.memory_records import TenantUser
from limpet.jobs.offload import OffloadQueue, OffloadTask
from limpet.jobs.worker import Worker
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings
from limpet.testing.faulty import FaultyStore
from limpet.testing.memory_fakes import Scribe
from tests.acceptance.conversation_steps import Opener, answer, asking, engine_of, giving, neighbour, user
from tests.unit.job_fixtures import Clock, engine_over


def offload(lp: Limpet, memory: Scribe) -> None:
    engine = engine_of(lp)
    Worker(engine, [OffloadTask(engine, memory)]).run_once()


def talk(lp: Limpet, session_id: str, *texts: str, user_id: str | None = "ada") -> None:
    lp.sessions.get_or_create_session(session_id, user_id=user_id)
    lp.sessions.add_messages(session_id, [user(text) for text in texts])


@pytest.mark.req("A-14", "A-15", "A-21")
@pytest.mark.parametrize(
    ("language", "said"), [("en", "I live in Oslo."), ("ja", "オスロに住んでいます。"), ("zh", "我住在奥斯陆。")]
)
def test_ended_reset_and_timed_out_conversations_are_handed_over_whole(lp: Limpet, language: str, said: str):
    for session_id in ("ended", "reset", "idle", "open"):
        talk(lp, session_id, said, "two")
    lp.sessions.end_session("ended")
    lp.sessions.reset_session("reset", system="again")
    lp.sessions.add_messages("reset", [user("of the next generation")])
    lp.sessions.add_messages("open", [user("still talking")])
    idle = lp.sessions.get_session("idle")
    lp.sessions.expire(idle.state.active_us, idle_s=0)
    assert lp.sessions.get_session("ended").status == "ended"
    memory = Scribe()
    offload(lp, memory)
    assert memory.texts("default", "ended#0") == [said, "two"]
    assert memory.texts("default", "reset#0") == [said, "two"]
    assert memory.texts("default", "idle#0") == [said, "two"]
    history, _ = memory.taken["default", "ended#0"]
    assert (history.user, history.messages) == (TenantUser("default", "ada"), 2)
    assert not any("open" in key or "#1" in key for key in memory.offered)


@pytest.mark.req("A-15")
def test_the_log_says_that_it_was_taken_and_nothing_else_changes(lp: Limpet):
    for session_id in ("a", "b"):
        talk(lp, session_id, "1")
    lp.sessions.end_session("a")
    lp.sessions.add_messages("b", [user("2")])
    before = list(lp.sessions.list_sessions())
    memory = Scribe()
    offload(lp, memory)
    found = [one.event for one in lp.events.feed() if one.kind == "session.offloaded"]
    assert found == [SessionOffloadedEvent(0, "scribe")]
    after = list(lp.sessions.list_sessions())
    assert [row["id"] for row in after] == [row["id"] for row in before] == ["b", "a"]
    assert [row["last_active"] for row in after] == [row["last_active"] for row in before]
    assert is_fully_offloaded(lp.sessions.get_session("a").state)
    offload(lp, memory)
    assert memory.offered == ["a#0"]


def test_a_long_history_comes_in_chunks_with_its_numbers(lp: Limpet):
    count = 2 * limits.READ_CHUNK + 9
    lp.sessions.create_session("s", user_id="ada", system="S")
    lp.sessions.add_messages("s", [user(str(n)) for n in range(count)])
    lp.sessions.end_session("s")
    memory = Scribe()
    offload(lp, memory)
    said = memory.taken["default", "s#0"][1]
    assert [one.number for one in said] == list(range(1, count + 2))
    assert [one.message.content for one in said] == ["S", *map(str, range(count))]
    assert max(memory.chunks) <= limits.READ_CHUNK
    positions = {one.position: one.message.id for one in said}
    told = {one.position: one.event for one in lp.events.feed()}
    for position, message_id in positions.items():
        event = told[position]
        assert isinstance(event, MessageAddedEvent) and event.message.id == message_id


def test_only_what_somebody_owns_and_nobody_deleted_is_handed_over(lp: Limpet):
    talk(lp, "nobody", "1", user_id=None)
    talk(lp, "deleted", "1")
    talk(lp, "ended, then deleted", "1")
    lp.sessions.end_session("nobody")
    lp.sessions.delete_session("deleted")
    lp.sessions.end_session("ended, then deleted")
    lp.sessions.delete_session("ended, then deleted")
    lp.sessions.create_session("empty", user_id="ada")
    lp.sessions.end_session("empty")
    memory = Scribe()
    offload(lp, memory)
    assert memory.offered == []
    assert is_fully_offloaded(lp.sessions.get_session("nobody").state)
    assert is_fully_offloaded(lp.sessions.get_session("empty").state)


def test_every_generation_is_handed_over_once(lp: Limpet):
    talk(lp, "s", "first")
    lp.sessions.end_session("s")
    lp.sessions.reset_session("s")
    lp.sessions.add_messages("s", [user("second")])
    lp.sessions.reset_session("s")
    lp.sessions.add_messages("s", [user("third")])
    assert not is_fully_offloaded(lp.sessions.get_session("s").state)
    memory = Scribe()
    offload(lp, memory)
    assert memory.offered == ["s#0", "s#1"]
    assert memory.texts("default", "s#1") == ["second"]
    assert is_fully_offloaded(lp.sessions.get_session("s").state), "what goes on is not waited for"
    lp.sessions.end_session("s")
    assert not is_fully_offloaded(lp.sessions.get_session("s").state)
    offload(lp, memory)
    assert memory.texts("default", "s#2") == ["third"]
    lp.sessions.delete_session("s")
    talk(lp, "s", "under an old name")
    lp.sessions.end_session("s")
    offload(lp, memory)
    assert memory.offered[3:] == ["s#3"]
    assert memory.texts("default", "s#3") == ["under an old name"]


def test_of_a_continued_conversation_each_part_is_handed_over_and_nothing_twice(opener: Opener):
    lp = opener(max_messages_per_session=6)
    session = lp.sessions.create_session("s", user_id="ada", system="S")
    for number in range(20):
        session.add_messages([user(f"q{number}"), answer(f"a{number}")])
    chain = [part.id for part in lp.sessions.session_chain("s")]
    assert len(chain) > 2
    lp.sessions.end_session("s")
    memory = Scribe()
    offload(lp, memory)
    assert sorted(memory.offered) == sorted(f"{part}#0" for part in chain)
    texts = [text for part in chain for text in memory.texts("default", f"{part}#0")]
    asked = [text for text in texts if str(text)[0] in "qa"]
    assert asked == [f"{user}{n}" for n in range(20) for user in "qa"]
    assert texts.count("S") == 1
    states = [part.state for part in lp.sessions.session_chain("s")]
    assert all(map(is_fully_offloaded, states))


def test_a_fork_and_a_rewound_session_are_handed_over_as_they_are(lp: Limpet):
    talk(lp, "s", "1", "2", "3")
    lp.sessions.rewind_session("s", 2)
    lp.sessions.add_messages("s", [user("other")])
    lp.sessions.fork_session("s", 1, new_id="f")
    lp.sessions.add_messages("f", [user("forked")])
    lp.sessions.end_session("s")
    lp.sessions.end_session("f")
    memory = Scribe()
    offload(lp, memory)
    assert memory.texts("default", "s#0") == ["1", "2", "other"]
    assert memory.texts("default", "f#0") == ["1", "forked"]


def test_calls_and_results_go_along(lp: Limpet):
    talk(lp, "s", "1")
    lp.sessions.add_messages("s", [asking("a"), giving("a"), answer("done")])
    lp.sessions.end_session("s")
    memory = Scribe()
    offload(lp, memory)
    said = memory.taken["default", "s#0"][1]
    assert [one.message.role for one in said] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.req("A-15")
def test_what_fails_is_tried_again_and_does_not_block_the_others():
    clock = Clock()
    engine = engine_over(clock=clock)
    memory = Scribe()
    memory.fails_for["bad#0"] = errors.Unavailable("down")
    sessions = _sessions(engine)
    for session_id in ("bad", "good"):
        sessions.create_session(session_id, user_id="ada")
        sessions.add_messages(session_id, [user("1")])
        sessions.end_session(session_id)
    working = Worker(engine, [OffloadTask(engine, memory)], monotonic=clock.monotonic)
    working.run_once()
    assert memory.offered == ["bad#0", "good#0"]
    (waiting,) = OffloadQueue(engine.store, "default").queued()
    assert (waiting.key, waiting.tries, waiting.error, waiting.dead) == ("bad#0@1", 1, "unavailable", False)  # fmt: skip
    working.run_once()
    assert len(memory.offered) == 2, "it is too early"
    for _ in range(limits.OFFLOAD_TRIES_MAX):
        clock.pass_(limits.BACKOFF_S_MAX)
        working.run_once()
    assert memory.offered.count("bad#0") == limits.OFFLOAD_TRIES_MAX
    (dead,) = OffloadQueue(engine.store, "default").queued()
    assert dead.dead and dead.key == "bad#0@1"
    assert working.status()[0].told == {"cursor": 7, "lag": 0, "waiting": 0, "dead": 1}
    assert not is_fully_offloaded(sessions.get_session("bad").state)
    sessions.create_session("later", user_id="ada")
    sessions.add_messages("later", [user("1")])
    sessions.end_session("later")
    working.run_once()
    assert ("default", "later#0") in memory.taken
    memory.fails_for.clear()
    assert OffloadQueue(engine.store, "default").replay("nobody#0") == 0
    assert OffloadQueue(engine.store, "default").replay("bad#0@1") == 1
    working.run_once()
    assert memory.texts("default", "bad#0") == ["1"]
    assert OffloadQueue(engine.store, "default").queued() == []


def test_what_an_engine_will_never_take_is_given_up_at_once_even_if_it_ends_again(lp: Limpet):
    talk(lp, "s", "1")
    lp.sessions.end_session("s")
    memory = Scribe()
    memory.failures = [errors.Refused("never")]
    offload(lp, memory)
    lp.sessions.reset_session("s")
    offload(lp, memory)
    assert memory.offered == ["s#0"]
    (dead,) = OffloadQueue(engine_of(lp).store, "default").queued()
    assert dead.dead


def test_tenants_and_users_stay_apart(lp: Limpet):
    theirs = neighbour(lp, "globex")
    for sessions, user_id in ((lp.sessions, "ada"), (lp.sessions, "bob"), (theirs, "ada")):
        sessions.create_session(user_id, user_id=user_id)
        sessions.add_messages(user_id, [user(f"I am {user_id}")])
        sessions.end_session(user_id)
    memory = Scribe()
    offload(lp, memory)
    whose = {(key, history.user) for key, (history, _) in memory.taken.items()}
    assert whose == {
        (("default", "ada#0"), TenantUser("default", "ada")),
        (("default", "bob#0"), TenantUser("default", "bob")),
        (("globex", "ada#0"), TenantUser("globex", "ada")),
    }


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fail_at", range(1, 10))
def test_a_store_that_fails_anywhere_costs_a_retry_and_no_history(fail_at: int, before: bool):
    clock = Clock()
    engine = engine_over(clock=clock)
    sessions = _sessions(engine)
    for session_id in ("a", "b"):
        sessions.create_session(session_id, user_id="ada")
        sessions.add_messages(session_id, [user("1")])
        sessions.end_session(session_id)
    faulty = FaultyStore(engine.store, fail_at=fail_at, before=before)
    engine.store = faulty
    memory = Scribe()
    working = Worker(engine, [OffloadTask(engine, memory)], monotonic=clock.monotonic)
    for _ in range(10):
        with contextlib.suppress(errors.Unavailable):
            working.run_once()
        clock.pass_(limits.LEASE_S + limits.BACKOFF_S_MAX)
    assert {key for _, key in memory.taken} == {"a#0", "b#0"}
    assert OffloadQueue(engine.store, "default").queued() == []


def _sessions(engine: Engine) -> Sessions:
    return Sessions(SessionService(engine, Settings(), factory=engine.factory))


def test_many_conversations_and_two_workers_hand_each_over_once(lp: Limpet):
    dice = random.Random(7)
    for number in range(30):
        talk(lp, f"s{number}", *map(str, range(dice.randrange(1, 4))))
        if dice.random() < 0.7:
            lp.sessions.end_session(f"s{number}")
    memory = Scribe()
    engine = engine_of(lp)
    workers = [Worker(engine, [OffloadTask(engine, memory)], name=f"w{n}") for n in range(2)]
    threads = [threading.Thread(target=one.run_once) for one in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    offload(lp, memory)
    ended = {str(row["id"]) for row in lp.sessions.list_sessions() if row["status"] == "ended"}
    assert sorted(memory.offered) == sorted(f"{one}#0" for one in ended)


def test_no_other_conversation_ever_has_the_same_key(opener: Opener):
    memory, keys = Scribe(), list[str]()
    lp = opener(memory=memory)

    def over(session_id: str) -> None:
        lp.sessions.end_session(session_id)
        lp.worker().run_once()
        keys.append(memory.taken["default", f"{session_id}#0"][0].key)

    talk(lp, "source", "0")
    for text in ("I live in Oslo.", "I live in Rome."):
        talk(lp, "s", text)
        over("s")
        assert memory.texts("default", "s#0") == [text]
        lp.admin.erase(session_id="s")
    for text in ("I like tea.", "I like milk."):
        lp.sessions.fork_session("source", new_id="f")
        talk(lp, "f", text)
        over("f")
        assert memory.texts("default", "f#0") == ["0", text]
        lp.admin.erase(session_id="f")
    assert len(set(keys)) == 4
