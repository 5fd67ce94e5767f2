"""When a session is full and what goes along: bounded, paired, and never a storm."""

from __future__ import annotations

import pytest

from limpet import Message, MessageCategory
from limpet.core.rules import session_rules
from limpet.core.rules import session_rules as rules
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.session_state import SessionState
from tests.unit.session_steps import answer, asking, giving, user


class Conversation:
    """A chain of sessions kept in memory, continued as the engine does it."""

    def __init__(self, max_messages: int, *opening: Message) -> None:
        self.max = max_messages
        self.logs: list[list[e.SessionEvent]] = []
        self.states: list[SessionState] = []
        self._begin(c.CreateSession(session_id="s0", messages=opening), None)

    def _begin(self, command: c.SessionCommand, source: SessionState | None) -> None:
        writings = rules.decide(source, command)
        if source is not None:
            self._fold(writings[0].events, len(self.states) - 1)
        self.logs.append([])
        self._fold(writings[-1].events, len(self.logs) - 1)

    def _fold(self, events: tuple[e.SessionEvent, ...], at: int) -> None:
        for fact in events:
            before = self.states[at] if at < len(self.states) else None
            state = rules.evolve_one(before, fact, time_us=1)
            if at < len(self.states):
                self.states[at] = state
            else:
                self.states.append(state)
            self.logs[at].append(fact)

    def messages(self, at: int = -1) -> list[Message]:
        return [fact.message for fact in self.logs[at] if isinstance(fact, e.MessageAddedEvent)]

    def carry(self, carry: session_rules.CarriedVersions, *messages: Message) -> None:
        state, log = self.states[-1], self.logs[-1]

        def at(version: int) -> Message:
            fact = log[version - 1]
            assert isinstance(fact, e.MessageAddedEvent)
            return fact.message

        since = log[carry.since - 1 :] if carry.since else []
        turn = [fact.message for fact in since if isinstance(fact, e.MessageAddedEvent)]
        opening = session_rules.first_messages(
            state, [at(version) for version in carry.singles], turn, session_rules.transition_marker(state)
        )
        command = c.ContinueSession(
            session_id=state.id, next_id=f"s{len(self.states)}", carried=opening, messages=messages
        )
        self._begin(command, state)

    def add(self, *messages: Message) -> None:
        carry = session_rules.carry_if_due(self.states[-1], messages, self.max)
        if carry is not None:
            self.carry(carry, *messages)
            return
        made = rules.decide(self.states[-1], c.AddMessages(session_id=self.states[-1].id, messages=messages))
        self._fold(made[0].events, len(self.states) - 1)


SYSTEM = Message("system", "S", id="sys")
CONTEXT = Message("user", "doc", MessageCategory.CONTEXT, id="ctx")


def markers(messages: list[Message]) -> list[Message]:
    return [one for one in messages if one.metadata.get("type") == "session_transition"]


@pytest.mark.req("B-13")
def test_full_means_at_the_number_or_over_it():
    talk = Conversation(3, SYSTEM, user())
    assert not session_rules.is_full(talk.states[0], 3)
    talk.add(answer())
    assert session_rules.is_full(talk.states[0], 3)
    assert session_rules.is_full(talk.states[0], 2)


@pytest.mark.req("B-17", "B-14")
def test_the_cut_falls_at_the_next_user_message():
    talk = Conversation(4, SYSTEM, CONTEXT)
    talk.add(user("q1"))
    talk.add(answer("a1"))
    talk.add(user("q2"))
    assert [message.content for message in talk.messages(0)] == ["S", "doc", "q1", "a1"]
    new = talk.messages(1)
    assert [message.content for message in new[:2]] == ["S", "doc"]
    assert [message.id for message in new[:2]] == ["sys", "ctx"]
    assert markers(new) == [new[2]] and new[2].metadata["previous_session"] == "s0"
    assert new[3].content == "q2" and new[3].origin is None
    assert all(message.origin == "s0" for message in new[:3])


@pytest.mark.req("B-17")
def test_a_turn_may_overrun_a_little_before_it_is_cut():
    talk = Conversation(20, user())
    for number in range(21):
        talk.add(answer(str(number)))
    assert len(talk.states) == 1 and talk.states[0].message_count == 22
    talk.add(answer("over"))
    assert len(talk.states) == 2


@pytest.mark.req("B-17")
def test_past_the_grace_the_whole_turn_goes_along():
    talk = Conversation(10, SYSTEM, user("q1"), answer("a1"), user("q2"))
    while len(talk.states) == 1:
        talk.add(answer(f"step {talk.states[0].message_count}"))
    new = [message.content for message in talk.messages(1)]
    assert new[0] == "S" and new[2] == "q2"
    assert "q1" not in new and "a1" not in new
    old = [message.content for message in talk.messages(0)]
    assert new[3:-1] == old[4:]


@pytest.mark.req("B-17", "A-9")
def test_an_open_group_goes_along_whole_and_can_be_answered_there():
    talk = Conversation(4, user("q"), answer(), user("q2"), asking("a", "b"))
    talk.add(giving("b"))
    assert len(talk.states) == 1
    talk.add(giving("a"))
    assert not any(state.open_calls for state in talk.states)
    assert len([m for m in talk.messages(-1) if m.tool_calls]) >= 1


@pytest.mark.req("B-14", "A-9")
def test_continuing_on_request_carries_an_open_group():
    talk = Conversation(100, SYSTEM, user("q"), asking("a", "b"), giving("a"))
    talk.carry(session_rules.carry_on_request(talk.states[0], 100))
    new = talk.states[1]
    assert [call.call_id for call in new.open_calls] == ["b"]
    assert talk.states[0].open_calls == ()
    talk.add(giving("b"))
    assert talk.states[1].open_calls == ()


@pytest.mark.req("B-14")
def test_continuing_on_request_between_turns_carries_system_and_context_only():
    talk = Conversation(100, SYSTEM, user("q"), answer("a"), CONTEXT)
    talk.carry(session_rules.carry_on_request(talk.states[0], 100))
    assert [message.content for message in talk.messages(1)][:2] == ["S", "doc"]
    assert talk.states[1].message_count == 3 and talk.states[1].uncarried_count == 0


@pytest.mark.req("B-20")
def test_index_counts_from_the_root_and_links_name_both_sides():
    talk = Conversation(2, SYSTEM)
    for number in range(20):
        talk.add(user(str(number)))
        talk.add(answer(str(number)))
    assert [state.continuation_index for state in talk.states] == list(range(len(talk.states)))
    assert len(talk.states) > 5
    for before, after in zip(talk.states, talk.states[1:], strict=False):
        assert before.continued_to == after.id and after.continued_from == before.id
        assert before.full_metadata()["continued_to"] == after.id
        assert after.full_metadata()["continuation_index"] == after.continuation_index
        assert after.root_id == "s0"


@pytest.mark.req("B-17")
def test_more_kept_messages_than_a_session_holds_make_no_storm():
    """Copies do not count towards the boundary, or each continuation would be full at birth."""
    talk = Conversation(3, *[Message("system", f"rule {n}") for n in range(10)])
    for number in range(9):
        talk.add(user(str(number)))
    assert len(talk.states) <= 5
    assert all(state.uncarried_count <= 10 for state in talk.states)
    assert all(state.uncarried_count >= 3 for state in talk.states[:-1])


@pytest.mark.req("B-17")
def test_the_marker_is_not_carried_on():
    talk = Conversation(2, SYSTEM)
    for number in range(20):
        talk.add(user(str(number)))
    for at in range(1, len(talk.states)):
        assert [one.metadata["previous_session"] for one in markers(talk.messages(at))] == [talk.states[at - 1].id]
        assert [m.id for m in talk.messages(at)].count("sys") == 1


def groups(talk: Conversation, turns: int) -> None:
    for number in range(turns):
        talk.add(asking(f"c{number}"))
        talk.add(giving(f"c{number}"))


@pytest.mark.req("B-17")
@pytest.mark.parametrize("steps", ["groups", "answers"])
def test_a_turn_longer_than_many_sessions_stays_bounded_and_keeps_its_question(steps: str):
    talk = Conversation(10, SYSTEM, user("old"), asking("old"), giving("old"), answer())
    talk.add(user("THE QUESTION"))
    if steps == "groups":
        groups(talk, 200)
    else:
        for number in range(400):
            talk.add(answer(str(number)))
    assert len(talk.states) > 20
    for at, state in enumerate(talk.states[1:], 1):
        assert state.message_count <= 35, f"session {at} has {state.message_count} messages"
        assert "THE QUESTION" in [message.content for message in talk.messages(at)]
    copied = sum(state.carried for state in talk.states)
    assert copied <= 2 * 400


@pytest.mark.req("B-17", "A-9")
def test_no_result_is_parted_from_its_call_wherever_the_cut_falls():
    for size in range(1, 12):
        talk = Conversation(size, SYSTEM, user())
        for number in range(30):
            talk.add(asking(f"a{number}", f"b{number}"))
            talk.add(giving(f"b{number}"))
            talk.add(giving(f"a{number}"))
            if number % 7 == 6:
                talk.add(user(str(number)))
        for at in range(len(talk.states)):
            waiting: set[str] = set()
            for message in talk.messages(at):
                if message.tool_results:
                    named = {result.tool_call_id for result in message.tool_results}
                    assert named <= waiting, f"orphan result with {size} a session"
                    waiting -= named
                else:
                    assert not waiting
                    waiting = {call.id for call in message.tool_calls}


@pytest.mark.req("B-21")
def test_copies_carry_their_origin_so_that_tokens_count_once():
    talk = Conversation(3, Message("system", "S", tokens=100))
    added = 100
    for number in range(12):
        talk.add(Message("user", str(number), tokens=7))
        added += 7
    assert sum(state.tokens - state.carried_tokens for state in talk.states) == added
    copy = talk.messages(2)[0]
    assert copy.origin == "s0", "a copy of a copy names the first session"
