"""Large texts of a message: taken out of its payload, and put back as they were."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet import Message, ToolCallRequest, ToolCallResult, errors, limits
from limpet.core.formats import codec, intake
from limpet.core.values import events

LIMIT = 64
BIG = "x" * (LIMIT + 1)


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BLOB_BYTES_MIN", LIMIT)


def stored(message: Message) -> codec.EncodedEvent:
    return codec.encode_with_blobs(events.MessageAddedEvent(message, 1, "x"))


def read(made: codec.EncodedEvent, contents: tuple[bytes, ...] | None = None) -> Message:
    kept = made.blobs if contents is None else contents
    texts = codec.decode_texts({hashlib.sha256(content).digest(): content for content in kept})
    kind = events.MessageAddedEvent.kind
    fact = codec.decode_session_event(kind, made.schema, made.payload, tokens=1, counter="x", texts=texts)
    assert isinstance(fact, events.MessageAddedEvent)
    return fact.message


def reference(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


MESSAGES: list[Any] = [
    Message("user", BIG),
    Message("user", "é" * LIMIT),
    Message("user", [{"type": "text", "text": BIG}, {"type": "text", "text": "small"}]),
    Message("assistant", tool_calls=[ToolCallRequest("c", "f", {"a": [{"b": BIG}], "n": 10**40})]),
    Message("tool", tool_results=[ToolCallResult("c", {"out": BIG, "": "z" * 99})]),
    Message("user", "short", metadata={"note": BIG, "x": 0.1}),
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:;base64,{BIG}"}}]},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": BIG})}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": BIG},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": BIG}]},
]


@pytest.mark.parametrize("given_", MESSAGES, ids=range(len(MESSAGES)))
def test_a_message_comes_back_as_it_was(given_: Any):
    message = intake.accept(given_)
    made = stored(message)
    assert made.schema == codec.SCHEMA_WITH_BLOBS
    assert made.blobs
    assert BIG.encode() not in made.payload
    again = read(made)
    assert again == message
    assert again.raw() == message.raw()
    assert codec.encode_session_event(events.MessageAddedEvent(again, 1, "x")) == codec.encode_session_event(
        events.MessageAddedEvent(message, 1, "x")
    )


def test_only_texts_above_the_limit_are_taken_out():
    exact, wide = "y" * LIMIT, "é" * (LIMIT // 2)
    many = Message("user", [{"type": "text", "text": exact}, {"type": "text", "text": wide}] * 9)
    assert stored(many) == codec.EncodedEvent(
        codec.SCHEMA_WHOLE, codec.encode_session_event(events.MessageAddedEvent(many, 1, "x")), ()
    )
    over = Message("user", [{"type": "text", "text": exact + "y"}, {"type": "text", "text": wide + "é"}])
    assert stored(over).blobs == ((exact + "y").encode(), (wide + "é").encode())


def test_a_text_that_occurs_twice_is_one_blob():
    made = stored(Message("user", BIG, metadata={"copy": BIG, "list": [BIG]}))
    assert made.blobs == (BIG.encode(),)
    told = json.loads(made.payload)
    assert told["message"]["content"] == told["message"]["metadata"]["copy"] == reference(BIG)
    assert told["blobs"] == [
        [["content"], len(BIG)],
        [["metadata", "copy"], len(BIG)],
        [["metadata", "list", 0], len(BIG)],
    ]


@pytest.mark.parametrize(
    "imitation",
    [reference(BIG), {"message": {"content": reference(BIG)}, "blobs": [[["content"], 65]]}, [[["content"], 65]]],
    ids=["hash", "payload", "list"],
)
@pytest.mark.parametrize("content", ["short", BIG], ids=["whole", "parted"])
def test_nothing_a_caller_writes_is_taken_for_a_reference(imitation: Any, content: str):
    metadata = {"blobs": imitation, "message": imitation}
    for message in (
        Message("user", content, metadata=metadata),
        Message("user", [{"type": "text", "text": reference(BIG)}], metadata={"x": content}),
        Message("tool", tool_results=[ToolCallResult("c", {**metadata, "content": content})]),
    ):
        assert read(stored(message)) == message
    foreign = json.dumps(
        {"id": "m", "timestamp": "2026-01-01T00:00:00+00:00", "role": "user", "content": content} | metadata
    )
    fact = codec.decode_session_event(events.MessageAddedEvent.kind, 1, foreign.encode(), tokens=1, counter="x")
    assert isinstance(fact, events.MessageAddedEvent)
    assert fact.message.extra == metadata
    assert read(stored(fact.message)) == fact.message


def test_the_size_of_a_message_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", 4_000)
    assert stored(Message("user", "x" * 3_500)).blobs
    with pytest.raises(errors.TooLarge):
        stored(Message("user", "x" * 4_001))


def test_a_blob_that_is_not_there_is_corrupt():
    made = stored(Message("user", BIG, metadata={"other": "y" * 99}))
    with pytest.raises(errors.Corrupt, match=reference(BIG)):
        read(made, (b"y" * 99,))


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b"[]",
        b'{"role":"user","content":"x"}',
        b'{"message":{"content":"x"},"blobs":[[["content"],1]]}',
        b'{"message":{"content":7},"blobs":[[["content"],1]]}',
        b'{"message":{},"blobs":[[["content"],1]]}',
        b'{"message":{"content":[]},"blobs":[[["content",0],1]]}',
        b'{"message":{"content":[]},"blobs":[[["content","a"],1]]}',
    ],
    ids=str,
)
def test_bytes_that_can_not_be_such_a_message_are_corrupt(payload: bytes):
    with pytest.raises(errors.Corrupt):
        codec.required_blob_hashes(events.MessageAddedEvent.kind, codec.SCHEMA_WITH_BLOBS, payload)
    with pytest.raises(errors.Corrupt):
        read(codec.EncodedEvent(codec.SCHEMA_WITH_BLOBS, payload))


def test_a_blob_that_is_no_text_is_corrupt():
    with pytest.raises(errors.Corrupt):
        codec.decode_texts({b"hash": b"\xff"})


TEXTS = st.text(max_size=8) | st.text(min_size=LIMIT // 4, max_size=2 * LIMIT) | st.just(BIG)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_any_value_comes_back_as_it_was(value: dict[str, Any]):
    message = Message("user", "", metadata={"value": value})
    made = stored(message)
    assert all(len(content) > LIMIT for content in made.blobs)
    assert len(set(made.blobs)) == len(made.blobs)
    assert read(made) == message
