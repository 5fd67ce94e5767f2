"""Payloads: explicit kinds and schemas, upcasters, and that nothing of a later version is misread."""

from __future__ import annotations

import json
from typing import Any

import pytest

from limpet import Message, ToolCallRequest, ToolCallResult, errors
from limpet.core.formats import codec
from limpet.core.values import commands, events
from limpet.core.values.context import CompactionLevel, WindowSelection
from limpet.core.values.session_state import (
    Cut,
    EndReason,
    OpenCall,
    SessionState,
    SessionStatus,
    Summary,
    session_info,
)

STATE = SessionState(
    id="t",
    version=8,
    user_id="ada",
    metadata={"a": [1]},
    open_calls=(OpenCall("m", "c", "f"),),
    kept=(2, 3),
    cut=Cut(7, 5, 1_000, -3, 2),
    forked_from=("s", 7),
    rebased=8,
)

FACTS: list[events.SessionEvent] = [
    events.SessionCreatedEvent(id="s", user_id="grace", title="T", metadata={"a": [1]}),
    events.SessionCreatedEvent(id="t", root_id="r", continued_from="s", continuation_index=2),
    events.MessageAddedEvent(Message("user", "hi", metadata={"k": "v"}), 3, "given"),
    events.MessageAddedEvent(Message("assistant", tool_calls=[ToolCallRequest("c", "f", {"a": 1})]), 9, "estimate-1"),
    events.MessageAddedEvent(Message("tool", tool_results=[ToolCallResult("c", None, True)]), 1, "x"),
    events.SessionUpdatedEvent(title=None),
    events.SessionUpdatedEvent(title="new", set_metadata={"a": {}}, drop_metadata=("b",)),
    events.SessionUpdatedEvent(set_metadata={"a": 1}),
    events.WindowRecordedEvent(
        WindowSelection(
            "s",
            9,
            0,
            500,
            40,
            3,
            "o200k_base",
            True,
            CompactionLevel.LIGHT,
            ((1, 1), {"message": {"role": "system"}}, (3, 4)),
            (9, 9, 9, 10),
            "00",
        )
    ),
    events.WindowCutEvent(Cut(7, 5, 1_000, -3, 2)),
    events.SessionSummarizedEvent(Summary(2, 6, "Summary of previous context: x", "", 9)),
    events.SessionContinuedEvent("t"),
    events.SessionForkedEvent("t", "s", 7, STATE),
    events.SessionRewoundEvent(7, STATE),
    events.SessionResetEvent(),
    events.SessionEndedEvent(EndReason.TIMEOUT),
    events.SessionOffloadedEvent(2, "built-in"),
    events.SessionErasedEvent(2, "00" * 32),
]


def decoded(fact: events.SessionEvent, payload: bytes | None = None) -> events.SessionEvent:
    counted = fact if isinstance(fact, events.MessageAddedEvent) else None
    made = codec.encode_with_blobs(fact)
    return codec.decode_session_event(
        fact.kind,
        made.schema,
        made.payload if payload is None else payload,
        tokens=counted.tokens if counted else None,
        counter=counted.counter if counted else None,
    )


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.kind)
def test_every_event_is_read_back_equal(fact: events.SessionEvent):
    assert decoded(fact) == fact


def test_every_kind_has_a_schema_and_an_example_here():
    assert {fact.kind for fact in FACTS} == set(codec.SESSION_EVENT_SCHEMAS)


def test_untouched_title_and_removed_title_are_told_apart():
    assert decoded(events.SessionUpdatedEvent(title=None)) != decoded(events.SessionUpdatedEvent())


@pytest.mark.req("A-8")
def test_unknown_fields_of_a_stored_message_are_kept():
    payload = b'{"id":"m","timestamp":"2026-01-01T00:00:00+00:00","role":"user","content":"x","v9":[1]}'
    fact = codec.decode_session_event("session.message_added", 1, payload, tokens=1, counter="x")
    assert isinstance(fact, events.MessageAddedEvent)
    assert fact.message.extra == {"v9": [1]}
    assert json.loads(codec.encode_session_event(fact))["v9"] == [1]


def test_unknown_fields_beside_a_providers_dict_are_kept():
    chat = b'{"id":"m","timestamp":"2026-01-01T00:00:00+00:00","openai":{"role":"user","content":"x"},"v9":1}'
    fact = codec.decode_session_event("session.message_added", 1, chat, tokens=1, counter="x")
    assert isinstance(fact, events.MessageAddedEvent)
    assert fact.message.extra == {"v9": 1}
    assert json.loads(codec.encode_session_event(fact)) == json.loads(chat) | {
        "timestamp": "2026-01-01T00:00:00.000000+00:00"
    }


def lift_reason(data: dict[str, Any]) -> dict[str, Any]:
    return {"reason": {"t": "timeout", "e": "ended"}[data["why"]]}


def lift_text(data: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in data.items() if k != "text"}, "content": data["text"]}


def test_an_older_payload_climbs_every_step(monkeypatch: pytest.MonkeyPatch):
    kind = events.SessionEndedEvent.kind
    monkeypatch.setitem(codec.SESSION_EVENT_SCHEMAS, kind, 3)
    monkeypatch.setitem(codec.UPCASTERS, (kind, 1), lambda data: {"why": data["w"]})
    monkeypatch.setitem(codec.UPCASTERS, (kind, 2), lift_reason)
    timeout = events.SessionEndedEvent(EndReason.TIMEOUT)
    for schema, payload in ((1, b'{"w":"t"}'), (2, b'{"why":"t"}'), (3, b'{"reason":"timeout"}')):
        assert codec.decode_session_event(kind, schema, payload, tokens=None, counter=None) == timeout


def test_an_older_message_climbs_too(monkeypatch: pytest.MonkeyPatch):
    kind = events.MessageAddedEvent.kind
    monkeypatch.setitem(codec.SESSION_EVENT_SCHEMAS, kind, 2)
    monkeypatch.setitem(codec.UPCASTERS, (kind, 1), lift_text)
    payload = b'{"id":"m","timestamp":"2026-01-01T00:00:00+00:00","role":"user","text":"old","v0":1}'
    fact = codec.decode_session_event(kind, 1, payload, tokens=2, counter="x")
    assert isinstance(fact, events.MessageAddedEvent)
    assert (fact.message.content, fact.message.extra) == ("old", {"v0": 1})


@pytest.mark.parametrize(("kind", "schema"), [("session.created", 2), ("session.invented", 1)])
def test_what_a_newer_version_wrote_is_refused_with_the_remedy(kind: str, schema: int):
    with pytest.raises(errors.NewerStore, match=r"pip install \."):
        codec.decode_session_event(kind, schema, b"{}", tokens=None, counter=None)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("session.created", b"{}"),
        ("session.created", b'{"id":5}'),
        ("session.created", b"not json"),
        ("session.ended", b'{"reason":"boredom"}'),
        ("session.message_added", b"[]"),
        ("session.message_added", b"{}"),
        ("session.message_added", b'{"role":"user"}'),
        ("session.message_added", b'{"role":"ghost","content":"x"}'),
        ("session.message_added", b'{"role":"user","content":"x","timestamp":5}'),
        ("session.message_added", b'{"openai":5}'),
        ("session.message_added", b'{"openai":{"role":["user"]}}'),
        ("session.message_added", b"\xff\xfe"),
    ],
    ids=str,
)
def test_bytes_that_can_not_be_an_event_are_corrupt(kind: str, payload: bytes):
    with pytest.raises(errors.Corrupt):
        codec.decode_session_event(kind, 1, payload, tokens=1, counter="x")


def test_a_state_survives_its_snapshot_and_anything_else_is_no_state():
    state = SessionState(
        id="s", version=9, status=SessionStatus.ENDED, end_reason=EndReason.TIMEOUT, user_id="ada",
        metadata={"a": [1]}, open_calls=(OpenCall("m", "c", "f"),), answered=("d",), kept=(1, 4),
        continuations=("t", "u"), continuation_index=3, root_id="r",
    )  # fmt: skip
    again = codec.decode_state(codec.encode_state(state))
    assert again == state
    with pytest.raises(TypeError):
        again.metadata["a"] = 2  # pyright: ignore[reportIndexIssue, reportOptionalMemberAccess] - it must refuse
    assert codec.decode_state(b"{}") is None
    assert codec.decode_state(b"rubbish") is None


def test_a_listing_row_survives_and_rubbish_is_corrupt():
    state = SessionState(id="s", user_id="grace", title="T", metadata={"a": 1}, version=2)
    kept = codec.encode_info(session_info(state))
    row = codec.decode_info(kept, id="s", user_id="grace", active_us=5)
    assert (row.id, row.user_id, row.title, row.active_us) == ("s", "grace", "T", 5)
    assert (row.metadata, row.version) == ({"a": 1}, 2)
    assert b"grace" not in kept, "the row's own columns have it"
    with pytest.raises(errors.Corrupt):
        codec.decode_info(b'{"title":5}', id="s", user_id=None, active_us=0)


COMMANDS: list[commands.SessionCommand] = [
    commands.CreateSession(session_id="s", metadata={"a": 1, "b": 2}),
    commands.AddMessages(session_id="s", messages=(Message("user", "x"),), max_messages=5),
    commands.UpdateSession(session_id="s", set_metadata={"a": 1}),
    commands.UpdateSession(session_id="s", title=None),
    commands.UpdateSession(session_id="s", title="T", drop_metadata=("a",)),
    commands.ContinueSession(session_id="s"),
    commands.EndSession(session_id="s"),
    commands.EndSession(session_id="s", reason=EndReason.DELETED),
    commands.ResetSession(session_id="s"),
    commands.ResetSession(session_id="t"),
]


def test_different_commands_have_different_bytes():
    made = [codec.session_command_bytes(one) for one in COMMANDS]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: type(one).__name__)
def test_a_command_made_anew_has_the_same_bytes(one: commands.SessionCommand):
    assert codec.session_command_bytes(one) == codec.session_command_bytes(one)


def test_a_command_is_the_same_whatever_was_generated_for_it():
    def adding(text: str, metadata: dict[str, int]) -> bytes:
        message = Message("user", text, metadata=metadata)
        return codec.session_command_bytes(commands.AddMessages(session_id="s", messages=(message,)))

    first = adding("x", {"a": 1, "b": 2})
    assert adding("x", {"b": 2, "a": 1}) == first
    assert adding("y", {"a": 1, "b": 2}) != first
    assert adding("x", {"a": 1}) != first


def test_a_generated_session_id_is_not_part_of_what_was_said():
    def creating(id_: str, *, named: bool) -> bytes:
        return codec.session_command_bytes(commands.CreateSession(session_id=id_, named=named))

    assert creating("a", named=False) == creating("b", named=False)
    assert creating("a", named=True) != creating("b", named=True)
