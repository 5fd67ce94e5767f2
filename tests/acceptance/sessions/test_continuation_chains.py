"""Sessions that go on in another: automatic, linked, counted once, and followed by appends."""

from __future__ import annotations

import itertools

import pytest

from limpet import Limpet, Message, MessageCategory, Session, errors
from limpet.errors import NoCurrentSession
from tests.acceptance.conversation_steps import Opener, answer, asking, feed, giving, own_texts, texts, user


def talk(session: Session, turns: int, start: int = 0) -> list[str]:
    said: list[str] = []
    for number in range(start, start + turns):
        session.add_message(user(f"q{number}"))
        session.add_message(answer(f"a{number}"))
        said += [f"q{number}", f"a{number}"]
    return said


@pytest.mark.req("B-13")
def test_the_boundary_is_at_the_number_or_over_it(opener: Opener):
    lp = opener(max_messages_per_session=3)
    assert lp.sessions.check_session_boundary() is False, "without a session there is none"
    session = lp.sessions.create_session("s")
    session.add_messages([user(), answer()])
    assert lp.sessions.check_session_boundary(session) is False
    session.add_message(answer())
    assert lp.sessions.check_session_boundary(session) is True
    assert lp.sessions.check_session_boundary() is True, "the current one is meant"
    assert lp.sessions.check_session_boundary(None) is True
    lp.sessions.create_session("other")
    assert lp.sessions.check_session_boundary() is False


@pytest.mark.req("B-14", "B-20")
def test_a_continuation_takes_system_and_context_adds_a_marker_and_both_name_each_other(lp: Limpet):
    session = lp.sessions.create_session("s", user_id="ada", system="S", title="T", metadata={"k": 1})
    session.add_messages([user("q"), Message("user", "doc", MessageCategory.CONTEXT), answer("a")])
    new = lp.sessions.create_continuation_session(session)
    assert lp.sessions.current_session is new
    assert (new.user_id, new.title, new.metadata["k"]) == ("ada", "T", 1)
    content = list(new.messages)
    assert [message.content for message in content[:2]] == ["S", "doc"]
    assert content[2].metadata["type"] == "session_transition" and "s" in str(content[2].content)
    assert len(content) == 3
    source = session.reload()
    assert source.metadata["continued_to"] == new.id
    assert new.metadata["continued_from"] == "s"
    assert new.metadata["continuation_index"] == 1
    assert texts(source) == ["S", "q", "doc", "a"], "the source keeps its messages"


@pytest.mark.req("B-14")
def test_without_a_source_a_continuation_is_refused(lp: Limpet):
    with pytest.raises(NoCurrentSession) as caught:
        lp.sessions.create_continuation_session()
    assert isinstance(caught.value, ValueError)
    current = lp.sessions.create_session("s")
    assert lp.sessions.create_continuation_session().metadata["continued_from"] == current.id


@pytest.mark.req("B-17", "B-20", "B-21")
def test_an_addition_at_the_boundary_continues_by_itself(opener: Opener):
    lp = opener(max_messages_per_session=6)
    session = lp.sessions.create_session("root", system="S")
    expected = talk(session, 20)
    assert session.id != "root", "the handle is where the conversation is"
    chain = lp.sessions.session_chain("root")
    assert len(chain) > 3
    assert [part.state.continuation_index for part in chain] == list(range(len(chain)))
    assert [text for part in chain for text in own_texts(part)] == ["S", *expected]
    for before, after in itertools.pairwise(chain):
        assert before.metadata["continued_to"] == after.id
        assert after.metadata["continued_from"] == before.id
        assert texts(after)[0] == "S"
        assert before.state.uncarried_count <= 7
    feed(lp)


@pytest.mark.req("B-21")
def test_a_chain_is_the_same_from_wherever_it_is_walked(opener: Opener):
    lp = opener(max_messages_per_session=4)
    talk(lp.sessions.create_session("root", system="S"), 12)
    whole = [part.id for part in lp.sessions.session_chain("root")]
    assert len(set(whole)) == len(whole) > 3
    for id_ in whole:
        assert [part.id for part in lp.sessions.session_chain(id_)] == whole


@pytest.mark.req("B-21")
def test_tokens_of_a_chain_count_what_was_carried_once(opener: Opener):
    lp = opener(max_messages_per_session=4)
    session = lp.sessions.create_session("root")
    session.add_message(Message("system", "S", tokens=1000))
    for number in range(30):
        session.add_message(Message("user" if number % 2 else "assistant", "x", tokens=10))
    assert len(lp.sessions.session_chain("root")) > 3
    for part in lp.sessions.session_chain("root"):
        assert lp.sessions.chain_tokens(part.id) == 1000 + 30 * 10
    assert session.total_tokens >= 1000, "a session itself counts what it holds"


@pytest.mark.req("B-17")
def test_appends_follow_the_chain_and_reading_an_id_gives_that_very_session(opener: Opener):
    lp = opener(max_messages_per_session=4)
    talk(lp.sessions.create_session("root"), 5)
    tail = lp.sessions.session_chain("root")[-1]
    before = texts(lp.sessions.get_session("root"))
    after = lp.sessions.add_messages("root", [answer("follows")])
    assert after.id == tail.id and texts(after)[-1] == "follows"
    stale = lp.sessions.get_session("root")
    stale.add_message(answer("as well"))
    assert stale.id == tail.id
    assert texts(lp.sessions.get_session("root")) == before
    loaded = lp.sessions.load_session("root")
    assert loaded is not None and loaded.id == "root"
    assert lp.sessions.get_or_create_session("root").id == "root"


@pytest.mark.req("B-17", "A-9")
def test_an_open_group_moves_over_whole(opener: Opener):
    lp = opener(max_messages_per_session=10)
    session = lp.sessions.create_session("root", system="S")
    session.add_messages([user("old"), answer("old")])
    session.add_message(user("THE QUESTION"))
    session.add_messages([answer(str(n)) for n in range(7)])
    session.add_message(asking("a", "b", "c"))
    session.add_message(giving("b"))
    assert session.id == "root" or "THE QUESTION" in texts(session)
    new = lp.sessions.create_continuation_session(session)
    assert {call.call_id for call in new.pending_calls()} == {"a", "c"}
    assert new.pending_calls()[0].args == {"of": "a"}
    assert "THE QUESTION" in texts(new) and "old" not in texts(new)
    lp.sessions.add_messages("root", [giving("a", "c")])
    new.reload()
    assert new.pending_calls() == []
    new.add_message(answer("done"))


@pytest.mark.req("B-17")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_more_context_than_a_session_holds_makes_no_storm(opener: Opener, size: int):
    lp = opener(max_messages_per_session=size)
    session = lp.sessions.create_session("root")
    for number in range(8):
        session.add_message(Message("system", f"rule {number}"))
    before = len(feed(lp))
    talk(session, 5)
    chain = lp.sessions.session_chain("root")
    assert len(chain) <= 8 + 10
    assert len(feed(lp)) - before <= (8 + 4) * 10 + 20
    kept = {"rule 0", "rule 7"}
    assert kept <= set(texts(chain[-1]))


@pytest.mark.req("B-20")
def test_several_continuations_of_one_source_are_all_known(lp: Limpet):
    session = lp.sessions.create_session("s", system="S")
    one = lp.sessions.create_continuation_session(session)
    other = lp.sessions.create_continuation_session(lp.sessions.get_session("s"))
    source = lp.sessions.get_session("s")
    assert source.state.continuations == (one.id, other.id)
    assert source.metadata["continued_to"] == other.id
    assert one.metadata["continuation_index"] == other.metadata["continuation_index"] == 1
    assert [part.id for part in lp.sessions.session_chain(one.id)] == ["s", one.id]
    assert [part.id for part in lp.sessions.session_chain(other.id)] == ["s", other.id]


@pytest.mark.req("B-17")
def test_source_and_continuation_come_about_in_one_step(opener: Opener):
    lp = opener(max_messages_per_session=2)
    session = lp.sessions.create_session("root")
    session.add_messages([user("1"), answer("2")])
    before = feed(lp)
    session.add_messages([user("3"), asking("a")])
    added = feed(lp)[len(before) :]
    assert added[0].kind == "session.continued" and added[1].kind == "session.created"
    assert own_texts(session)[0] == "3"


def test_a_batch_that_is_refused_continues_nothing(opener: Opener):
    lp = opener(max_messages_per_session=2)
    session = lp.sessions.create_session("root")
    session.add_messages([user("1"), answer("2")])
    before = feed(lp)
    with pytest.raises(errors.ResultWithoutCall):
        session.add_messages([user("3"), giving("nobody")])
    assert feed(lp) == before


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_chain_survives_reopening(opener: Opener):
    lp = opener(max_messages_per_session=4)
    expected = talk(lp.sessions.create_session("root", system="S"), 10)
    chain = [part.state for part in lp.sessions.session_chain("root")]
    lp.close()
    again = opener(max_messages_per_session=4)
    found = again.sessions.session_chain("root")
    assert [part.state for part in found] == chain
    assert [text for part in found for text in own_texts(part)] == ["S", *expected]


@pytest.fixture
def three(opener: Opener) -> tuple[Limpet, list[str]]:
    """A conversation in three parts, the last with room in it."""
    lp = opener(max_messages_per_session=4)
    talk(lp.sessions.create_session("root", system="S"), 5)
    parts = [part.id for part in lp.sessions.session_chain("root")]
    assert len(parts) == 3
    return lp, parts


def walk(lp: Limpet, id_: str) -> list[str]:
    return [part.id for part in lp.sessions.session_chain(id_)]


@pytest.mark.req("B-21", "A-21")
@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("how", ["delete", "reset", "delete and create"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_part_that_leaves_the_chain_blocks_nobody_and_is_in_no_walk(
    three: tuple[Limpet, list[str]], gone: int, how: str, warm: bool
):
    """What follows a lost part is a chain of its own; appends go to the end of the named one's chain."""
    lp, parts = three
    if warm:
        for id_ in parts:
            lp.sessions.add_messages(id_, [answer("warm")])
        parts = walk(lp, "root")
    if how == "reset":
        lp.sessions.reset_session(parts[gone])
    else:
        lp.sessions.delete_session(parts[gone])
    if how == "delete and create":
        lp.sessions.create_session(parts[gone])
    pieces = [piece for piece in (parts[:gone], parts[gone + 1 :]) if piece]
    for piece in pieces:
        for id_ in piece:
            assert walk(lp, id_) == piece
            assert lp.sessions.chain_tokens(id_) > 0
    for piece in pieces:
        for id_ in piece:
            landed = lp.sessions.add_messages(id_, [answer("goes on")])
            assert walk(lp, piece[0])[-1] == landed.id
            assert landed.id != parts[gone]


@pytest.mark.req("A-21")
def test_ending_a_conversation_ends_it_where_it_is(three: tuple[Limpet, list[str]]):
    lp, parts = three
    lp.sessions.end_session("root")
    for id_ in parts:
        with pytest.raises(errors.SessionEnded):
            lp.sessions.add_messages(id_, [answer("late")])
    assert walk(lp, "root") == parts
