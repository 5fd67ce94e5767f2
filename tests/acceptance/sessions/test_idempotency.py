"""One effect, however often a caller asks: by key, and by message id."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from limpet import Limpet, Message, errors
from limpet.sessions.manager import Sessions
from tests.acceptance.conversation_steps import Opener, answer, asking, feed, giving, own_texts, texts, user

VERBS: dict[str, Callable[[Sessions], object]] = {
    "create": lambda s: s.create_session("new", user_id="ada", system="S", key="k").id,
    "create unnamed": lambda s: s.create_session(system="S", key="k").id,
    "add": lambda s: s.get_session("s").add_message({"role": "user", "content": "x"}, key="k").id,
    "add many": lambda s: s.add_messages("s", [user("1"), asking("a"), giving("a")], key="k").id,
    "update": lambda s: s.update_session("s", metadata={"a": 1}, key="k").id,
    "update title": lambda s: s.update_session("s", title="T", drop_metadata=["x"], key="k").id,
    "end": lambda s: s.end_session("s", key="k").id,
    "reset": lambda s: s.reset_session("s", system="S", key="k").id,
    "delete": lambda s: s.delete_session("s", key="k"),
    "continue": lambda s: s.create_continuation_session(s.get_session("s"), key="k").id,
}


@pytest.fixture
def begun(lp: Limpet) -> Limpet:
    lp.sessions.create_session("s", metadata={"x": 1}).add_messages([user("0"), answer("0")])
    return lp


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_repeated_with_its_key_has_one_effect_and_one_answer(begun: Limpet, verb: str):
    before = len(feed(begun))
    first = VERBS[verb](begun.sessions)
    after = feed(begun)
    assert len(after) > before
    for _ in range(3):
        assert VERBS[verb](begun.sessions) == first
    assert feed(begun) == after


@pytest.mark.parametrize("verb", VERBS)
def test_without_a_key_the_same_verb_is_another_command(begun: Limpet, verb: str):
    """The negative control: the key is what makes the difference."""
    VERBS[verb](begun.sessions)
    after = len(feed(begun))
    begun.sessions.get_or_create_session("s").add_message({"role": "user", "content": "x"})
    begun.sessions.get_session("s").add_message({"role": "user", "content": "x"})
    assert len(feed(begun)) >= after + 2


OTHERS = ("create", "add", "update", "end", "delete")


@pytest.mark.parametrize(("first", "second"), [(one, other) for one in VERBS for other in OTHERS if one != other])
def test_a_key_used_for_another_command_is_refused(begun: Limpet, first: str, second: str):
    VERBS[first](begun.sessions)
    before = feed(begun)
    if second == "add" and begun.sessions.load_session("s") is None:
        begun.sessions.create_session("s")
        before = feed(begun)
    with pytest.raises(errors.KeyReused, match="new key"):
        VERBS[second](begun.sessions)
    assert feed(begun) == before


def test_the_same_key_with_other_words_is_another_command(begun: Limpet):
    session = begun.sessions.get_session("s")
    session.add_message({"role": "user", "content": "x"}, key="k")
    for other in ({"role": "user", "content": "y"}, {"role": "assistant", "content": "x"}):
        with pytest.raises(errors.KeyReused):
            session.add_message(other, key="k")
    with pytest.raises(errors.KeyReused):
        begun.sessions.create_session("t").add_message({"role": "user", "content": "x"}, key="k")


@pytest.mark.req("A-9")
def test_a_repeated_result_is_accepted_by_its_key_although_its_call_is_answered(begun: Limpet):
    session = begun.sessions.get_session("s")
    session.add_messages([user(), asking("a", "b")])
    result = {"role": "tool", "tool_call_id": "a", "content": "42"}
    session.add_message(result, key="result-a")
    session.add_message(giving("b"))
    before = feed(begun)
    session.add_message(result, key="result-a")
    assert feed(begun) == before
    with pytest.raises(errors.SecondResult):
        session.add_message(result)


@pytest.mark.req("A-9", "B-3")
def test_the_very_same_message_is_accepted_again_without_effect(begun: Limpet):
    session = begun.sessions.get_session("s")
    question, call, result = user("once"), asking("a"), giving("a")
    for message in (question, call, result):
        session.add_message(message)
    before = feed(begun)
    for message in (result, call, question):
        session.add_message(message)
        begun.sessions.add_messages("s", [message])
    session.add_messages([question, call, result])
    assert feed(begun) == before


@pytest.mark.req("B-3")
def test_another_message_with_a_used_id_is_refused(begun: Limpet):
    session = begun.sessions.get_session("s")
    session.add_message(Message("user", "x", id="m"))
    before = feed(begun)
    for other in (
        [Message("user", "y", id="m")],
        [Message("assistant", "x", id="m")],
        [user("new"), Message("user", "y", id="m")],
        [Message("user", "1", id="twin"), Message("user", "2", id="twin")],
        [Message("user", "x", id="m"), user("and one that is new")],
    ):
        with pytest.raises(errors.DuplicateMessage, match="own id"):
            session.add_messages(other)
    assert feed(begun) == before


def test_a_message_is_known_again_after_its_session_went_on_in_another(opener: Opener):
    lp = opener(max_messages_per_session=2)
    session = lp.sessions.create_session("s")
    given = [user("a"), answer("b"), user("c"), answer("d"), user("e")]
    for message in given:
        session.add_message(message)
    before = feed(lp)
    for message in given:
        lp.sessions.add_messages("s", [message])
    assert feed(lp) == before
    chain = lp.sessions.session_chain("s")
    assert [text for part in chain for text in own_texts(part)] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("backend", ["sqlite"])
def test_keys_outlive_the_process(opener: Opener, verb: str):
    lp = opener()
    lp.sessions.create_session("s", metadata={"x": 1}).add_messages([user("0"), answer("0")])
    first = VERBS[verb](lp.sessions)
    before = feed(lp)
    lp.close()
    again = opener()
    assert VERBS[verb](again.sessions) == first
    assert feed(again) == before


@pytest.mark.parametrize("backend", ["sqlite"])
def test_message_ids_outlive_the_process(opener: Opener):
    message = user("once")
    lp = opener()
    lp.sessions.create_session("s").add_message(message)
    lp.close()
    again = opener()
    again.sessions.add_messages("s", [message])
    assert texts(again.sessions.get_session("s")) == ["once"]


def test_a_refused_command_leaves_its_key_free(begun: Limpet):
    session = begun.sessions.get_session("s")
    with pytest.raises(errors.ResultWithoutCall):
        session.add_message(giving("nobody"), key="k")
    session.add_message(user("now"), key="k")
    assert texts(session)[-1] == "now"


@pytest.mark.parametrize("key", ["", "x" * 257, "a\nb", 5, b"k", "\ud800"])
def test_a_key_is_short_printable_text(begun: Limpet, key: str):
    with pytest.raises(errors.Refused):
        begun.sessions.get_session("s").add_message(user(), key=key)
