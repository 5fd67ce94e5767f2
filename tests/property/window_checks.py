"""Random conversations, good and broken, and what every window of one must be."""

from __future__ import annotations

import random
from collections.abc import Sequence

from limpet import Message, MessageCategory, ToolCallRequest, ToolCallResult, errors
from limpet.core.values import messages
from limpet.core.values.context import CompactionLevel, ContextPriority, Fate
from limpet.core.windows import window as windows
from limpet.core.windows.window import CounterInfo, Window, WindowMessage

WORDS = (
    "harbour", "tide", "Oslo", "ticket_42", "must", "decided", "because", "42.50", "why", "lantern",
    "潮", "船は出ました。", "Fähre", "корабль", "the", "of", "and", "pier-9", "\n\n\n", "   ",
)  # fmt: skip
OVERHEAD = 7


def count(message: Message) -> int:
    """A counter of the tests' own: whatever is in a message costs something."""
    size = 4 + len(_text(message.content)) // 4
    size += sum(3 + len(f"{call.name}{dict(call.args)}") // 4 for call in message.tool_calls)
    return size + sum(3 + len(_text(result.result)) // 4 for result in message.tool_results)


def _text(content: object) -> str:
    return content if isinstance(content, str) else "" if content is None else repr(content)


class Talk:
    """Makes conversations; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self._made = 0

    def _id(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}{self._made}"

    def text(self, words: int) -> str:
        return " ".join(self.dice.choices(WORDS, k=max(1, words)))

    def _say(self, role: str, content: object = None, **fields: object) -> Message:
        stamp = "2026-01-31T12:00:00+00:00"
        return Message(role, content, id=self._id("m"), timestamp=stamp, **fields)  # pyright: ignore[reportArgumentType]

    def _words(self) -> int:
        return self.dice.choice((1, 3, 8, 20, 60, 1_500 if self.dice.random() < 0.1 else 5))

    def messages(self, length: int) -> list[Message]:
        said = [self._say("system", self.text(6))] if self.dice.random() < 0.8 else []
        while len(said) < length:
            said += self._step()
        return said

    def _step(self) -> list[Message]:
        kind = self.dice.random()
        if kind < 0.35:
            return [self._say("user", self.text(self._words()))]
        if kind < 0.6:
            return [self._say("assistant", self.text(self._words()))]
        if kind < 0.9:
            return self._called(whole=self.dice.random() < 0.95)
        if kind < 0.93:
            return [self._orphan()]
        if kind < 0.96:
            picture = {"type": "image_url", "image_url": {"url": "https://pier.example/9.png"}}
            return [self._say("user", [{"type": "text", "text": self.text(4)}, picture])]
        return [self._aside()]

    def _aside(self) -> Message:
        category = self.dice.choice(list(MessageCategory))
        meta = self.dice.choice(({}, {"pinned": True}, {"priority": "high"}, {"priority": "low"}))
        return self._say("assistant", self.text(5), category=category, metadata=meta)

    def _called(self, *, whole: bool) -> list[Message]:
        names = [self._id("c") for _ in range(self.dice.choice((1, 1, 2, 4)))]
        calls = [ToolCallRequest(name, "look", {"at": self.text(2)}) for name in names]
        answered = names if whole else names[:-1]
        self.dice.shuffle(answered)
        results = [ToolCallResult(name, self.text(self._words())) for name in answered]
        said = [self._say("assistant", None, tool_calls=calls)]
        if self.dice.random() < 0.3 and results:
            return [*said, self._say("tool", tool_results=results)]
        return [*said, *(self._say("tool", tool_results=[result]) for result in results)]

    def _orphan(self) -> Message:
        return self._say("tool", tool_results=[ToolCallResult(self._id("nobody"), "lost")])


def pieces(messages: Sequence[Message]) -> list[WindowMessage]:
    return [WindowMessage(number, message, count(message)) for number, message in enumerate(messages, 1)]


def check(given: Sequence[WindowMessage], budget: int, least: CompactionLevel) -> Window | None:
    """Make a window and demand of it what holds for every one; None if it does not fit."""
    counted = CounterInfo("tests", overhead=OVERHEAD)
    try:
        window = windows.fit_window(given, budget, count=count, counted=counted, least=least)
    except errors.ContextOverflow as error:
        _check_overflow(given, budget, error.facts["required"])
        return None
    sizes = list(map(count, window.messages))
    assert sum(sizes) + OVERHEAD == window.tokens <= budget
    assert sizes == list(window.sizes)
    _check_pairs(window)
    _check_musts([piece.message for piece in given], window)
    _check_ledger(given, window, sizes)
    return window


def _check_overflow(given: Sequence[WindowMessage], budget: int, required: object) -> None:
    items = windows.window_items(given)
    critical = [i.size for i in items if i.priority is ContextPriority.CRITICAL and not i.excluded]
    needed = sum(critical) + OVERHEAD
    assert required == needed > budget, "only what must be there can be too much"


def _check_pairs(window: Window) -> None:
    groups = messages.group_messages(window.messages)
    assert not [group for group in groups if group.fault]


def _check_musts(messages: Sequence[Message], window: Window) -> None:
    if messages[0].role == "system":
        assert window.messages[0] is messages[0]
    asked = [message for message in messages if message.role == "user"]
    if asked:
        assert any(message is asked[-1] for message in window.messages)


def _check_ledger(given: Sequence[WindowMessage], window: Window, sizes: Sequence[int]) -> None:
    numbers = [n for entry in window.ledger for n in range(entry.first, entry.last + 1)]
    assert numbers == list(range(1, len(given) + 1)), "each message has one entry, in order"
    inside = {m.id: (m, size) for m, size in zip(window.messages, sizes, strict=True)}
    for entry in window.ledger:
        piece = given[entry.first - 1]
        message, size = inside.get(piece.message.id, (None, 0))
        assert entry.tokens == piece.tokens
        assert (entry.fate in (Fate.KEPT, Fate.SHORTENED)) == (message is not None)
        if entry.fate is Fate.KEPT:
            assert message is piece.message
            assert entry.used == entry.tokens
        elif entry.fate is Fate.SHORTENED:
            assert entry.used == size < entry.tokens
        else:
            assert entry.used == 0
        assert entry.rule or entry.fate is Fate.KEPT
    assert (window.summary_at >= 0) == bool(window.ledger.messages(Fate.SUMMARISED))
