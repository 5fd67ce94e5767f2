"""What the model says: a list of turns instead of a network and a bill.

Like a real model it has no memory of its own: which turn comes next follows from the history it is
shown, so it goes on where the history ends, whichever process asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.values.message import Message, ToolCallRequest

SYSTEM = "You keep the light on Holdfast Rock. Warn every ship, and write down only what is true."
STROKES = 7
TELEGRAM = "Fog at Holdfast Rock. Stand off until daylight."

History = Sequence[Message]


def next_turn(history: History) -> Message | None:
    """Return what is said next, by the user or by the model; None when the night is over."""
    said = sum(message.role in ("user", "assistant") for message in history)
    return TURNS[said](history) if said < len(TURNS) else None


def _user(text: str) -> Callable[[History], Message]:
    return lambda _history: Message("user", text)


def _model(text: str, *calls: ToolCallRequest) -> Callable[[History], Message]:
    # A call's id is made when the turn is taken, as a provider does.
    return lambda _history: Message(
        "assistant", text, tool_calls=[ToolCallRequest(name=c.name, args=c.args) for c in calls]
    )


def _call(name: str, args: dict[str, Any] | None = None) -> ToolCallRequest:
    return ToolCallRequest(name=name, args=args or {})


def _ring_the_rest(history: History) -> Message:
    rung = history[-1].tool_results[0].result["strokes"]
    text = f"The log has {rung} strokes. I owe the Marit {STROKES - rung} more, not {STROKES}."
    return _model(text, _call("ring_bell", {"strokes": STROKES - rung}))(history)


TURNS: Sequence[Callable[[History], Message]] = (
    _user("Fog is coming in and the Marit is due before dawn. See to it."),
    _model("First I look what the store room has.", _call("read_stores")),
    _model(
        "42 litres. Is that enough for the night?",
        _call("burning_time", {"litres": 42, "litres_per_hour": 3.5}),
    ),
    _model(
        "It lasts until morning. Now I warn the Marit by telegram and with seven strokes of the bell.",
        _call("send_telegram", {"to": "Marit", "text": TELEGRAM}),
        _call("ring_bell", {"strokes": STROKES}),
    ),
    _model(
        "I don't know how often the bell rang. I look at its log before I touch the rope.",
        _call("read_bell_log"),
    ),
    _ring_the_rest,
    _model(
        "Seven in all. Into the journal with it.",
        _call("write_journal", {"entry": "Fog. Marit warned: one telegram, seven strokes."}),
    ),
    _user("Did she hear us?"),
    _model("Two long blasts from the west: she heard us, and keeps her distance. Good night."),
)
