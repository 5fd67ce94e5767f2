"""A window, step by step: each message with the results of its calls, and ids that providers accept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from limpet import errors, limits
from limpet.core.values.json_values import Json
from limpet.core.values.messages import Message, ToolCallRequest, ToolCallResult
from limpet.wire.render import parts
from limpet.wire.render.parts import Part

OPENING: Final = "(conversation begins)"
"""Said by the user before an assistant's first words, where a provider wants the user to begin."""

FAILED: Final = "Error: "
"""Before the text of a failed call, where a provider has no other way to say so."""

_DIGEST: Final = 12


class Answer(NamedTuple):
    """The result of a call, and the message that carries it."""

    message: Message
    result: ToolCallResult

    def parts(self) -> tuple[Part, ...]:
        """Return what the tool gave. A message may say it as its content, if it has one result only."""
        given: Json = self.result.result
        if given is None and self.message.anthropic is None and len(self.message.tool_results) == 1:
            given = self.message.content
        return parts.read_result(given)


class Step(NamedTuple):
    """A message that is not of role tool, with one answer for each of its calls, as they came in."""

    message: Message
    answers: tuple[Answer, ...] = ()

    def in_order(self) -> list[tuple[ToolCallRequest, Answer]]:
        """Return calls and answers in the order of the calls."""
        found = {answer.result.tool_call_id: answer for answer in self.answers}
        return [(call, found[call.id]) for call in self.message.tool_calls]

    def carriers(self) -> list[Message]:
        """Return the messages that carried the answers, each once."""
        seen: list[Message] = []
        for answer in self.answers:
            if not seen or seen[-1] is not answer.message:
                seen.append(answer.message)
        return seen

    def said_beside(self) -> list[Part]:
        """Return what the user said in the same breath as the results, which only one provider allows."""
        return [
            part
            for carrier in self.carriers()
            if carrier.anthropic is not None
            for part in parts.read(carrier.content)
        ]


def split(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Return the system messages that a window begins with, and the rest."""
    count = 0
    while count < len(messages) and messages[count].role == "system":
        count += 1
    return list(messages[:count]), list(messages[count:])


def steps(messages: Sequence[Message]) -> Iterator[Step]:
    """Go through a window. Raises OpenCalls or ResultWithoutCall if calls and results are not paired."""
    number = 0
    while number < len(messages):
        message = messages[number]
        number += 1
        if message.role == "tool":
            raise errors.ResultWithoutCall(
                "a result stands before its call, or without it.",
                hint="Render a window, which keeps calls and results together.",
                facts={"message": message.id},
            )
        waiting = {call.id for call in message.tool_calls}
        answers: list[Answer] = []
        while waiting and number < len(messages) and messages[number].role == "tool":
            for result in messages[number].tool_results:
                _take(waiting, result)
                answers.append(Answer(messages[number], result))
            number += 1
        if waiting:
            raise errors.OpenCalls(
                f"{len(waiting)} tool call(s) have no result; no provider takes that.",
                hint="Add their results first, or close them with close_pending_calls().",
                facts={"calls": sorted(waiting)},
            )
        yield Step(message, tuple(answers))


def _take(waiting: set[str], result: ToolCallResult) -> None:
    if result.tool_call_id not in waiting:
        raise errors.ResultWithoutCall(facts={"call": result.tool_call_id})
    waiting.remove(result.tool_call_id)


class CallIds:
    """Gives calls ids that a provider accepts: their own where it can be, else one derived from it.

    A derived id depends on the message and the call only, so a conversation that grows keeps the ids
    it had. `once` is for providers that want every id once in a request, not only in a message.
    """

    def __init__(self, accepted: str, longest: int, *, once: bool) -> None:
        self._accepted = re.compile(accepted)
        self._longest = longest
        self._once = once
        self._taken: set[str] = set()

    def of(self, message: Message) -> dict[str, str]:
        """Return the id of each call of the next message in the request."""
        if not self._once:
            self._taken.clear()
        return {call.id: self._given(message.id, call.id) for call in message.tool_calls}

    def _given(self, message_id: str, call_id: str) -> str:
        name, attempt = call_id, 0
        while name in self._taken or not self._fits(name):
            whole = f"{message_id}\n{call_id}\n{attempt}".encode()
            tail = hashlib.sha256(whole).hexdigest()[:_DIGEST]
            head = re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)[: self._longest - _DIGEST - 1]
            name, attempt = f"{head}_{tail}", attempt + 1
        self._taken.add(name)
        return name

    def _fits(self, name: str) -> bool:
        return len(name) <= self._longest and self._accepted.fullmatch(name) is not None


def tool_name(name: str, *, dots: bool = False) -> str:
    """Return a tool's name as a provider takes it: other characters become `_`, and what is too long is cut."""
    return re.sub(r"[^a-zA-Z0-9_.-]" if dots else r"[^a-zA-Z0-9_-]", "_", name)[
        : limits.TOOL_NAME_MAX
    ]


def own_name(name: str, longest: int = limits.TOOL_NAME_MAX) -> str:
    """Return a name that came from a provider as it is, if the provider takes it back, else as tool_name does."""
    return name if re.fullmatch(rf"[a-zA-Z0-9_-]{{1,{longest}}}", name) else tool_name(name)


def system_text(message: Message) -> str:
    """Return a system message as text; what is not text in it is mentioned."""
    found = parts.without_private(parts.read(message.content))
    return "\n\n".join(text for part in found if (text := parts.shown(part)).strip())


def as_user(message: Message) -> list[Part]:
    """Return a system message in mid-conversation as a user's words, for providers without such a role."""
    text = system_text(message)
    return [Part(kind="text", text=f"<system>\n{text}\n</system>")] if text else []


def failed_text(answer: Answer, text: str) -> str:
    """Return the text of a result, marked if the call failed and the text does not say so itself."""
    if not answer.result.is_error or text.lower().startswith("error"):
        return text
    return f"{FAILED}{text}" if text else f"{FAILED}the tool gave no reason."
