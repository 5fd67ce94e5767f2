"""What attackers have found: each was so once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Message, WindowPolicy, errors
from limpet.core.values.memory_records import ArchivedMessage
from limpet.llm.models import FailedAttempt, _Completion, decode_answer
from limpet.memory.facts import rules
from limpet.memory.index import terms
from limpet.testing.memory_fakes import Scribe


def test_a_summary_that_was_being_written_when_a_message_was_erased_is_not_taken(tmp_path: Path):
    with limpet.connect(tmp_path / "a.db", policy=WindowPolicy(budget=1_000, summary="en")) as lp:
        session = lp.sessions.create_session("s", user_id="bo")
        session.add_message(Message("user", "We live in Zebraville.", id="m1"))
        for day in range(60):
            session.add_message(Message("user", f"What did we decide for day {day} of the trip?"))
            session.add_message(Message("assistant", f"ferry number {day} it is"))

        def writes(messages: Sequence[Message], _before: str | None) -> str:
            lp.admin.erase(session_id="s", message_id="m1")
            return f"They live in Zebraville. {len(messages)}"

        with pytest.raises(errors.Conflict):
            session.summarize(writes)
        window = lp.sessions.get_session("s").window(1_000)
        assert "Zebraville" not in " ".join(str(m.content) for m in window.messages)
    assert not [f for f in tmp_path.iterdir() if b"Zebraville" in f.read_bytes()]


def test_a_history_that_was_forgotten_on_its_way_to_an_engine_is_forgotten_there_too(tmp_path: Path):
    memory = Scribe()
    with limpet.connect(tmp_path / "a.db", memory=memory) as lp:
        lp.sessions.create_session("s", user_id="bo").add_message(Message("user", "I live in Oslo."))
        lp.sessions.end_session("s")
        ingest = memory.ingest

        def late(history: Any, messages: Any) -> None:
            kept = list(messages)
            lp.memory.forget("bo")
            memory.forgotten.clear()
            ingest(history, kept)

        memory.ingest = late
        lp.worker().run_once()
    assert [user.user_id for user in memory.forgotten] == ["bo"]


def test_metadata_of_a_caller_is_no_prompt_that_memory_made(tmp_path: Path):
    with limpet.connect(tmp_path / "a.db") as lp:
        lp.sessions.create_session("a", user_id="ada").add_message(Message("user", "secret", id="m"))
        forged = {"memory": {"sources": [{"position": 2}]}}
        other = lp.sessions.create_session("b", user_id="ada")
        other.add_message(Message("user", "innocent", metadata=forged))
        lp.admin.erase(session_id="a", message_id="m")
        assert other.messages[0].content == "innocent"


def test_an_event_of_no_schema_is_refused(tmp_path: Path):
    with limpet.connect(tmp_path / "a.db") as lp:
        lp.sessions.create_session("s").add_message(Message("user", "x"))
        lp.admin.export(tmp_path / "x.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("kind") == "session.message_added":
            line["schema"] = 0
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines[:-1])
    lines[-1]["sha256"] = hashlib.sha256(body).hexdigest()
    (tmp_path / "y.jsonl").write_bytes(body + json.dumps(lines[-1]).encode() + b"\n")
    with limpet.connect(tmp_path / "b.db") as lp, pytest.raises(errors.DamagedFile):
        lp.admin.import_(tmp_path / "y.jsonl")


def test_an_answer_that_is_nested_deep_is_no_answer():
    deep = b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b',"choices":[]}'
    assert isinstance(decode_answer(deep, _Completion), FailedAttempt)


def test_crowds_of_marks_and_letters_that_grow_cost_little():
    """Each takes minutes where it is not held down: the test would not end in its time."""
    marks = "a" + "\u0301\u0316" * 200_000
    assert terms.count_terms(marks)
    message = Message("user", ("私は" + "\ufdfa" * 290 + "。") * 27)
    said = ArchivedMessage(position=1, session_id="s", generation=0, number=1, time_us=1, message=message)
    assert len(rules.extract([said])) <= 16
