"""Promises for which a planted bug found no test of their own. Patches in `planted/` name these."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

import limpet
from limpet import Limpet, Message, ToolCallRequest, errors, limits
from limpet.core.formats import codec
from limpet.core.values import ids
from limpet.core.values.session_state import SessionState
from limpet.runtime.commit_queue import CommandResult, CommitQueue, Ticket
from limpet.sessions.requests import SessionRequests, Settings
from limpet.stores import chain, sqlite
from limpet.stores.sqlite import database, reads
from limpet.stores.sqlite.shared_file.store_files import HEADS_MAX, SLOT_BYTES
from limpet.testing.store_contract.harness import TENANT, commit, commit_all, make_append, write
from tests.acceptance.conversation_steps import (
    Opener,
    answer,
    asking,
    engine_of,
    feed,
    giving,
    neighbour,
    set_clock,
    texts,
    user,
)

WRITER = """
import os, sys
import limpet
lp = limpet.connect(sys.argv[1])
session = lp.sessions.create_session("s")
for number in range(20):
    session.add_message({"role": "user", "content": str(number)})
os._exit(0)
"""


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_log_cut_short_after_a_crash_is_reported(tmp_path: Path, share: float):
    """SQLite takes the cut for commits that never happened; only the anchor knows of them."""
    path = tmp_path / "state.db"
    subprocess.run([sys.executable, "-c", WRITER, path], check=True)
    log = Path(f"{path}-wal")
    whole = log.read_bytes()
    log.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(errors.Corrupt, match="had been acknowledged"):
        limpet.connect(path)
    log.write_bytes(whole)
    with limpet.connect(path) as lp:
        assert texts(lp.sessions.get_session("s")) == [str(number) for number in range(20)]


@pytest.mark.parametrize("linked", [False, True], ids=["link kept", "link made anew"])
def test_verify_finds_an_event_that_was_forged_whole(tmp_path: Path, linked: bool):
    """Payload, salt and digest agree with one another, and pages with their checksums."""
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        session = lp.sessions.create_session("s")
        for text in ("one", "two", "three"):
            session.add_message(user(text))
        assert lp.admin.verify().ok
    with contextlib.closing(database.connect(path, write=True)) as forger:
        first, second = (
            reads.decode_event_row(raw)
            for raw in forger.execute(
                "SELECT key, stream, version, header, payload, salt, digest, link FROM events LIMIT 2"
            )
        )
        payload, salt = (second.payload or b"").replace(b"one", b"eno"), bytes(16)
        digest = chain.event_digest(salt, second.header, payload)
        link = chain.next_link(first.link, digest, second.header) if linked else second.link
        forger.execute(
            "UPDATE events SET payload = ?, salt = ?, digest = ?, link = ? WHERE version = 2",
            (payload, salt, digest, link),
        )
    with limpet.connect(path) as lp:
        report = lp.admin.verify()
        assert not report.ok
        assert "the chain breaks here" in report.faults[0]


def test_a_changed_listing_row_is_never_shown(tmp_path: Path):
    """No digest covers what is derived from the log; the checksum of its page does."""
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        lp.sessions.create_session("s").add_messages([user("1"), user("2"), user("3")])
        assert lp.admin.status()["page_checksums"] is True
    found = path.read_bytes()
    changed = found.replace(b'"message_count":3', b'"message_count":7')
    assert changed != found
    path.write_bytes(changed)
    with contextlib.suppress(errors.Corrupt), limpet.connect(path) as lp:
        assert [row["message_count"] for row in lp.sessions.list_sessions()] == [3]


@pytest.mark.parametrize("half", [0, 1])
def test_either_half_of_the_anchor_is_enough(tmp_path: Path, half: int):
    path = tmp_path / "state.db"
    subprocess.run([sys.executable, "-c", WRITER, path], check=True)
    for name, change in (("-anchor", _torn(half)), ("-wal", lambda data: data[: len(data) // 2])):
        file = Path(f"{path}{name}")
        file.write_bytes(change(file.read_bytes()))
    with pytest.raises(errors.Corrupt, match="had been acknowledged"):
        limpet.connect(path)


def _torn(half: int) -> Callable[[bytes], bytes]:
    begin = half * SLOT_BYTES
    return lambda data: data[:begin] + bytes(40) + data[begin + 40 :]


@pytest.mark.req("A-18")
def test_an_anchor_with_more_tenants_than_it_has_room_for_still_holds(fast_dir: Path):
    path = fast_dir / "state.db"
    with limpet.connect(path) as lp:
        for number in range(2 * HEADS_MAX):
            neighbour(lp, f"tenant {number}").create_session("s")
    with limpet.connect(path) as lp:
        assert lp.admin.status()["notes"] == []
        assert lp.admin.verify().ok


@pytest.mark.req("A-20")
def test_the_anchor_of_two_who_take_turns_is_never_behind(tmp_path: Path):
    path, image = tmp_path / "state.db", tmp_path / "image"
    image.mkdir()
    with limpet.connect(path) as one, limpet.connect(path) as other:
        one.sessions.create_session("s")
        for number in range(7):
            writer = other if number % 3 else one
            writer.sessions.add_messages("s", [user(str(number))])
            for name in ("state.db", "state.db-wal", "state.db-anchor"):
                shutil.copy(tmp_path / name, image / name)
            with limpet.connect(image / "state.db") as crashed:
                assert crashed.admin.status()["notes"] == []


@pytest.mark.req("A-20")
def test_a_metadata_filter_follows_what_another_worker_changed(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path) as one, limpet.connect(path) as other:
        # Several times, since rows of one moment (about a second) are written another way.
        for number in range(5):
            one.sessions.create_session(f"s{number}", metadata={"k": number})
            other.sessions.update_session(f"s{number}", metadata={"k": "other"})
            one.sessions.update_session(f"s{number}", metadata={"k": number})
            found = one.sessions.list_sessions(metadata={"k": number})
            assert [row["id"] for row in found] == [f"s{number}"]
            assert one.sessions.list_sessions(metadata={"k": "other"}) == []


def test_nobody_is_refused_for_what_another_worker_has_mended(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path) as one, limpet.connect(path) as other:
        session = one.sessions.create_session("s")
        session.add_message(asking("c1"))
        with pytest.raises(errors.OpenCalls):
            session.add_message(user("too early"))
        other.sessions.get_session("s").add_message(giving("c1"))
        assert session.add_message(user("now")).message_count == 3


def test_a_stream_that_a_failed_commit_began_is_not_remembered(tmp_path: Path):
    """Its number is free again and goes to the next stream; the two must not become one."""
    with contextlib.closing(sqlite.open_store(tmp_path / "state.db")) as store:
        commit_all(store, make_append(write("first", 0, b"1")))
        store._writer.pragma("max_page_count", 1)
        with pytest.raises(errors.StoreFull):
            commit(store, make_append(write("never", 0, b"2")), make_append(write("never", 1, bytes(10**6))))
        commit_all(store, make_append(write("second", 0, b"3")))
        assert [event.payload for event in store.read(TENANT, "second")] == [b"3"]
        assert store.read(TENANT, "never") == []
        commit_all(store, make_append(write("never", 0, b"4")))
        assert [event.payload for event in store.read(TENANT, "second")] == [b"3"]


def test_a_log_taken_away_in_the_middle_of_a_turn_is_noticed(tmp_path: Path):
    """Another SQLite library in this process drops our locks; what it removes, nobody can keep."""
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite.open_store(path)) as store:
        commit_all(store, make_append(write("a", 0, b"1")))
        with store.write_lock():
            assert store.version(TENANT, "a") == 1
            intruder = sqlite3.connect(path)
            intruder.execute("SELECT count(*) FROM events").fetchone()
            intruder.close()
            with pytest.raises(errors.Unavailable, match="Another SQLite library"):
                store.commit([make_append(write("a", 1, b"2"))])


def test_a_snapshot_that_was_changed_is_folded_anew(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        session = lp.sessions.create_session("s")
        session.add_messages([user(str(n)) for n in range(limits.SNAPSHOT_EVERY)])
        truth = session.state
    wrong = codec.encode_state(msgspec.structs.replace(truth, tokens=7))
    with contextlib.closing(database.connect(path, write=True)) as vandal:
        vandal.execute("UPDATE snapshots SET state = ?", (wrong,))
        assert vandal.changes() == 1
    with limpet.connect(path) as lp:
        assert lp.sessions.get_session("s").state == truth


def test_a_key_is_kept_for_its_time_and_no_longer(lp: Limpet):
    kept_us, begin = limits.IDEMPOTENCY_KEEP_S * 1_000_000, 10**15
    set_clock(lp, begin)
    session = lp.sessions.create_session("s")
    session.add_message(user("once"), key="k")
    set_clock(lp, begin + kept_us - 1)
    session.add_message(user("soon"), key="makes it look for old keys")
    session.add_message(user("once"), key="k")
    assert texts(session) == ["once", "soon"]
    set_clock(lp, begin + 2 * kept_us)
    session.add_message(user("late"), key="makes it look again")
    session.add_message(user("once"), key="k")
    assert texts(session) == ["once", "soon", "late", "once"]


def test_a_key_is_the_same_from_every_session_of_a_conversation(opener: Opener):
    lp = opener(max_messages_per_session=2)
    session = lp.sessions.create_session("root")
    session.add_messages([user("1"), answer("2")])
    session.add_message(user("3"), key="k")
    tail = session.id
    assert tail != "root"
    before = feed(lp)
    for name in ("root", tail):
        assert lp.sessions.add_messages(name, [user("3")], key="k").id == tail
    assert feed(lp) == before


def test_a_call_with_other_arguments_is_another_command(lp: Limpet):
    session = lp.sessions.create_session("s")
    one, other = (
        Message("assistant", tool_calls=[ToolCallRequest("c", "pay", {"amount": amount})], id="m") for amount in (1, 2)
    )
    session.add_message(one, key="k")
    before = feed(lp)
    assert session.add_message(one, key="k").version == session.version
    with pytest.raises(errors.KeyReused):
        session.add_message(other, key="k")
    assert session.add_message(one).version == session.version
    with pytest.raises((errors.DuplicateMessage, errors.OpenCalls)):
        session.add_message(other)
    assert feed(lp) == before


@pytest.mark.req("B-15")
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 7])
def test_the_last_page_says_that_it_is_the_last(lp: Limpet, limit: int):
    for number in range(6):
        lp.sessions.create_session(f"s{number}")
    page, pages = lp.sessions.list_sessions(limit), 1
    while page.next_cursor is not None:
        page, pages = lp.sessions.list_sessions(limit, cursor=page.next_cursor), pages + 1
        assert page, "a cursor leads to something"
    assert pages == -(-6 // limit)


def test_ending_for_idleness_is_not_activity(lp: Limpet):
    set_clock(lp, 1_000_000)
    idle = lp.sessions.create_session("s")
    set_clock(lp, 10**15)
    assert lp.sessions.expire() == ["s"]
    assert lp.sessions.get_session("s").last_active == idle.last_active
    assert [row["last_active"] for row in lp.sessions.list_sessions()] == [idle.last_active]


def test_a_snapshot_of_another_fold_is_not_read(opener: Opener, monkeypatch: pytest.MonkeyPatch):
    lp = opener(cached_sessions=1)
    encode, fold = codec.encode_state, codec.SESSION_FOLD_VERSION
    with monkeypatch.context() as later:
        later.setattr(codec, "SESSION_FOLD_VERSION", fold + 1)
        later.setattr(codec, "encode_state", lambda s: encode(msgspec.structs.replace(s, tokens=7)))
        session = lp.sessions.create_session("s")
        session.add_messages([user(str(n)) for n in range(limits.SNAPSHOT_EVERY)])
    lp.sessions.create_session("another, which takes its place in the cache")
    kept = engine_of(lp).store.snapshot("default", "session/s")
    assert kept is not None and kept.fold == fold + 1
    assert lp.sessions.get_session("s").state == session.state


def test_a_refusal_does_not_rest_on_what_was_itself_refused(lp: Limpet):
    """Two requests of one batch: the calls that would refuse the second never come about."""
    lp.sessions.create_session("s").add_message(Message("user", "first", id="taken"))
    requests = SessionRequests(Settings(), ids.SYSTEM_FACTORY)
    calls = msgspec.structs.replace(asking("a", "b"), id="taken")
    tickets = [
        Ticket(requests.add("s", [message], key=None, expected_version=None)) for message in (calls, user("second"))
    ]
    engine_of(lp)._process(tickets)
    assert isinstance(tickets[0].error, errors.DuplicateMessage)
    assert tickets[1].result().state.message_count == 2
    assert texts(lp.sessions.get_session("s")) == ["first", "second"]
    feed(lp)


class Delivered:
    """Takes finished tickets of a caller who does not block."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def deliver(self, tickets: Sequence[Ticket]) -> None:
        self.tickets += tickets


class Telling(Ticket):
    """Tells when its owner falls asleep."""

    asleep = threading.Event()

    def wait(self) -> None:
        self.asleep.set()
        super().wait()


def test_an_interrupted_leader_leaves_nobody_without_an_answer():
    """Control-C reaches the main thread while it commits for others too."""
    request = SessionRequests(Settings(), ids.SYSTEM_FACTORY).add("s", [user()], key=None, expected_version=None)
    leading, rounds = threading.Event(), list[int]()

    def process(batch: Sequence[Ticket]) -> None:
        rounds.append(len(batch))
        if len(rounds) == 1:
            leading.set()
            Telling.asleep.wait()
        elif len(rounds) == 2:
            raise KeyboardInterrupt
        for ticket in batch:
            ticket.succeed(CommandResult(SessionState(id="s")))

    queue, channel = CommitQueue(process), Delivered()
    first = threading.Thread(target=queue.run, args=(Ticket(request),))
    first.start()
    leading.wait()
    other = Ticket(request, channel)
    queue.submit(other)
    with pytest.raises(KeyboardInterrupt):
        queue.run(Telling(request))
    first.join()
    assert channel.tickets == [other]
    with pytest.raises(errors.Unavailable, match="whether it took effect is unknown"):
        other.result()
    assert queue.run(Ticket(request)).state.id == "s"
    assert rounds == [1, 2, 1]
    queue.close()


def test_a_full_queue_refuses_more_and_serves_what_it_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "QUEUE_MAX", 3)
    request = SessionRequests(Settings(), ids.SYSTEM_FACTORY).add("s", [user()], key=None, expected_version=None)
    leading, release = threading.Event(), threading.Event()

    def process(batch: Sequence[Ticket]) -> None:
        leading.set()
        release.wait()
        for ticket in batch:
            ticket.succeed(CommandResult(SessionState(id="s")))

    queue, channel = CommitQueue(process), Delivered()
    tickets = [Ticket(request, channel) for _ in range(3)]
    queue.submit(tickets[0])
    queue.start()
    leading.wait()
    for ticket in tickets[1:]:
        queue.submit(ticket)
    with pytest.raises(errors.Unavailable, match="Submit more slowly"):
        queue.submit(Ticket(request, channel))
    release.set()
    queue.close()
    assert channel.tickets == tickets
