"""What each command makes happen to a session, and what the rules forbid. No store, no clock."""

from __future__ import annotations

from typing import Any

import pytest

from limpet import Message, MessageCategory, errors, limits
from limpet.core.rules import session_rules
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from tests.unit.session_steps import answer, apply, asking, began, giving, user


def kinds(events: list[e.SessionEvent]) -> list[str]:
    return [fact.kind.removeprefix("session.") for fact in events]


def add(*messages: Message, id_: str = "s") -> c.AddMessages:
    return c.AddMessages(session_id=id_, messages=messages)


def test_deciding_changes_nothing_it_was_given():
    states = began(user())
    before = states["s"]
    copy = SessionState(**{name: getattr(before, name) for name in before.__struct_fields__})
    session_rules.decide(before, add(answer()))
    assert before == copy


def test_the_same_command_on_the_same_state_decides_the_same():
    state, command = began(user())["s"], add(asking("a"))
    assert session_rules.decide(state, command) == session_rules.decide(state, command)


@pytest.mark.req("B-6")
def test_create_begins_a_session_with_its_messages():
    states = began(Message("system", "Be brief."), user("hello"))
    state = states["s"]
    assert (state.status, state.user_id, state.generation) == (SessionStatus.ACTIVE, "ada", 0)
    assert (state.version, state.message_count, state.preview) == (3, 2, "hello")
    assert state.created_at == state.last_active == "1970-01-01T00:00:00.000001+00:00"


def test_create_refuses_a_taken_id_and_or_get_accepts_it():
    states = began()
    with pytest.raises(errors.DuplicateSession, match="get_or_create_session"):
        apply(states, c.CreateSession(session_id="s"))
    assert apply(states, c.CreateSession(session_id="s", or_get=True)) == []


def test_or_get_on_an_ended_session_begins_its_next_generation():
    states = began(user())
    apply(states, c.EndSession(session_id="s"))
    made = apply(states, c.CreateSession(session_id="s", or_get=True, messages=(user("new"),)))
    assert kinds(made) == ["reset", "message_added"]
    assert (states["s"].generation, states["s"].message_count) == (1, 1)
    assert states["s"].status is SessionStatus.ACTIVE


def test_a_deleted_id_can_be_created_again_and_is_another_session():
    states = began(user())
    apply(states, c.EndSession(session_id="s", reason=EndReason.DELETED))
    apply(states, c.CreateSession(session_id="s", user_id="bob"))
    state = states["s"]
    assert (state.user_id, state.message_count, state.generation) == ("bob", 0, 1)
    assert state.version == 4


@pytest.mark.req("B-8", "A-4")
def test_adding_moves_activity_count_tokens_and_heads():
    states = began()
    made = apply(states, add(user("hello"), Message("assistant", "x", tokens=7)), time_us=99)
    state = states["s"]
    assert kinds(made) == ["message_added", "message_added"]
    assert (state.message_count, state.full_metadata()["message_count"]) == (2, 2)
    assert state.last_active == "1970-01-01T00:00:00.000099+00:00"
    assert state.created_at == "1970-01-01T00:00:00.000001+00:00"
    assert state.tokens == 2 + 7
    assert (state.turn, state.turn_ordinal, state.ordinal, state.version) == (2, 1, 2, 3)


def test_who_counted_the_tokens_is_recorded():
    made = apply(began(), add(user("hello"), Message("assistant", "x", tokens=7)))
    counters = [(fact.tokens, fact.counter) for fact in made if isinstance(fact, e.MessageAddedEvent)]
    assert counters == [(2, "estimate-1"), (7, "given")]


@pytest.mark.req("A-9")
def test_one_bad_message_refuses_the_whole_batch():
    states = began()
    with pytest.raises(errors.ResultWithoutCall):
        apply(states, add(user(), asking("a"), giving("b")))
    assert states["s"].version == 1


def test_kept_versions_are_those_of_system_and_context():
    states = began(Message("system", "S"))
    apply(states, add(user(), Message("user", "doc", MessageCategory.CONTEXT), answer()))
    assert states["s"].kept == (2, 4)


@pytest.mark.parametrize(
    "command",
    [
        add(user()),
        c.UpdateSession(session_id="s", title="T"),
        c.EndSession(session_id="s"),
        c.ResetSession(session_id="s"),
        c.ContinueSession(session_id="s", next_id="t"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_every_command_on_no_session_says_so_and_how_to_go_on(command: c.SessionCommand):
    deleted = began()
    apply(deleted, c.EndSession(session_id="s", reason=EndReason.DELETED))
    for state in (None, deleted["s"]):
        with pytest.raises(errors.SessionNotFound, match="get_or_create_session"):
            session_rules.decide(state, command)


@pytest.mark.req("A-21")
def test_an_ended_session_takes_no_messages_and_says_what_does():
    states = began(user())
    apply(states, c.EndSession(session_id="s"))
    for command in (add(user()), c.ContinueSession(session_id="s", next_id="t")):
        with pytest.raises(errors.SessionEnded, match="reset_session"):
            session_rules.decide(states["s"], command)


def test_ending_twice_makes_one_event_and_deleting_an_ended_one_still_deletes():
    states = began()
    assert kinds(apply(states, c.EndSession(session_id="s"))) == ["ended"]
    assert apply(states, c.EndSession(session_id="s")) == []
    made = apply(states, c.EndSession(session_id="s", reason=EndReason.DELETED))
    assert kinds(made) == ["ended"]
    assert states["s"].status is SessionStatus.DELETED


def test_a_timeout_ends_only_what_was_idle():
    states = began()
    apply(states, add(user()), time_us=100)
    late = c.EndSession(session_id="s", reason=EndReason.TIMEOUT, idle_since_us=99)
    assert apply(states, late) == []
    due = c.EndSession(session_id="s", reason=EndReason.TIMEOUT, idle_since_us=100)
    assert kinds(apply(states, due)) == ["ended"]
    assert states["s"].end_reason is EndReason.TIMEOUT


@pytest.mark.req("A-21")
def test_a_reset_keeps_id_owner_and_metadata_and_empties_the_rest():
    states = began(user(), asking("a"))
    apply(states, c.UpdateSession(session_id="s", title="T", set_metadata={"k": 1}))
    before = states["s"]
    apply(states, c.ResetSession(session_id="s", messages=(Message("system", "S"),)), time_us=50)
    state = states["s"]
    assert (state.id, state.user_id, state.title, state.metadata) == ("s", "ada", "T", {"k": 1})
    assert (state.generation, state.message_count, state.open_calls) == (1, 1, ())
    assert state.ordinal == before.ordinal + 1
    assert state.began == before.version + 1


def test_update_sets_drops_and_leaves_the_rest():
    states = began()
    apply(states, c.UpdateSession(session_id="s", title="T", set_metadata={"a": 1, "b": 2}))
    apply(states, c.UpdateSession(session_id="s", set_metadata={"a": 3}, drop_metadata=("b", "z")))
    assert (states["s"].title, states["s"].metadata) == ("T", {"a": 3})
    apply(states, c.UpdateSession(session_id="s", title=None))
    assert (states["s"].title, states["s"].metadata) == (None, {"a": 3})


def test_an_update_that_changes_nothing_makes_no_event():
    states = began()
    update = c.UpdateSession(session_id="s", title="T", set_metadata={"a": [1]})
    assert len(apply(states, update)) == 1
    assert apply(states, update) == []
    assert apply(states, c.UpdateSession(session_id="s")) == []
    assert apply(states, c.UpdateSession(session_id="s", drop_metadata=("z",))) == []


@pytest.mark.parametrize("name", ["message_count", "continued_from", "continued_to", "continuation_index"])
def test_derived_metadata_can_not_be_set(name: str):
    with pytest.raises(errors.InvalidRequest, match=name):
        apply({}, c.CreateSession(session_id="s", metadata={name: 1}))
    with pytest.raises(errors.InvalidRequest, match=name):
        apply(began(), c.UpdateSession(session_id="s", set_metadata={name: 1}))


@pytest.mark.parametrize("title", [5, b"x", ["x"], {"a": 1}])
def test_a_title_that_is_not_text_never_reaches_the_log(title: Any):
    """Refused, or turned into text; a number in a title once made a session unreadable."""
    for command in (c.CreateSession(session_id="t", title=title), c.UpdateSession(session_id="s", title=title)):
        states = began()
        try:
            made = apply(states, command)
        except errors.Refused:
            continue
        titles = [getattr(fact, "title", "") for fact in made]
        assert all(isinstance(one, str) for one in titles)


def test_titles_and_metadata_have_their_limits():
    long = "é" * (limits.TITLE_BYTES_MAX // 2 + 1)
    big = {"k": "x" * limits.METADATA_BYTES_MAX}
    for command in (
        c.CreateSession(session_id="t", title=long),
        c.UpdateSession(session_id="s", title=long),
        c.CreateSession(session_id="t", metadata=big),
        c.UpdateSession(session_id="s", set_metadata=big),
    ):
        with pytest.raises(errors.TooLarge):
            apply(began(), command)
    apply(began(), c.UpdateSession(session_id="s", title="x" * limits.TITLE_BYTES_MAX))


def test_metadata_can_not_grow_past_its_limit_in_small_steps():
    states = began()
    half = "x" * (limits.METADATA_BYTES_MAX // 2)
    apply(states, c.UpdateSession(session_id="s", set_metadata={"a": half}))
    with pytest.raises(errors.TooLarge):
        apply(states, c.UpdateSession(session_id="s", set_metadata={"b": half}))


def test_a_log_that_does_not_begin_with_a_creation_is_corrupt():
    with pytest.raises(errors.Corrupt):
        session_rules.evolve_one(None, e.SessionResetEvent(), time_us=0)


def test_folding_the_events_anew_gives_the_same_state():
    states = began(Message("system", "S"), user())
    log: list[e.SessionEvent] = [*apply({}, c.CreateSession(session_id="s", user_id="ada", messages=()))]
    states = {}
    log = apply(states, c.CreateSession(session_id="s", messages=(user(),)), time_us=1)
    for command in (
        add(asking("a", "b")),
        add(giving("b")),
        c.UpdateSession(session_id="s", set_metadata={"k": 1}),
        c.ResetSession(session_id="s"),
        add(user(), answer()),
        c.EndSession(session_id="s"),
    ):
        log += apply(states, command, time_us=1)
    state: SessionState | None = None
    for version, fact in enumerate(log, 1):
        state = session_rules.evolve(state, e.RecordedEvent(fact, "s", version, version, 1))
    assert state == states["s"]
