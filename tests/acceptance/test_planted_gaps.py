"""Promises that only a planted bug showed to be untested. Each test here is named by a patch in `planted/`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Holdfast, Message, errors, limits
from holdfast.engine.commits import Answer, CommitQueue, Ticket
from holdfast.engine.requests import Requests, Settings
from holdfast.store import chain
from holdfast.store.sqlite import opening, rows
from holdfast.values import ids
from holdfast.values.session import SessionState
from holdfast.wire import codec
from tests.acceptance.scenes import Opener, asking, engine_of, feed, set_clock, texts, user

WRITER = """
import os, sys
import holdfast
hf = holdfast.connect(sys.argv[1])
session = hf.sessions.create_session("s")
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
        holdfast.connect(path)
    log.write_bytes(whole)
    with holdfast.connect(path) as hf:
        assert texts(hf.sessions.get_session("s")) == [str(number) for number in range(20)]


@pytest.mark.parametrize("linked", [False, True], ids=["link kept", "link made anew"])
def test_verify_finds_an_event_that_was_forged_whole(tmp_path: Path, linked: bool):
    """Payload, salt and digest agree with one another, and pages with their checksums."""
    path = tmp_path / "state.db"
    with holdfast.connect(path) as hf:
        session = hf.sessions.create_session("s")
        for text in ("one", "two", "three"):
            session.add_message(user(text))
        assert hf.admin.verify().ok
    with contextlib.closing(opening.connect(path, write=True)) as forger:
        first, second = (
            rows.row_of(raw)
            for raw in forger.execute(
                "SELECT key, stream, version, header, payload, salt, digest, link FROM events LIMIT 2"
            )
        )
        payload, salt = (second.payload or b"").replace(b"one", b"eno"), bytes(16)
        digest = chain.digest(salt, second.header, payload)
        link = chain.link(first.link, digest, second.header) if linked else second.link
        forger.execute(
            "UPDATE events SET payload = ?, salt = ?, digest = ?, link = ? WHERE version = 2",
            (payload, salt, digest, link),
        )
    with holdfast.connect(path) as hf:
        report = hf.admin.verify()
        assert not report.ok
        assert "the chain breaks here" in report.faults[0]


def test_a_changed_listing_row_is_never_shown(tmp_path: Path):
    """No digest covers what is derived from the log; the checksum of its page does."""
    path = tmp_path / "state.db"
    with holdfast.connect(path) as hf:
        hf.sessions.create_session("s").add_messages([user("1"), user("2"), user("3")])
        assert hf.admin.status()["page_checksums"] is True
    found = path.read_bytes()
    changed = found.replace(b'"message_count":3', b'"message_count":7')
    assert changed != found
    path.write_bytes(changed)
    with contextlib.suppress(errors.Corrupt), holdfast.connect(path) as hf:
        assert [row["message_count"] for row in hf.sessions.list_sessions()] == [3]


def test_a_key_is_kept_for_its_time_and_no_longer(hf: Holdfast):
    kept_us, begin = limits.IDEMPOTENCY_KEEP_S * 1_000_000, 10**15
    set_clock(hf, begin)
    session = hf.sessions.create_session("s")
    session.add_message(user("once"), key="k")
    set_clock(hf, begin + kept_us - 1)
    session.add_message(user("soon"), key="makes it look for old keys")
    session.add_message(user("once"), key="k")
    assert texts(session) == ["once", "soon"]
    set_clock(hf, begin + 2 * kept_us)
    session.add_message(user("late"), key="makes it look again")
    session.add_message(user("once"), key="k")
    assert texts(session) == ["once", "soon", "late", "once"]


def test_a_snapshot_of_another_fold_is_not_read(opener: Opener, monkeypatch: pytest.MonkeyPatch):
    hf = opener(cached_sessions=1)
    encode, fold = codec.encode_state, codec.FOLD
    with monkeypatch.context() as later:
        later.setattr(codec, "FOLD", fold + 1)
        later.setattr(codec, "encode_state", lambda s: encode(msgspec.structs.replace(s, tokens=7)))
        session = hf.sessions.create_session("s")
        session.add_messages([user(str(n)) for n in range(limits.SNAPSHOT_EVERY)])
    hf.sessions.create_session("another, which takes its place in the cache")
    kept = engine_of(hf).store.snapshot("default", "session/s")
    assert kept is not None and kept.fold == fold + 1
    assert hf.sessions.get_session("s").state == session.state


def test_a_refusal_does_not_rest_on_what_was_itself_refused(hf: Holdfast):
    """Two requests of one batch: the calls that would refuse the second never come about."""
    hf.sessions.create_session("s").add_message(Message("user", "first", id="taken"))
    requests = Requests(Settings(), ids.SYSTEM)
    calls = msgspec.structs.replace(asking("a", "b"), id="taken")
    tickets = [
        Ticket(requests.add("s", [message], key=None, expected_version=None))
        for message in (calls, user("second"))
    ]
    engine_of(hf)._process(tickets)
    assert isinstance(tickets[0].error, errors.DuplicateMessage)
    assert tickets[1].result().state.message_count == 2
    assert texts(hf.sessions.get_session("s")) == ["first", "second"]
    feed(hf)


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
    request = Requests(Settings(), ids.SYSTEM).add("s", [user()], key=None, expected_version=None)
    leading, rounds = threading.Event(), list[int]()

    def process(batch: Sequence[Ticket]) -> None:
        rounds.append(len(batch))
        if len(rounds) == 1:
            leading.set()
            Telling.asleep.wait()
        elif len(rounds) == 2:
            raise KeyboardInterrupt
        for ticket in batch:
            ticket.succeed(Answer(SessionState(id="s")))

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
