"""The relief: somebody who was here once, and is known when they come again. Two processes, and a worker between them.

    python -m demo.relief FOLDER first|second

What was said in the first conversation is learnt when it has ended; the second one begins with it in its system prompt.
The model has no memory of its own: how it greets follows from what it is shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import limpet
from demo import script
from limpet import Message, Session

USER: Final = "jonas"
FIRST: Final = "relief-spring"
SECOND: Final = "relief-autumn"
ARRIVES: Final = "Call me Jonas. I never drink coffee after eight. I prefer tea with honey."
ANSWER: Final = "Tea with honey it is. The bunk below the lamp is yours."
COMES_BACK: Final = "Good evening. I am back for the winter."
STRANGER: Final = "Good evening. Who are you, and what do you drink?"


def greeting(shown: Sequence[Message]) -> str:
    """Say what a model says that knows only what it is shown."""
    told = str(shown[0].content)
    name = re.search(r"Call me (\w+)", told)
    drink = re.search(r"I prefer ([^.”\"]+)", told)
    if name is None or drink is None:
        return STRANGER
    return f"Good evening, {name[1]}. {drink[1].capitalize()}, as you like it: no coffee after eight."


def first(folder: Path) -> None:
    """Have the first conversation, which ends."""
    with limpet.connect(folder / "state.db") as lp:
        talk = lp.sessions.create_session(FIRST, user_id=USER, system=script.SYSTEM, title="The relief arrives")
        talk.add_messages([Message("user", ARRIVES), Message("assistant", ANSWER)])
        lp.sessions.end_session(FIRST)


def second(folder: Path) -> Session:
    """Begin the second conversation, and greet."""
    with limpet.connect(folder / "state.db", memory=True) as lp:
        talk = lp.sessions.create_session(SECOND, user_id=USER, system=script.SYSTEM, title="The relief comes back")
        talk.add_message(Message("user", COMES_BACK))
        window = talk.window(2_000)
        talk.add_message(Message("assistant", greeting(list(window))), window=window)
        return talk


def main() -> None:
    """Have the conversation that the arguments name."""
    folder, which = Path(sys.argv[1]), sys.argv[2]
    if which == "first":
        first(folder)
    else:
        second(folder)


if __name__ == "__main__":
    main()
