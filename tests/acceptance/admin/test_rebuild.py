"""All that is derived is made again from the log: the same as before, right if it was wrong, or not at all."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

import limpet
from limpet import Message, Scope, ToolCallRequest, errors, limits
from limpet.core.formats import codec
from limpet.runtime.state_cache import session_stream
from limpet.stores import chain
from limpet.stores.port import Rebuilt, Snapshot
from limpet.stores.sqlite import SQLiteStore, database

DERIVED = ("claims", "projections", "projection_terms", "blob_uses", "snapshots")
KEPT = ("store", "tenants", "streams", "events", "keys", "blobs")
LONG = limits.SNAPSHOT_EVERY + 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in which everything has happened that leads to something derived."""
    made = tmp_path / "state.db"
    for tenant in ("default", "other"):
        with limpet.connect(made, tenant=tenant) as lp:
            fill(lp.sessions)
            frame(lp.index)
    return made


def fill(sessions: limpet.SessionManager) -> None:
    long = sessions.create_session("long", user_id="ada", title="Long", metadata={"n": 1})
    long.add_messages([Message("user", f"m{number}") for number in range(LONG)])
    sessions.create_session("gone", user_id="ada").add_message(Message("user", "x"))
    sessions.delete_session("gone")
    large = sessions.create_session("large", metadata={"n": 1, "team": "north"})
    for _ in range(2):
        large.add_message(Message("user", "y" * (limits.BLOB_BYTES_MIN + 1)), key="once")
    call = Message("assistant", "", tool_calls=(ToolCallRequest("c1", "look"),))
    large.add_message(call)
    chained = sessions.create_session("chained", user_id="bob")
    chained.add_message(Message("user", "before"))
    sessions.create_continuation_session(chained).add_message(Message("user", "after"))
    reset = sessions.create_session("reset")
    reset.add_message(Message("user", "old"))
    sessions.end_session("reset")
    sessions.reset_session("reset")
    sessions.update_session("reset", metadata={"n": None})


def frame(index: limpet.StateIndex) -> None:
    """Leave frames that work, that wait, and that are closed, with tools, handles and decisions."""
    root = index.push_frame(Scope("ada"), goal="plan", budget=10_000, frame_id="root")
    child = index.push_frame(Scope("bob"), goal="book", budget=1_000, parent_frame_id=root.frame_id)
    tool = index.begin_tool(child.frame_id, "pay")
    index.end_tool(child.frame_id, tool.tool_id, "z" * (limits.BLOB_BYTES_MIN + 1))
    index.resume_frame(index.suspend_frame(child.frame_id, reason="may I?", payload={"n": 1}))
    index.pop_frame(child.frame_id, result_summary="booked")
    waiting = index.push_frame(Scope("eve"), goal="ask", budget=1_000, parent_frame_id="root")
    index.begin_tool(waiting.frame_id, "look")
    index.suspend_frame(waiting.frame_id, reason="and now?")


def tables(path: Path, names: tuple[str, ...] = DERIVED[:-1]) -> dict[str, list[object]]:
    """Return all rows of tables."""
    connection = database.connect(path, write=False)
    try:
        return {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
    finally:
        connection.close()


def vandalise(path: Path, statement: str, bindings: tuple[bytes | int | str, ...] = ()) -> None:
    """Change a store beneath it, page checksums and all."""
    connection = database.connect(path, write=True)
    connection.execute(statement, bindings)
    connection.close()


def shown(lp: limpet.Limpet) -> list[object]:
    """Return what a caller sees of all sessions."""
    listed = list(lp.sessions.list_sessions(limit=100))
    return [listed, [list(lp.sessions.get_session(row["id"]).messages) for row in listed]]


def test_a_rebuild_gives_the_same_rows(path: Path):
    with limpet.connect(path) as lp:
        before, truth, seen = tables(path), tables(path, KEPT[1:]), shown(lp)
        assert all(before.values()), "there is something of everything"
        assert tables(path, DERIVED[-1:])["snapshots"], "snapshots too"
        made = lp.admin.rebuild()
        assert (tables(path), tables(path, KEPT[1:])) == (before, truth)
        assert not tables(path, DERIVED[-1:])["snapshots"]
        assert shown(lp) == seen
        assert lp.admin.verify().ok
    assert made == Rebuilt(
        events=len(truth["events"]),
        tenants=2,
        streams=len(truth["streams"]),
        claims=len(before["claims"]),
        projections=len(before["projections"]),
    )
    with limpet.connect(path) as lp:
        assert shown(lp) == seen
        with pytest.raises(errors.KeyReused):
            lp.sessions.get_session("large").add_message(Message("user", "another"), key="once")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE projections SET owner = 'mallory'",
        "UPDATE projections SET mark = x'00'",
        "DELETE FROM projections",
        "INSERT INTO projections SELECT 1, kind, 'x' || id, owner, status, moment, time_us, lookup, terms,"
        " document, mark FROM projections WHERE tenant = 2",
        "UPDATE projection_terms SET term = 'n' || term",
        "DELETE FROM projection_terms",
        "DELETE FROM claims",
        "UPDATE claims SET version = version + 1",
        "DELETE FROM blob_uses",
        "UPDATE blob_uses SET event = event + 1",
    ],
)
def test_what_is_wrong_is_put_right(path: Path, statement: str):
    before = tables(path)
    vandalise(path, statement)
    assert tables(path) != before
    with limpet.connect(path) as lp:
        lp.admin.rebuild()
        assert tables(path) == before
        assert lp.admin.verify().ok


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("UPDATE events SET payload = CAST(replace(payload, 'm7', 'm8') AS BLOB)", "position 9 "),
        ("UPDATE events SET payload = CAST(payload AS TEXT) WHERE version = 9", "position 9 "),
        ("DELETE FROM events WHERE version = 9", "events 9 to 9 are missing"),
        ("DELETE FROM events WHERE key = (SELECT max(key) FROM events)", "1 more event"),
        ("UPDATE events SET link = x'00' WHERE version = 9", "position 9 "),
        ("UPDATE streams SET name = 'session/other' WHERE name = 'session/long'", "streams"),
        ("UPDATE keys SET first = 1", "keys"),
        ("DELETE FROM blobs", "blob"),
        ("UPDATE blobs SET content = x'00'", "blob"),
        ("UPDATE blobs SET tenant = tenant + 7", "blob"),
    ],
)
def test_what_the_log_can_not_prove_is_refused(path: Path, statement: str, place: str):
    with limpet.connect(path) as lp:
        vandalise(path, "UPDATE projections SET owner = 'mallory'")
        vandalise(path, statement)
        before = tables(path, DERIVED + KEPT)
        with pytest.raises(limpet.Corrupt, match=place):
            lp.admin.rebuild()
        assert tables(path, DERIVED + KEPT) == before


def test_a_stream_of_a_later_version_is_refused(path: Path):
    number = "SELECT max(key) FROM streams"
    vandalise(path, f"UPDATE streams SET name = 'novel/1' WHERE key = ({number})")
    mark = chain.row_checksum(*tables_row(path, number))
    vandalise(path, f"UPDATE streams SET mark = ? WHERE key = ({number})", (mark,))
    before = tables(path, DERIVED + KEPT)
    with limpet.connect(path) as lp, pytest.raises(limpet.errors.NewerStore, match="novel/1"):
        lp.admin.rebuild()
    assert tables(path, DERIVED + KEPT) == before


def tables_row(path: Path, number: str) -> tuple[object, ...]:
    connection = database.connect(path, write=False)
    try:
        query = f"SELECT key, tenant, name FROM streams WHERE key = ({number})"
        return tuple(next(connection.execute(query)))
    finally:
        connection.close()


def lie(path: Path) -> None:
    """Put a snapshot into the store that says something else than the log, its mark right."""
    store = limpet.connect(path)
    kept = store._opened.engine.store
    assert isinstance(kept, SQLiteStore)
    stream = session_stream("long")
    truth = kept.snapshot("default", stream)
    assert truth is not None
    state = codec.decode_state(truth.state)
    assert state is not None
    state = msgspec.structs.replace(state, title="A lie")
    (link,) = [e.link for e in kept.read("default", stream, after=truth.version - 1, limit=1)]
    lied = codec.encode_state(state)
    store.close()
    connection = database.connect(path, write=True)
    key = connection.execute("SELECT key FROM streams WHERE tenant = 1 AND name = ?", (stream,)).get
    mark = chain.row_checksum(key, truth.version, truth.fold, lied, link)
    connection.execute("UPDATE snapshots SET state = ?, mark = ? WHERE stream = ?", (lied, mark, key))
    connection.close()


def elsewhere(path: Path) -> None:
    """Rebuild in another process."""
    program = "import sys, limpet\nwith limpet.connect(sys.argv[1]) as lp: lp.admin.rebuild()"
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(path)], check=True)


def beside(path: Path) -> None:
    """Rebuild in this process, by another engine."""
    with limpet.connect(path) as lp:
        lp.admin.rebuild()


@pytest.mark.parametrize("where", ["here", "beside", "elsewhere"])
@pytest.mark.parametrize("first", ["read", "write"])
def test_nobody_answers_from_what_it_cached_before(path: Path, where: str, first: str):
    lie(path)
    with limpet.connect(path) as lp:
        assert lp.sessions.get_session("long").title == "A lie"
        lp.sessions.get_session("long").add_message(Message("user", "one more"))
        assert lp.sessions.list_sessions(user_id="ada")[0]["title"] == "A lie"
        if where == "here":
            lp.admin.rebuild()
        else:
            (beside if where == "beside" else elsewhere)(path)
        if first == "read":
            assert lp.sessions.get_session("long").title == "Long"
        lp.sessions.add_messages("long", [Message("user", "yet one")])
        assert lp.sessions.get_session("long").title == "Long"
        assert lp.sessions.list_sessions(user_id="ada")[0]["title"] == "Long"
        assert lp.sessions.get_session("long").message_count == LONG + 2
        before = tables(path)
        lp.admin.rebuild()
        assert tables(path) == before


def test_nothing_is_decided_early_on_what_a_rebuild_has_put_in_question(path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a crowd an engine decides on what it remembers, and hands that over."""
    lie(path)
    with limpet.connect(path) as lp:
        assert lp.sessions.get_session("long").title == "A lie"
        elsewhere(path)
        monkeypatch.setattr(SQLiteStore, "contended", property(lambda _: True))
        lp.sessions.add_messages("long", [Message("user", "one more")])
        assert lp.sessions.list_sessions(user_id="ada")[0]["title"] == "Long"


def test_a_rebuild_between_deciding_and_the_turn_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch):
    lie(path)
    with limpet.connect(path) as lp:
        assert lp.sessions.get_session("long").title == "A lie"
        monkeypatch.setattr(SQLiteStore, "contended", property(lambda _: True))
        monkeypatch.setattr(SQLiteStore, "hand_off", lambda *_: elsewhere(path))
        lp.sessions.add_messages("long", [Message("user", "one more")])
        assert lp.sessions.list_sessions(user_id="ada")[0]["title"] == "Long"


def test_the_root_of_a_frame_is_looked_for_again(path: Path):
    """It is remembered from a row, which may have been wrong."""
    with limpet.connect(path) as lp:
        lp._opened.engine.trees.put_root("default", "root", "another")
        with pytest.raises(errors.Error):
            lp.index.update_frame("root", goal="go on")
        beside(path)
        assert lp.index.update_frame("root", goal="go on").goal == "go on"


def test_a_state_read_before_a_rebuild_is_not_kept_after_it(path: Path, monkeypatch: pytest.MonkeyPatch):
    lie(path)
    real, rebuilt = SQLiteStore.snapshot, list[str]()
    with limpet.connect(path) as lp:

        def slow(store: SQLiteStore, tenant: str, stream: str) -> Snapshot | None:
            found = real(store, tenant, stream)
            if not rebuilt:
                rebuilt.append(stream)
                beside(path)
                assert lp.sessions.get_session("large"), "somebody else hears of it first"
            return found

        monkeypatch.setattr(SQLiteStore, "snapshot", slow)
        assert lp.sessions.get_session("long").title == "A lie", "it was asked for before"
        assert lp.sessions.get_session("long").title == "Long"


def test_a_volatile_store_is_rebuilt_too():
    with limpet.connect("volatile:") as lp:
        fill(lp.sessions)
        seen = shown(lp)
        assert lp.admin.rebuild().tenants == 1
        assert shown(lp) == seen


def test_progress_comes_to_its_end(path: Path):
    told: list[tuple[int, int]] = []
    with limpet.connect(path) as lp:
        made = lp.admin.rebuild(lambda done, total: told.append((done, total)))
    assert {total for _, total in told} == {2 * made.events}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == 2 * made.events


def test_one_whose_progress_fails_changes_nothing_and_lets_others_write(path: Path):
    vandalise(path, "UPDATE projections SET owner = 'mallory'")
    before = tables(path, DERIVED)
    with limpet.connect(path) as lp:
        for last in (1, 3, 6):
            seen: list[int] = []

            def told(done: int, total: int, seen: list[int] = seen, last: int = last) -> None:
                seen.append(done)
                if len(seen) == last:
                    raise ZeroDivisionError(total)

            with pytest.raises(ZeroDivisionError):
                lp.admin.rebuild(told)
            assert tables(path, DERIVED) == before
        other = threading.Thread(target=lp.sessions.create_session, args=("after",))
        other.start()
        other.join(120)
        assert lp.sessions.get_session("after")


def test_async_callers_rebuild(path: Path):
    before = tables(path)
    vandalise(path, "DELETE FROM claims")

    async def rebuild() -> Rebuilt:
        async with limpet.connect_async(path) as lp:
            return await lp.admin.rebuild()

    assert asyncio.run(rebuild()).tenants == 2
    assert tables(path) == before


KILLED = """
import os, signal, sys
import limpet

left = int(sys.argv[2])
def told(done, total):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

limpet.connect(sys.argv[1]).admin.rebuild(told)
"""


@pytest.mark.parametrize("after", [1, 2, 3, 5, 8, 12])
def test_killed_anywhere_the_old_rows_stand(path: Path, after: int):
    vandalise(path, "UPDATE projections SET owner = 'mallory'")
    before = tables(path, DERIVED)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), str(after)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert tables(path, DERIVED) == before
    with limpet.connect(path) as lp:
        lp.admin.rebuild()
        assert lp.sessions.list_sessions(user_id="mallory") == []
        assert lp.admin.verify().ok


WRITER = """
import sys
import limpet

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with limpet.connect(path) as lp:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        if number % 10 == 0:
            lp.sessions.create_session(f"{name}-{number}", user_id=name, metadata={"n": number})
        for session in ("shared", f"{name}-{number - number % 10}"):
            lp.sessions.add_messages(session, [limpet.Message("user", f"{name} {number}")])
"""
REBUILDER = """
import sys
import limpet

with limpet.connect(sys.argv[1]) as lp:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(sys.argv[2])):
        print(lp.admin.rebuild().events, flush=True)
"""


def test_processes_write_while_another_rebuilds(path: Path):
    count, rebuilds, names = 80, 12, ("a", "b", "c")
    with limpet.connect(path) as lp:
        lp.sessions.create_session("shared")

    def start(program: str, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, str(path), *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    running = [start(WRITER, name, count) for name in names] + [start(REBUILDER, rebuilds)]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    outputs = [one.communicate(timeout=300)[0] for one in running]
    assert [one.returncode for one in running] == [0] * len(running)
    seen = [int(line) for line in outputs[-1].split()]
    assert len(seen) == rebuilds
    assert len(set(seen)) > 2, "some of them while others wrote"
    with limpet.connect(path) as lp:
        said = [str(message.content) for message in lp.sessions.get_session("shared").messages]
        assert sorted(said) == sorted(f"{name} {number}" for name in names for number in range(count))
        for name in names:
            assert len(lp.sessions.list_sessions(user_id=name, limit=100)) == count // 10
        before = tables(path)
        lp.admin.rebuild()
        assert tables(path) == before
        assert lp.admin.verify().ok
