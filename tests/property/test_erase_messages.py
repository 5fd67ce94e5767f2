"""Messages erased at random: every window stays valid, every message stays counted, nothing of the words stays."""

from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet.testing import providers

POLICY = limpet.WindowPolicy(budget=160, summary="en")


def said(number: int, kind: str) -> list[limpet.Message]:
    """Return a turn of a conversation in which every message has a word of its own."""
    word = f"Kestrel{number:03d}"
    if kind == "plain":
        return [limpet.Message("user", f"We decided on {word} 7", id=f"{word}-u")]
    calls = [limpet.ToolCallRequest(f"c{number}{n}", "look", {"q": word}) for n in range(2)]
    results = [limpet.ToolCallResult(call.id, {"found": word}) for call in calls]
    return [
        limpet.Message("user", f"Find {word}", id=f"{word}-u", metadata={"w": word}),
        limpet.Message("assistant", word, id=f"{word}-a", tool_calls=calls),
        limpet.Message("tool", id=f"{word}-t", tool_results=results),
    ]


def check(session: limpet.Session, budget: int) -> None:
    """Check that a window is one that providers take, and that its ledger has every message once."""
    window = session.window(budget)
    if not session.pending_calls():
        assert providers.check_openai_chat(window.to_openai()) == []
        assert providers.check_anthropic(window.to_anthropic()) == []
    numbers = [n for entry in window.ledger for n in range(entry.first, entry.last + 1)]
    assert numbers == list(range(1, session.message_count + 1))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_is_erased_the_conversation_stays_whole(data: st.DataObject):
    with limpet.connect("volatile:") as lp:
        session = lp.sessions.create_session("a", system="Plan.", policy=POLICY)
        kinds = data.draw(st.lists(st.sampled_from(["plain", "tools"]), min_size=2, max_size=14))
        for number, kind in enumerate(kinds):
            for message in said(number, kind):
                recorded = session.window(400) if message.role == "assistant" else None
                session.add_message(message, window=recorded)
        if data.draw(st.booleans()):
            lp.sessions.fork_session("a", data.draw(st.integers(1, session.message_count)), new_id="f")
        if data.draw(st.booleans()):
            lp.sessions.create_continuation_session(session)
        names = [m.id for m in session.messages if m.role != "system"]
        chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
        for name in chosen:
            lp.admin.erase(session_id="a", message_id=name)
        every = [lp.sessions.get_session(row["id"]) for row in lp.sessions.list_sessions()]
        states = {each.id: each.state for each in every}
        for each in every:
            for budget in (120, 400):
                check(each, budget)
        ids = {message.id for each in every for message in each.messages}
        assert ids.isdisjoint(chosen)
        for name in chosen:
            word = name.split("-", maxsplit=1)[0]
            if all(other in chosen for other in names if other.startswith(word)):
                assert word not in str([msg.to_dict() for e in every for msg in e.messages])
                assert word not in str(list(states.values()))
                assert word not in str(list(lp.events.feed()))
        assert lp.admin.verify().ok
        lp.admin.rebuild()
        again = [lp.sessions.get_session(row["id"]) for row in lp.sessions.list_sessions()]
        assert {each.id: each.state for each in again} == states
