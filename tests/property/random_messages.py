"""Messages by chance: what agents say, what providers send, and what must be refused."""

from __future__ import annotations

import random
from typing import Any

from limpet import Message, MessageCategory, ToolCallRequest, ToolCallResult
from limpet.core.formats import intake
from tests.property.world import Talk

TEXTS = ["", "hi", "plan a trip to Oslo", "前文摘要：", "\0\x7f\u2028", "👩‍💻 ok", "x" * 300]


def text(rng: random.Random) -> str:
    return f"{rng.choice(TEXTS)} {rng.randrange(1_000_000)}"


def spoken(rng: random.Random) -> Message:
    """Something that opens no calls."""
    kind = rng.randrange(6)
    if kind == 0:
        return Message("user", text(rng), metadata={"n": [rng.randrange(9), {"deep": None}]})
    if kind == 1:
        return Message("user", text(rng), MessageCategory.CONTEXT, tokens=rng.randrange(50))
    if kind == 2:
        return intake.accept({"role": "user", "content": text(rng), "name": "ada", "v9": [1.5]})
    if kind == 3:
        later = {"role": "assistant", "content": text(rng), "category": "LATER", "new": {"a": [1]}}
        return Message.from_dict(later)
    if kind == 4:
        return Message("user", [{"type": "text", "text": text(rng)}, {"type": "image_url"}])
    return Message("assistant", text(rng))


def asking(rng: random.Random) -> Message:
    ids = rng.sample(["a", "b", "c", "d"], rng.randint(1, 3))
    if rng.random() < 0.5:
        return Message("assistant", tool_calls=[ToolCallRequest(id_, "f", {"x": 1}) for id_ in ids])
    calls: list[dict[str, Any]] = [
        {"id": id_, "type": "function", "function": {"name": "f", "arguments": '{ "x":1}'}} for id_ in ids
    ]
    return intake.accept({"role": "assistant", "content": None, "tool_calls": calls})


def giving(rng: random.Random, waiting: list[str]) -> Message:
    chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
    if len(chosen) == 1 and rng.random() < 0.5:
        return intake.accept({"role": "tool", "tool_call_id": chosen[0], "content": text(rng)})
    results = [ToolCallResult(id_, {"r": text(rng)}, rng.random() < 0.1) for id_ in chosen]
    return Message("tool", tool_results=results)


def fitting(rng: random.Random, talk: Talk, count: int) -> list[Message]:
    """Messages that may follow."""
    made: list[Message] = []
    waiting = list(talk.open_calls())
    for _ in range(count):
        if waiting:
            message = giving(rng, waiting)
            done = {result.tool_call_id for result in message.tool_results}
            waiting = [id_ for id_ in waiting if id_ not in done]
        elif rng.random() < 0.35:
            message = asking(rng)
            waiting = [call.id for call in message.tool_calls]
        else:
            message = spoken(rng)
        made.append(message)
    return made


def wrong(rng: random.Random, talk: Talk) -> list[Message]:
    """Messages of which one must not follow."""
    waiting = talk.open_calls()
    if waiting and rng.random() < 0.6:
        return [rng.choice([spoken, asking])(rng)]
    if not waiting and rng.random() < 0.3:
        return [spoken(rng), Message("tool", tool_results=[ToolCallResult("a", 1)])]
    if rng.random() < 0.3:
        call = ToolCallRequest("twin", "f")
        return [*fitting(rng, talk, 1), Message("assistant", tool_calls=[call, call])]
    return [Message("tool", tool_results=[ToolCallResult("nobody", 1)])]
