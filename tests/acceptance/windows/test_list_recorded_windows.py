"""Recorded windows are found by their events, without reading the conversation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import errors
from tests.acceptance.conversation_steps import Opener, answer, user

COUNTER = "estimate"


def asked(session: limpet.Session, text: str = "why?") -> limpet.Message:
    """Ask, and record the window with the answer."""
    session.add_message(user(text))
    reply = answer("because")
    session.add_message(reply, window=session.window(500, counter=COUNTER))
    return reply


def test_pages_are_newest_first_and_name_the_answers(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        replies = [asked(session, f"why {number}?") for number in range(50)]
        seen: list[limpet.sessions.RecordedWindow] = []
        before: int | None = None
        while found := session.recorded_windows(7, before=before):
            seen += found
            before = found[-1].version
        assert [one.message_id for one in seen] == [reply.id for reply in reversed(replies)]
        for one in seen:
            assert session.messages[one.number - 1].id == one.message_id
            again = session.window_of(one.message_id)
            assert (again.digest, len(again)) == (one.digest, one.messages)
            assert session.recorded_window(one.version) == one
            assert session.recorded_window(one.answer) == one


def test_what_has_only_messages_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two windows among ten thousand messages cost some hundred events, not ten thousand."""
    with limpet.connect(tmp_path / "state.db", max_messages_per_session=20_000) as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        first = asked(session)
        session.add_messages([user(f"q{number}") for number in range(5_000)])
        second = asked(session)
        for _ in range(5):
            session.add_messages([user(f"q{number}") for number in range(1_000)])
    with limpet.connect(tmp_path / "state.db") as lp:
        session = lp.sessions.get_session("s")
        store: Any = type(session._handle.service.engine.store)
        read, events = store.read, 0

        def counted(self: Any, *given: Any, **named: Any) -> Any:
            nonlocal events
            found = read(self, *given, **named)
            events += len(found)
            return found

        monkeypatch.setattr(store, "read", counted)
        found = session.recorded_windows()
        assert [one.message_id for one in found] == [second.id, first.id]
        assert 0 < events < 300, events


def test_an_event_without_a_window_names_the_nearest(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        with pytest.raises(errors.WindowNotFound, match="add_message"):
            session.recorded_window(1)
        asked(session)
        session.add_messages([user(f"q{number}") for number in range(200)])
        asked(session)
        low, high = (one.version for one in reversed(session.recorded_windows()))
        for version, before, after in (
            (1, None, low),
            (100, low, high),
            (session.version + 1, high, None),
            (10**30, high, None),
        ):
            with pytest.raises(errors.WindowNotFound) as caught:
                session.recorded_window(version)
            assert caught.value.facts == {"version": version, "before": before, "after": after}


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3", None])
def test_nonsense_is_refused(opener: Opener, wrong: Any):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        with pytest.raises(errors.InvalidRequest):
            session.recorded_window(wrong)
        with pytest.raises(errors.InvalidRequest):
            session.recorded_windows(wrong)
        if wrong is not None:
            with pytest.raises(errors.InvalidRequest):
                session.recorded_windows(before=wrong)


def test_generations_continuations_and_tenants(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path, max_messages_per_session=6) as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        early = asked(session)
        lp.sessions.reset_session("s", system="Be briefer.")
        session = lp.sessions.get_session("s")
        late = asked(session)
        found = session.recorded_windows()
        assert [(one.message_id, one.number) for one in found] == [(late.id, 3), (early.id, 3)]
        session.add_messages([user("more") for _ in range(3)])
        window = session.window(500, counter=COUNTER)
        last = answer("elsewhere")
        session.add_messages([user("last of all"), last], window=window)
        assert session.id != "s"
        (one,) = session.recorded_windows()
        assert one.session_id == "s"
        assert session.messages[one.number - 1].id == one.message_id
        assert session.window_of(one.message_id).digest == window.digest == one.digest
    with limpet.connect(path, tenant="other") as lp:
        other = lp.sessions.create_session("s", system="Mine.")
        assert other.recorded_windows() == []
        with pytest.raises(errors.WindowNotFound):
            other.recorded_window(2)


def test_what_was_deleted_is_not_found_under_the_same_id(opener: Opener):
    with opener() as lp:
        early = asked(lp.sessions.create_session("s", system="A secret."))
        lp.sessions.reset_session("s", system="Another.")
        asked(lp.sessions.get_session("s"))
        lp.sessions.delete_session("s")
        session = lp.sessions.create_session("s", system="Be brief.")
        assert session.recorded_windows() == []
        with pytest.raises(errors.MessageNotFound):
            session.window_of(early.id)
        mine = asked(session)
        lp.sessions.reset_session("s")
        session = lp.sessions.get_session("s")
        (one,) = session.recorded_windows()
        assert one.message_id == mine.id
        assert len(session.window_of(mine.id)) == 2
        for version in range(1, session.version + 1):
            if version in (one.version, one.answer):
                assert session.recorded_window(version) == one
            else:
                with pytest.raises(errors.WindowNotFound) as caught:
                    session.recorded_window(version)
                assert {caught.value.facts["before"], caught.value.facts["after"]} == {None, one.version}


def test_async_callers_find_them_too(tmp_path: Path):
    async def work() -> None:
        async with await limpet.connect_async(tmp_path / "state.db") as lp:
            session = await lp.sessions.create_session("s", system="Be brief.")
            await session.add_message(user("hello"))
            window = await session.window(500, counter=COUNTER)
            reply = answer("hi")
            await session.add_message(reply, window=window)
            (one,) = await session.recorded_windows()
            assert (one.message_id, one.digest) == (reply.id, window.digest)
            assert await session.recorded_window(one.answer) == one

    asyncio.run(work())
