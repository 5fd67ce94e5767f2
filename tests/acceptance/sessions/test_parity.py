"""The async face has the verbs of the blocking one, takes the same, and does the same."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import AsyncLimpet, AsyncSession, Limpet, Session, SessionManager, errors
from limpet.admin.async_log import AsyncAdmin, AsyncEvents
from limpet.admin.log import Admin, Events
from limpet.frames.async_state_index import AsyncStateIndex
from limpet.frames.state_index import StateIndex
from limpet.memory.api import Memory
from limpet.memory.archive import Archive, ArchiveTool
from limpet.memory.async_memory import AsyncArchive, AsyncArchiveTool, AsyncMemory
from limpet.sessions.async_sessions import AsyncBetween, AsyncMoment, AsyncPastSession, AsyncSessions
from limpet.sessions.manager import Sessions
from limpet.sessions.session import PastSession
from limpet.sessions.time_travel import Between, Moment
from tests.acceptance.conversation_steps import answer, asking, giving, own_texts, user

PAIRS: list[tuple[type, type]] = [
    (Sessions, AsyncSessions),
    (Session, AsyncSession),
    (Events, AsyncEvents),
    (Admin, AsyncAdmin),
    (Memory, AsyncMemory),
    (Limpet, AsyncLimpet),
    (PastSession, AsyncPastSession),
    (Moment, AsyncMoment),
    (Between, AsyncBetween),
    (StateIndex, AsyncStateIndex),
    (Archive, AsyncArchive),
    (ArchiveTool, AsyncArchiveTool),
]

# A current session belongs to one caller; tasks have none.
BLOCKING_ONLY = {"current_session"}
NO_CURRENT_SESSION = {"check_session_boundary", "create_continuation_session"}


def verbs(cls: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(cls) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = list(inspect.signature(function).parameters.values())[1:]
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS, ids=lambda cls: cls.__name__)
def test_both_have_the_same_verbs(blocking: type, awaited: type):
    assert verbs(blocking).keys() - verbs(awaited).keys() <= BLOCKING_ONLY
    assert verbs(awaited).keys() <= verbs(blocking).keys()


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS, ids=lambda cls: cls.__name__)
def test_each_verb_takes_the_same_names_kinds_and_defaults(blocking: type, awaited: type):
    compared = 0
    for name, verb in verbs(awaited).items():
        twin = verbs(blocking).get(name)
        if not callable(verb) or twin is None:
            continue
        compared += 1
        expected = parameters(twin)
        if name in NO_CURRENT_SESSION:
            expected = [(n, k, inspect.Parameter.empty if "session" in n else d) for n, k, d in expected]
        assert parameters(verb) == expected, name
    assert compared >= 2


def test_connecting_takes_the_same():
    blocking = inspect.signature(limpet.connect).parameters
    assert inspect.signature(limpet.connect_async).parameters == blocking


def test_a_wrong_option_is_refused_by_both_before_anything_is_opened():
    for opening in (limpet.connect, limpet.connect_async):
        with pytest.raises(errors.InvalidRequest):
            opening("volatile:", write="later")  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError):
            opening("volatile:", wrong=True)  # pyright: ignore[reportCallIssue]


def test_the_manager_adds_only_opening_and_closing():
    assert verbs(SessionManager).keys() - verbs(Sessions).keys() == {"base_path", "close"}


Step = Callable[[Any], Any]
STEPS: list[Step] = [
    lambda s: s.create_session("s", user_id="ada", system="S", title="T", metadata={"k": 1}, key="c"),
    lambda s: s.create_session("s"),
    lambda s: s.add_messages("s", [user("1"), asking("a", "b")]),
    lambda s: s.pending_calls("s"),
    lambda s: s.add_messages("s", [{"role": "tool", "tool_call_id": "b", "content": "r"}], key="r"),
    lambda s: s.add_messages("s", [{"role": "tool", "tool_call_id": "b", "content": "r"}], key="r"),
    lambda s: s.add_messages("s", [giving("b")]),
    lambda s: s.add_messages("s", [user("too early")]),
    lambda s: s.close_pending_calls("s", outcome="unknown"),
    lambda s: s.update_session("s", title="T2", metadata={"n": 2}, drop_metadata=["k"]),
    lambda s: s.add_messages("s", [answer()], expected_version=1),
    lambda s: s.add_messages("s", [user(str(n)) for n in range(6)]),
    lambda s: s.add_messages("s", [user("over the boundary")]),
    lambda s: s.session_chain("s"),
    lambda s: s.chain_tokens("s"),
    lambda s: s.get_session("nobody"),
    lambda s: s.load_session("nobody"),
    lambda s: s.load_session("s"),
    lambda s: s.get_or_create_session("t", user_id="bob"),
    lambda s: s.list_sessions(10, user_id="ada"),
    lambda s: s.list_sessions(1),
    lambda s: s.end_session("t"),
    lambda s: s.add_messages("t", [user()]),
    lambda s: s.reset_session("t", system="again"),
    lambda s: s.fork_session("t", new_id="u", metadata={"from": "t"}, key="f"),
    lambda s: s.fork_session("t", new_id="u", metadata={"from": "t"}, key="f"),
    lambda s: s.fork_session("t", new_id="u"),
    lambda s: s.fork_session("t", 2),
    lambda s: s.add_messages("u", [user("1"), asking("a"), giving("a"), answer("2")]),
    lambda s: s.rewind_session("u", 3, expected_version=1),
    lambda s: s.rewind_session("u", 3, key="b"),
    lambda s: s.rewind_session("u", 3, key="b"),
    lambda s: s.pending_calls("u"),
    lambda s: s.rewind_session("u", 5),
    lambda s: s.rewind_session("u", "nothing"),
    lambda s: s.expire(0),
    lambda s: s.delete_session("t"),
    lambda s: s.delete_session("t"),
]


def shown(value: Any) -> Any:
    """What a caller sees of an answer, without what is made anew each time."""
    if isinstance(value, (Session, AsyncSession)):
        state = value.state
        return (state.status, state.title, dict(state.metadata), state.message_count, state.tokens,
                state.version, state.generation, state.continuation_index, len(state.open_calls))  # fmt: skip
    if isinstance(value, list):
        return [shown(part) for part in value]
    if isinstance(value, dict):
        volatile = {"id", "created_at", "last_active", "continued_to", "continued_from"}
        return {key: part for key, part in value.items() if key not in volatile}
    if isinstance(value, limpet.sessions.PendingCall):
        return value.call_id, value.name, value.args
    return value


@pytest.mark.parametrize("backend", ["volatile", "sqlite"])
def test_a_scenario_through_both_gives_the_same_answers_and_states(backend: str, tmp_path: Path):
    def url(name: str) -> str:
        return "volatile:" if backend == "volatile" else str(tmp_path / name)

    def blocking() -> list[Any]:
        with limpet.connect(url("one.db"), max_messages_per_session=8) as lp:
            answers = [outcome(lambda step=step: step(lp.sessions)) for step in STEPS]
            return [*answers, [(event.kind, event.version) for event in lp.events.feed()]]

    async def awaited() -> list[Any]:
        async with limpet.connect_async(url("two.db"), max_messages_per_session=8) as lp:
            answers = [await outcome_async(step(lp.sessions)) for step in STEPS]
            return [*answers, [(event.kind, event.version) async for event in lp.events.feed()]]

    for step, (here, there) in enumerate(zip(blocking(), asyncio.run(awaited()), strict=True)):
        assert here == there, f"step {step}"


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return shown(call())
    except errors.Error as error:
        return type(error), error.code


async def outcome_async(call: Awaitable[Any]) -> Any:
    try:
        return shown(await call)
    except errors.Error as error:
        return type(error), error.code


@pytest.mark.parametrize("backend", ["volatile", "sqlite"])
def test_a_hundred_appends_at_once_keep_the_order_they_were_made_in(backend: str, tmp_path: Path):
    async def scenario() -> None:
        url = "volatile:" if backend == "volatile" else tmp_path / "a.db"
        async with limpet.connect_async(url, max_messages_per_session=30) as lp:
            session = await lp.sessions.create_session("s")
            made = [lp.sessions.add_messages("s", [user(str(n))]) for n in range(100)]
            await asyncio.gather(*made)
            chain = await lp.sessions.session_chain("s")
            found = [m.content for part in chain async for m in part.messages if m.origin is None]
            assert found == [str(n) for n in range(100)]
            assert (await session.reload()).id == "s"

    asyncio.run(scenario())


@pytest.mark.parametrize("backend", ["volatile", "sqlite"])
def test_cancelling_undoes_nothing_and_hurts_nobody(backend: str, tmp_path: Path):
    async def scenario() -> None:
        url = "volatile:" if backend == "volatile" else tmp_path / "a.db"
        async with limpet.connect_async(url) as lp:
            await lp.sessions.create_session("s")
            tasks = [asyncio.create_task(lp.sessions.add_messages("s", [user(str(n))])) for n in range(60)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            cancelled = [isinstance(one, asyncio.CancelledError) for one in done]
            assert not any(flag for at, flag in enumerate(cancelled) if at % 3)
            session = await lp.sessions.get_session("s")
            found = [message.content async for message in session.messages]
            assert found == [str(n) for n in range(60)], "what was submitted is in the log"
            await session.add_message(answer("still alive"))

    asyncio.run(scenario())


def test_one_engine_serves_two_loops_one_after_the_other_and_side_by_side(tmp_path: Path):
    opened: list[limpet.AsyncLimpet] = []

    async def open_() -> None:
        opened.append(await limpet.connect_async(tmp_path / "a.db"))
        await opened[0].sessions.create_session("s")

    async def add(prefix: str) -> None:
        await asyncio.gather(*[opened[0].sessions.add_messages("s", [user(f"{prefix}{n}")]) for n in range(30)])

    async def side_by_side() -> None:
        await asyncio.gather(add("c"), asyncio.to_thread(lambda: asyncio.run(add("d"))))

    asyncio.run(open_())
    asyncio.run(add("a"))
    asyncio.run(add("b"))
    asyncio.run(side_by_side())
    with limpet.connect(tmp_path / "a.db") as lp:
        found = own_texts(lp.sessions.get_session("s"))
    assert sorted(found) == sorted(f"{prefix}{n}" for prefix in "abcd" for n in range(30))
    asyncio.run(opened[0].close())


def test_an_async_error_is_raised_where_it_was_awaited_and_only_there(tmp_path: Path):
    async def scenario() -> None:
        async with limpet.connect_async(tmp_path / "a.db") as lp:
            session = await lp.sessions.create_session("s")
            made = [session.add_message(user("1")), session.add_message(giving("nobody"))]
            made += [session.add_message(user("2")), lp.sessions.get_session("nobody")]
            done = await asyncio.gather(*made, return_exceptions=True)
            assert isinstance(done[1], errors.ResultWithoutCall)
            assert isinstance(done[3], errors.SessionNotFound)
            assert not isinstance(done[0], Exception) and not isinstance(done[2], Exception)
            with pytest.raises(IndexError):
                await session.messages.at(99)

    asyncio.run(scenario())


def test_a_closed_async_engine_says_so(tmp_path: Path):
    async def scenario() -> None:
        lp = await limpet.connect_async(tmp_path / "a.db")
        session = await lp.sessions.create_session("s")
        await lp.close()
        await lp.close()
        for use in (session.add_message(user()), lp.sessions.get_session("s"), lp.admin.status()):
            with pytest.raises(errors.EngineClosed):
                await use

    asyncio.run(scenario())
