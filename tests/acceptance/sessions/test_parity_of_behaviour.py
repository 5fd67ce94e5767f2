"""One scenario on both faces: what blocking callers get of recovery, deferred writes, files and limits, tasks get too."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import limpet
from limpet import AsyncLimpet, AsyncSession, Limpet, Session, errors
from limpet.sessions.session_files import recovery_id
from tests.acceptance.conversation_steps import answer, giving, user
from tests.acceptance.sessions.test_deferred_writes import Held
from tests.acceptance.sessions.test_recovery import spoil

Step = Callable[[Any], Any]
"""Does something to a namespace, which has the client as `lp`; both faces of it are played with the same steps."""


def shown(value: Any) -> Any:
    if isinstance(value, (Session, AsyncSession)):
        return value.id, value.message_count, value.version
    if isinstance(value, errors.Error):
        return type(value), value.code
    return value


def blocking(url: Path | str, steps: Sequence[Step], **options: Any) -> list[Any]:
    outcomes: list[Any] = []
    try:
        with limpet.connect(url, **options) as lp:
            kept = SimpleNamespace(lp=lp)
            for step in steps:
                try:
                    outcomes.append(shown(step(kept)))
                except errors.Error as error:
                    outcomes.append(shown(error))
    except errors.Error as error:
        outcomes.append(("closing", shown(error)))
    return outcomes


def awaited(url: Path | str, steps: Sequence[Step], **options: Any) -> list[Any]:
    async def run() -> list[Any]:
        outcomes: list[Any] = []
        try:
            async with limpet.connect_async(url, **options) as lp:
                kept = SimpleNamespace(lp=lp)
                for step in steps:
                    try:
                        found = step(kept)
                        outcomes.append(shown(await found if inspect.isawaitable(found) else found))
                    except errors.Error as error:
                        outcomes.append(shown(error))
        except errors.Error as error:
            outcomes.append(("closing", shown(error)))
        return outcomes

    return asyncio.run(run())


def keep(name: str, step: Step) -> Step:
    """Return a step that keeps what another one returns under a name."""

    def run(kept: Any) -> Any:
        found = step(kept)
        if not inspect.isawaitable(found):
            setattr(kept, name, found)
            return found

        async def wait() -> Any:
            setattr(kept, name, await found)
            return getattr(kept, name)

        return wait()

    return run


LOAD = keep("session", lambda k: k.lp.sessions.load_session("tides"))


@pytest.mark.req("B-19")
@pytest.mark.parametrize("version", [1, 4])
def test_damaged_session_is_recovered(tmp_path: Path, version: int):
    """Damage where the state is made from is met by loading, damage further back by the first read."""
    steps: list[Step] = [
        lambda k: k.lp.sessions.get_session("tides"),
        LOAD,
        lambda k: k.session.get_formatted_history(),
        lambda k: k.session.id,
        lambda k: k.session.metadata["recovered_from"],
        lambda k: k.session.add_message(user("after")),
        LOAD,
        lambda k: k.session.get_formatted_history(),
    ]
    found: list[list[Any]] = []
    for play in (blocking, awaited):
        path = tmp_path / play.__name__ / "state.db"
        path.parent.mkdir()
        with limpet.connect(path) as lp:
            session = lp.sessions.create_session("tides")
            for number in range(5):
                session.add_message(user(f"tides {number}"))
        spoil(path, version)
        found.append(play(path, steps))
    assert found[0] == found[1]
    assert recovery_id("tides") in found[0] and not isinstance(found[0][2], tuple)


BEGIN = keep("session", lambda k: k.lp.sessions.create_session("s"))


def add(*messages: Any) -> Step:
    return lambda k: k.session.add_messages(list(messages))


def saved(k: Any) -> Any:
    return k.lp.sessions.save_session(k.session)


def test_deferred_writes_are_waited_for_and_refusals_are_told_once(tmp_path: Path):
    steps: list[Step] = [
        BEGIN,
        lambda k: unlooked(k.session.add_message(user("1"))),
        lambda k: unlooked(k.session.add_message(giving("nobody"))),
        lambda k: unlooked(k.session.add_message(answer("2"))),
        saved,
        saved,
        lambda k: (k.session.message_count, k.session.version),
        lambda k: k.session.get_formatted_history(),
        lambda k: unlooked(k.session.add_message(user("3"))),
        lambda k: k.lp.sessions.list_sessions()[0]["message_count"] if isinstance(k.lp, Limpet) else listed(k.lp),
        lambda k: unlooked(k.session.add_message(giving("nobody"))),
        lambda k: k.lp.sessions.update_session("s", title="T"),
        lambda k: k.lp.sessions.update_session("s", title="T"),
        lambda k: unlooked(k.session.add_message(giving("nobody"))),
    ]
    here = blocking(tmp_path / "a.db", steps, write="deferred")
    assert here == awaited(tmp_path / "b.db", steps, write="deferred")
    assert here.count((errors.ResultWithoutCall, "result_without_call")) == 2
    assert here[-1] == ("closing", (errors.ResultWithoutCall, "result_without_call"))


def unlooked(done: Any) -> Any:
    """Do something without a look at what it returns: a blocking handle would wait for its writes."""
    if not inspect.isawaitable(done):
        return None

    async def wait() -> None:
        await done

    return wait()


async def listed(lp: AsyncLimpet) -> Any:
    return (await lp.sessions.list_sessions())[0]["message_count"]


class HeldForAtMost(Held):
    """Holds the store, and lets it go after 30 seconds: a loop that waits for it could not."""

    def __enter__(self) -> Held:
        self._timer = threading.Timer(30, self.release)
        self._timer.start()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        super().__exit__()


def test_deferred_append_returns_before_it_is_committed_and_never_stops_the_loop(tmp_path: Path):
    async def run() -> None:
        async with limpet.connect_async(tmp_path / "a.db", write="deferred") as lp:
            session = await lp.sessions.create_session("s")
            with HeldForAtMost(lp._blocking) as held:
                for number in range(20):
                    await session.add_message(user(str(number)))
                assert session.message_count == 0, "the fields are those that were last seen"
                saving = asyncio.create_task(lp.sessions.save_session(session))
                reading = asyncio.create_task(session.messages.at(-1))
                await asyncio.sleep(0.02)
                assert not saving.done() and not reading.done()
                held.release()
                assert await saving
                assert (await reading).content == "19"
            assert session.message_count == 20
            assert [message.content async for message in session.messages] == [str(n) for n in range(20)]

    asyncio.run(run())


def test_interval_bounds_how_many_deferred_writes_wait(tmp_path: Path):
    """After the interval the next write waits for those before it, in a thread."""

    async def run() -> None:
        async with limpet.connect_async(tmp_path / "a.db", write="deferred", auto_save_interval=1e-6) as lp:
            session = await lp.sessions.create_session("s")
            with HeldForAtMost(lp._blocking) as held:
                await session.add_message(user("1"))
                waiting = asyncio.create_task(session.add_message(user("2")))
                await asyncio.sleep(0.05)
                assert not waiting.done()
                held.release()
                await waiting
            assert await lp.sessions.save_session(session)
            assert session.message_count == 2

    asyncio.run(run())


def test_session_files_are_written_and_dropped(tmp_path: Path):
    def said(folder: Path) -> Step:
        def read(_: Any) -> Any:
            path = folder / "sessions" / "s.json"
            return [m["content"] for m in json.loads(path.read_text())["messages"]] if path.exists() else None

        return read

    found: list[list[Any]] = []
    for play in (blocking, awaited):
        folder = tmp_path / play.__name__
        steps: list[Step] = [
            BEGIN, add(user("1")), said(folder), saved, said(folder),
            lambda k: k.lp.sessions.delete_session("s"), said(folder),
        ]  # fmt: skip
        found.append(play(f"files:{folder}", steps, auto_save_interval=0))
    assert found[0] == found[1]
    assert found[0][2:] == [None, True, ["1"], True, None]


@pytest.mark.parametrize("write", ["durable", "deferred"])
def test_as_many_sessions_stay_in_memory_as_were_asked_for(write: str):
    names: list[Step] = [lambda k, n=n: k.lp.sessions.create_session(f"s{n}") for n in range(4)]
    steps: list[Step] = [
        *names,
        lambda k: list(k.lp.sessions.sessions),
        lambda k: k.lp.sessions.load_session("s2"),
        lambda k: k.lp.sessions.fork_session("s2", new_id="f"),
        lambda k: list(k.lp.sessions.sessions),
        lambda k: k.lp.sessions.delete_session("f"),
        lambda k: list(k.lp.sessions.sessions),
        lambda k: k.lp.sessions.max_sessions_in_memory,
    ]
    here = blocking("volatile:", steps, max_sessions_in_memory=2, write=write)
    assert here == awaited("volatile:", steps, max_sessions_in_memory=2, write=write)
    assert here[4] == ["s2", "s3"] and here[7] == ["s2", "f"]


def test_limit_that_the_manager_shows_is_the_one_that_appends_keep_to():
    def set_limit(k: Any) -> Any:
        with pytest.raises(AttributeError):
            k.lp.sessions.max_messages_per_session = 100
        return k.lp.sessions.max_messages_per_session

    steps: list[Step] = [
        BEGIN,
        set_limit,
        *(add(user(str(n))) for n in range(9)),
        lambda k: k.session.state.continuation_index,
    ]
    here = blocking("volatile:", steps, max_messages_per_session=4)
    there = awaited("volatile:", steps, max_messages_per_session=4)
    assert (here[1], here[-1]) == (there[1], there[-1]) == (4, 2)


def test_erasing_waits_for_deferred_writes_and_drops_handles(tmp_path: Path):
    steps: list[Step] = [
        keep("session", lambda k: k.lp.sessions.create_session("s", user_id="ada")),
        lambda k: unlooked(k.session.add_message(user("canary"))),
        lambda k: unlooked(k.lp.memory.forget("ada")),
        lambda k: list(k.lp.sessions.sessions),
    ]
    assert blocking(tmp_path / "a.db", steps, write="deferred") == awaited(tmp_path / "b.db", steps, write="deferred")


def test_no_verb_stops_the_loop_while_the_store_is_held(tmp_path: Path):
    """Each verb is begun while another thread has the write lock: the loop goes on all the time."""

    async def run() -> None:
        async with limpet.connect_async(tmp_path / "a.db") as lp:
            session = await lp.sessions.create_session("s")
            await session.add_messages([user("1"), answer("2")])
            calls: list[Callable[[], Any]] = [
                lambda: lp.sessions.create_session("t"),
                lambda: lp.sessions.update_session("s", title="T"),
                lambda: session.add_message(user("3")),
                lambda: session.fork(new_id="f"),
                lambda: session.set_policy(limpet.WindowPolicy(budget=8_000)),
                lambda: lp.sessions.get_or_create_session("u"),
                lp.sessions.expire,
                lp.admin.status,
                lambda: session.window(1_000),
            ]
            with HeldForAtMost(lp._blocking) as held:
                tasks = [asyncio.ensure_future(call()) for call in calls]
                await asyncio.sleep(0.05)
                assert not tasks[2].done()
                held.release()
                await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.parametrize("write", ["durable", "deferred"])
def test_wrong_arguments_are_refused_alike(tmp_path: Path, write: str):
    ids: list[Any] = [5, None, ["a"], "", "a\0b", "x" * 2_000, "nobody"]
    steps: list[Step] = [
        BEGIN,
        *(lambda k, wrong=wrong: k.lp.sessions.add_messages(wrong, [user("1")]) for wrong in ids),
        lambda k: k.lp.sessions.add_messages("s", user("1")),
        lambda k: k.lp.sessions.create_session("t", system=["You plan trips."]),
        lambda k: k.lp.sessions.reset_session("s", system=["You plan trips."]),
        saved,
    ]
    here = blocking(tmp_path / "a.db", steps, write=write)
    assert here == awaited(tmp_path / "b.db", steps, write=write)
    assert here[1:7] == [(errors.InvalidRequest, "invalid_request")] * 4 + [here[5], here[6]]
    assert (errors.InvalidRequest, "invalid_request") in here[9:11]


@pytest.mark.parametrize(
    "call",
    [
        lambda sessions: sessions.create_session("s", or_get=True),
        lambda sessions: sessions.end_session("s", reason="deleted"),
        lambda sessions: sessions.add_messages("s", [user("1")], window=None),
    ],
)
def test_an_argument_that_the_verb_does_not_have_is_refused(tmp_path: Path, call: Step):
    with limpet.connect(tmp_path / "a.db") as lp, pytest.raises(TypeError, match="unexpected keyword"):
        call(lp.sessions)

    async def run() -> None:
        async with limpet.connect_async(tmp_path / "b.db") as lp:
            with pytest.raises(TypeError, match="unexpected keyword"):
                await call(lp.sessions)

    asyncio.run(run())
