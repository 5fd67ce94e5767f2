"""What the models say: lists of turns instead of a network and a bill.

Like a real model they have no memory of their own: which turn comes next follows from the history that is
shown, so it goes on where the history ends, whichever process asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from demo.agent.parts import Model, Reply, Shown, Tool
from limpet.core.values.messages import Message, ToolCallRequest

SYSTEM = "You keep the light on Limpet Rock. Warn every ship, and write down only what is true."
STORE_ROOM = "You keep the store room of Limpet Rock. Count, and answer in one sentence."
STROKES = 7
TELEGRAM = "Fog at Limpet Rock. Stand off until daylight."
TASKS: Final = ("Fog is coming in and the Marit is due before dawn. See to it.", "Did she hear us?")
STORE_ROOM_TOKENS = 2_000

History = Sequence[Message]
Turn = Callable[[History], Reply]


def model(turns: Sequence[Turn]) -> Model:
    """Return a model that says one turn after another, by what it is shown."""

    def say(shown: Shown, _tools: Mapping[str, Tool]) -> Reply:
        history = shown.messages
        reply = turns[sum(message.role == "assistant" for message in history)](history)
        read = sum(len(str(message.content or "")) for message in history)
        return reply._replace(tokens=(read + len(reply.text)) // 4)

    return say


def _says(text: str, *calls: ToolCallRequest) -> Turn:
    # A call's id is made when the turn is taken, as a provider does.
    return lambda _history: Reply(text, [ToolCallRequest(name=call.name, args=call.args) for call in calls])


def _call(name: str, args: dict[str, Any] | None = None) -> ToolCallRequest:
    return ToolCallRequest(name=name, args=args or {})


def _ring_the_rest(history: History) -> Reply:
    rung = int(str(history[-1].tool_results[0].result))
    text = f"The log has {rung} strokes. I owe the Marit {STROKES - rung} more, not {STROKES}."
    return _says(text, _call("ring_bell", {"strokes": STROKES - rung}))(history)


KEEPER: Final[Sequence[Turn]] = (
    _says(
        "Is there oil for the whole night? The store room knows.",
        _call("delegate", {"goal": "How long does the oil last at 3.5 litres an hour?", "budget": STORE_ROOM_TOKENS}),
    ),
    _says(
        "It lasts until morning. Now I warn the Marit by telegram and with seven strokes of the bell.",
        _call("send_telegram", {"to": "Marit", "text": TELEGRAM}),
        _call("ring_bell", {"strokes": STROKES}),
    ),
    _says("I don't know how often the bell rang. I look at its log before I touch the rope.", _call("read_bell_log")),
    _ring_the_rest,
    _says(
        "Seven in all. Into the journal with it.",
        _call("write_journal", {"entry": "Fog. Marit warned: one telegram, seven strokes."}),
    ),
    _says("The Marit is warned, and the lamp burns until morning."),
    _says("Two long blasts from the west: she heard us, and keeps her distance. Good night."),
)

STOREKEEPER: Final[Sequence[Turn]] = (
    _says("I count.", _call("read_stores")),
    _says("42 litres.", _call("burning_time", {"litres": 42, "litres_per_hour": 3.5})),
    _says("42 litres burn for 12 hours."),
)
