"""A session's life through the public interface, on every backend."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

import limpet
from limpet import Limpet, Message, MessageCategory, errors
from limpet.core.values import ids
from limpet.core.values.session_state import EndReason
from limpet.sessions import SessionStatus
from tests.acceptance.conversation_steps import Opener, answer, asking, feed, giving, said, set_clock, texts, user

DAY_US = 86_400_000_000


@pytest.mark.req("B-10", "A-20", "B-6")
def test_a_created_session_is_there_at_once_and_current(lp: Limpet):
    made = lp.sessions.create_session(user_id="ada", system="Be brief.", title="Trip", metadata={"k": 1})
    assert re.fullmatch(r"session_\d{8}_\d{6}_[0-9a-f]{8,}", made.id)
    assert lp.sessions.current_session is made
    assert texts(made) == ["Be brief."]
    found = lp.sessions.get_session(made.id)
    assert (found.user_id, found.title, found.metadata) == ("ada", "Trip", {"k": 1, "message_count": 1})
    assert found.state == made.state
    assert made.created_at == made.last_active
    assert datetime.fromisoformat(made.created_at).utcoffset() == timedelta(0)
    assert lp.sessions.sessions == {made.id: made}


@pytest.mark.req("B-6", "A-20")
@pytest.mark.parametrize("id_", ["session_20230401_123456", "a/b\\c", "日本語", "x" * 256, "a b", "'; --"])
def test_any_safe_text_is_an_id(lp: Limpet, id_: str):
    lp.sessions.create_session(id_).add_message(user())
    assert lp.sessions.get_session(id_).message_count == 1
    assert [row["id"] for row in lp.sessions.list_sessions()] == [id_]


@pytest.mark.req("B-11")
def test_loading_gives_the_session_and_makes_it_current_or_none(lp: Limpet):
    one, other = lp.sessions.create_session("one"), lp.sessions.create_session("other")
    assert lp.sessions.current_session is other
    loaded = lp.sessions.load_session("one")
    assert loaded is not None and loaded.state == one.state
    assert lp.sessions.current_session is loaded
    assert lp.sessions.load_session("nobody") is None
    assert lp.sessions.current_session is loaded


def test_getting_changes_no_current_session(lp: Limpet):
    lp.sessions.create_session("one")
    current = lp.sessions.create_session("other")
    assert lp.sessions.get_session("one").id == "one"
    assert lp.sessions.current_session is current


@pytest.mark.req("A-20")
def test_get_or_create_begins_opens_and_begins_again(lp: Limpet):
    made = lp.sessions.get_or_create_session("s", user_id="ada", system="S", metadata={"k": 1})
    made.add_message(user("first life"))
    same = lp.sessions.get_or_create_session("s", user_id="bob", system="other", metadata={"k": 2})
    assert (same.user_id, texts(same), same.generation) == ("ada", ["S", "first life"], 0)
    lp.sessions.end_session("s")
    revived = lp.sessions.get_or_create_session("s", system="S2")
    assert (revived.status, revived.generation, texts(revived)) == (SessionStatus.ACTIVE, 1, ["S2"])
    lp.sessions.delete_session("s")
    again = lp.sessions.get_or_create_session("s", user_id="bob")
    assert (again.user_id, texts(again)) == ("bob", [])


@pytest.mark.req("A-1", "A-4", "A-2")
def test_a_session_holds_its_conversation_whole_and_in_order(lp: Limpet):
    session = lp.sessions.create_session("s", system="S")
    given = [user("1"), asking("a", "b"), giving("b"), giving("a"), answer("2")]
    session.add_message(given[0])
    session.add_messages(given[1:3])
    lp.sessions.add_messages("s", given[3:])
    found = lp.sessions.get_session("s")
    assert list(found.messages)[1:] == given
    assert found.message_count == len(found) == len(found.messages) == 6


@pytest.mark.req("A-4")
def test_order_is_position_never_the_clock(lp: Limpet):
    session = lp.sessions.create_session("s")
    stamps = ["2030-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "2025-01-01T00:00:00Z"]
    for number, stamp in enumerate(stamps):
        session.add_message(Message("user", str(number), timestamp=stamp))
        set_clock(lp, 1_000_000 - number)
    assert texts(session) == ["0", "1", "2"]
    times = [event.time_us for event in feed(lp)]
    assert times == sorted(times), "a clock that goes back does not turn the log around"


@pytest.mark.req("A-3", "A-2")
def test_a_session_is_all_that_is_remembered(lp: Limpet):
    lp.sessions.create_session("s", user_id="ada").add_message(user("My name is Ada."))
    fresh = lp.sessions.create_session("t", user_id="ada")
    assert texts(fresh) == []
    lp.sessions.delete_session("s")
    assert texts(lp.sessions.create_session("u", user_id="ada")) == []


@pytest.mark.req("B-8", "B-7")
def test_adding_moves_count_activity_and_tokens(lp: Limpet):
    set_clock(lp, 1_000_000)
    session = lp.sessions.create_session("s")
    set_clock(lp, 2_000_000)
    session.add_messages([user("eight ch"), Message("assistant", "x", tokens=40)])
    assert session.metadata["message_count"] == session.message_count == 2
    assert session.last_active == ids.iso(2_000_000)
    assert session.created_at == ids.iso(1_000_000)
    assert session.total_tokens == 3 + 40
    (row,) = lp.sessions.list_sessions()
    assert (row["message_count"], row["total_tokens"]) == (2, 43)


@pytest.mark.req("B-7")
def test_views_by_category_and_as_provider_history(lp: Limpet):
    session = lp.sessions.create_session("s", system="S")
    session.add_messages([user("q"), Message("user", "doc", MessageCategory.CONTEXT), answer("a")])
    dialog = session.get_messages_by_category(MessageCategory.DIALOG)
    assert [message.content for message in dialog] == ["q", "a"]
    assert [m.content for m in session.get_messages_by_category(MessageCategory.CONTEXT)] == ["doc"]
    assert session.get_messages_by_category(MessageCategory.SYSTEM_OUTPUT) == []
    with pytest.raises(errors.InvalidRequest, match="a category is a MessageCategory, not str"):
        session.get_messages_by_category(cast("MessageCategory", "dialog"))
    assert session.get_formatted_history() == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "q"},
        {"role": "user", "content": "doc"},
        {"role": "assistant", "content": "a"},
    ]


def test_a_batch_goes_in_whole_or_not_at_all(lp: Limpet):
    session = lp.sessions.create_session("s")
    before = feed(lp)
    for bad in ({"role": "ghost"}, giving("nobody"), None, Message("user", "x" * 9_000_000)):
        with pytest.raises(errors.Refused):
            session.add_messages([user("1"), answer("2"), bad])  # pyright: ignore[reportArgumentType] - on purpose
    assert feed(lp) == before
    assert session.reload().message_count == 0


def test_updating_title_and_metadata(lp: Limpet):
    lp.sessions.create_session("s", metadata={"a": 1, "b": [2]})
    lp.sessions.update_session("s", title="T", metadata={"a": {"x": None}, "c": 3})
    session = lp.sessions.update_session("s", drop_metadata=["b"])
    assert session.title == "T"
    assert session.metadata == {"a": {"x": None}, "c": 3, "message_count": 0}
    assert lp.sessions.update_session("s", title=None).title is None
    assert len(feed(lp)) == 4
    lp.sessions.update_session("s", title=None, metadata={"c": 3})
    assert len(feed(lp)) == 4, "what changes nothing is not written"


def test_metadata_handed_out_is_a_copy(lp: Limpet):
    session = lp.sessions.create_session("s", metadata={"a": [1]})
    session.metadata["a"].append(2)
    assert session.metadata["a"] == [1]


@pytest.mark.req("A-21")
def test_an_ended_session_is_readable_and_takes_nothing_more(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_message(user("kept"))
    ended = lp.sessions.end_session("s")
    assert (ended.status, ended.state.end_reason) == (SessionStatus.ENDED, EndReason.ENDED)
    with pytest.raises(errors.SessionEnded):
        session.add_message(user("late"))
    assert texts(lp.sessions.get_session("s")) == ["kept"]
    assert lp.sessions.end_session("s").version == ended.version


@pytest.mark.req("A-21", "A-2")
def test_a_reset_starts_the_next_generation_and_keeps_the_log(lp: Limpet):
    session = lp.sessions.create_session("s", title="T", metadata={"k": 1})
    for generation in range(3):
        session.add_messages([user(f"{generation}-{n}") for n in range(4)])
        assert texts(session) == [f"{generation}-{n}" for n in range(4)]
        fresh = lp.sessions.reset_session("s", system="S" if generation == 2 else None)
        assert (fresh.id, fresh.generation) == ("s", generation + 1)
        assert (fresh.title, fresh.metadata["k"]) == ("T", 1)
        session = fresh
    assert texts(session) == ["S"]
    assert said(lp) == [f"{g}-{n}" for g in range(3) for n in range(4)] + ["S"]


def test_a_reset_opens_an_ended_session_and_drops_open_calls(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_messages([user(), asking("a")])
    lp.sessions.end_session("s")
    fresh = lp.sessions.reset_session("s")
    assert (fresh.status, fresh.pending_calls()) == (SessionStatus.ACTIVE, [])
    fresh.add_message(user("again"))


@pytest.mark.req("B-16", "A-21")
def test_deleting_answers_whether_there_was_anything(lp: Limpet):
    assert lp.sessions.delete_session("nobody") is False
    lp.sessions.create_session("s").add_message(user())
    assert lp.sessions.delete_session("s") is True
    assert lp.sessions.delete_session("s") is False


@pytest.mark.req("B-16", "A-21")
def test_a_deleted_session_is_found_by_no_verb_and_no_handle_brings_it_back(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_message(user())
    lp.sessions.delete_session("s")
    assert lp.sessions.current_session is None and "s" not in lp.sessions.sessions
    assert lp.sessions.load_session("s") is None
    assert lp.sessions.list_sessions() == []
    for use in (
        lambda: lp.sessions.get_session("s"),
        lambda: session.add_message(user()),
        session.reload,
        lambda: lp.sessions.update_session("s", title="T"),
        lambda: lp.sessions.end_session("s"),
        lambda: lp.sessions.reset_session("s"),
        lambda: lp.sessions.pending_calls("s"),
        lambda: lp.sessions.session_chain("s"),
        lambda: lp.sessions.create_continuation_session(session),
    ):
        with pytest.raises(errors.SessionNotFound):
            use()
    lp.sessions.save_session(session)
    assert lp.sessions.load_session("s") is None


def test_a_message_can_be_added_again_after_a_reset(lp: Limpet):
    """What was acknowledged is in the session, whatever an earlier generation held."""
    message = user("hello")
    session = lp.sessions.create_session("s")
    session.add_message(message)
    for begin_again in (lp.sessions.reset_session, lp.sessions.delete_session):
        begin_again("s")
        session = lp.sessions.get_or_create_session("s")
        try:
            session.add_message(message)
        except errors.DuplicateMessage:
            continue
        assert texts(session.reload()) == ["hello"]


@pytest.mark.req("A-21")
def test_expire_ends_exactly_what_was_idle(lp: Limpet):
    for hour in range(10):
        set_clock(lp, hour * DAY_US // 24)
        lp.sessions.create_session(f"s{hour}")
    set_clock(lp, 5 * DAY_US // 24 + 1)
    lp.sessions.get_session("s0").add_message(user())
    lp.sessions.end_session("s1")
    now = DAY_US + 5 * DAY_US // 24
    assert sorted(lp.sessions.expire(now)) == ["s2", "s3", "s4", "s5"]
    rows = {row["id"]: row["status"] for row in lp.sessions.list_sessions()}
    ended = {"s1", "s2", "s3", "s4", "s5"}
    assert {id_ for id_, status in rows.items() if status == "ended"} == ended
    assert lp.sessions.get_session("s2").state.end_reason is EndReason.TIMEOUT
    assert lp.sessions.get_session("s1").state.end_reason is EndReason.ENDED
    assert lp.sessions.expire(now) == []


def test_expire_takes_moments_in_each_form_and_its_own_idle_time(lp: Limpet):
    for number, now in enumerate(
        (datetime(2026, 1, 3, tzinfo=UTC), "2026-01-03T00:00:00+00:00", 1_767_398_400_000_000)
    ):
        set_clock(lp, ids.microseconds("2026-01-02T23:00:00Z"))
        lp.sessions.create_session(f"s{number}")
        assert lp.sessions.expire(now) == []
        assert lp.sessions.expire(now, idle_s=3_600) == [f"s{number}"]


def test_expire_goes_through_more_sessions_than_a_page_holds(lp: Limpet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("limpet.limits.PAGE_SIZE_MAX", 7)
    set_clock(lp, 1_000)
    for number in range(30):
        lp.sessions.create_session(f"s{number}")
    assert len(lp.sessions.expire(DAY_US * 2)) == 30


def test_the_handle_says_what_it_is(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_message(user("secret words"))
    assert "s 1 messages" in repr(session) and "secret" not in repr(session) + repr(session.state)
    assert bool(lp.sessions.create_session("empty")) is True


@pytest.mark.req("A-20")
@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_restarted_worker_finds_everything(opener: Opener):
    first = opener()
    session = first.sessions.create_session("s", user_id="ada", metadata={"k": [1]})
    session.add_messages([user("1"), asking("a", "b"), giving("a")])
    before = session.state
    first.close()
    with opener() as second:
        found = second.sessions.get_session("s")
        assert found.state == before
        assert [call.call_id for call in found.pending_calls()] == ["b"]
        found.add_message(giving("b"))


@pytest.mark.req("A-20")
@pytest.mark.parametrize("backend", ["sqlite"])
def test_two_workers_on_one_store_see_each_others_writes_at_once(opener: Opener):
    one, other = opener(), opener()
    session = one.sessions.create_session("s")
    for number in range(20):
        (one if number % 2 else other).sessions.add_messages("s", [user(str(number))])
        assert texts((other if number % 2 else one).sessions.get_session("s"))[-1] == str(number)
    assert session.reload().message_count == 20


@pytest.mark.req("A-20")
def test_a_writer_who_names_a_passed_version_gets_a_conflict(lp: Limpet):
    session = lp.sessions.create_session("s")
    seen = session.version
    lp.sessions.add_messages("s", [user("someone else")])
    for write in (
        lambda: session.add_message(user(), expected_version=seen),
        lambda: lp.sessions.add_messages("s", [user()], expected_version=seen),
        lambda: lp.sessions.update_session("s", title="T", expected_version=seen),
    ):
        with pytest.raises(errors.StaleVersion) as caught:
            write()
        assert caught.value.facts == {"expected": seen, "actual": seen + 1}
    session.add_message(user("now"), expected_version=seen + 1)
    assert texts(session) == ["someone else", "now"]


def test_opening_twice_and_closing_twice_is_fine(lp: Limpet):
    lp.close()
    lp.close()
    assert isinstance(limpet.__version__, str)


def test_a_system_prompt_is_text(lp: Limpet):
    with pytest.raises(errors.InvalidRequest, match="a system prompt is text, not a value of type list"):
        lp.sessions.create_session("s", system=cast("str", ["You plan trips."]))
    assert lp.sessions.load_session("s") is None
