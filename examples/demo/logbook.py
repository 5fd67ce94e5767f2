"""The logbook: a hundred nights in one conversation, more than its budget holds. A process of its own.

Before the model is asked, the part that fits its budget is made; with its answer, what it was shown is
recorded. `limpet context logbook --recorded` finds it again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import limpet
from demo import script
from limpet import Message, MessageCategory, Window

SESSION = "logbook"
BUDGET = 1_200
NIGHTS = 100
NIGHTS_AFTER = 12
DEBT_NIGHT = 3

CHART = (
    "Chart of Limpet Rock. The light stands on the rock, 31 metres above the sea. North of it is"
    " deep water; west of it lies the reef that ships fear; in the south is the landing."
)
DEBT = f"Night {DEBT_NIGHT}. The Marit borrowed 12 litres of oil and pays them back in spring."
QUESTION = "The Marit is at the landing. What does she owe us?"
ANSWER = f"Twelve litres of oil, since night {DEBT_NIGHT}."

_WINDS = ("north", "north-west", "west", "south-west", "south")
_SKIES = ("clear", "fog", "rain", "clear with stars")
_SHIPS = ("Solveig", "Anna", "Petrel", "Dagny", "Marit", "Tern", "Ingrid")


class Sent(NamedTuple):
    """What the model was shown: how many bytes of a request, and their hash."""

    bytes: int
    hash: str


def sent(window: Window) -> Sent:
    """Return what a request for the window is made of, as it would go over a wire."""
    request = json.dumps(window.to_anthropic(), ensure_ascii=False).encode()
    return Sent(len(request), hashlib.sha256(request).hexdigest())


def night(number: int) -> Iterator[Message]:
    """Yield what is said in a night."""
    wind, sky = _WINDS[number % len(_WINDS)], _SKIES[number % len(_SKIES)]
    ship = _SHIPS[number % len(_SHIPS)]
    text = f"Night {number}. Wind {wind} {number % 9}, {sky}. The {ship} passed at {number % 5 + 1}."
    said = Message("user", text)
    if number == DEBT_NIGHT:
        said = Message("user", DEBT, metadata={"pinned": True})
    yield said
    yield Message("assistant", f"Written. The lamp burnt {number % 4 + 8} hours.")


def keep(folder: Path) -> Sent:
    """Write the logbook, ask, and go on writing; return what the model was shown."""
    with limpet.connect(folder / "state.db") as lp:
        book = lp.sessions.create_session(SESSION, user_id="ada", system=script.SYSTEM, title="A hundred nights")
        book.add_message(Message("user", CHART, MessageCategory.CONTEXT))
        book.add_messages([said for number in range(1, NIGHTS + 1) for said in night(number)])
        book.add_message(Message("user", QUESTION))
        window = book.window(BUDGET)
        shown = sent(window)
        book.add_message(Message("assistant", ANSWER), window=window)
        later = range(NIGHTS + 1, NIGHTS + NIGHTS_AFTER + 1)
        book.add_messages([said for number in later for said in night(number)])
        return shown


def main() -> None:
    """Keep the logbook of the station in a folder; tell what the model was shown."""
    print(json.dumps(keep(Path(sys.argv[1]))._asdict()))


if __name__ == "__main__":
    main()
