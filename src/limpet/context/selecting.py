"""From a window to the selection that is recorded of it, and back: the same window, byte for byte.

Rebuilding replays what was chosen; it never chooses. The digest says whether that worked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import msgspec

from limpet import errors
from limpet.context.window import Window, digest
from limpet.core.values.context import Fate, Ledger, LedgerEntry, WindowSelection
from limpet.core.values.json_values import Json, freeze
from limpet.core.values.messages import Message

NOT_IN = "it was not in the recorded window"
RECORDED = "it was in the recorded window"

Read = Callable[[int, int], Sequence[Message]]
"""Messages of the conversation by their numbers, first and last."""


def selection(window: Window, tenant: str, session_id: str) -> WindowSelection:
    """Return what has to be recorded of a window; raise InvalidRequest if another session's made it."""
    if not isinstance(cast("object", window), Window):
        raise errors.InvalidRequest(f"window is a Window, not {type(window).__name__}.")
    if window.session_id and (window.tenant, window.session_id) != (tenant, session_id):
        raise errors.InvalidRequest(
            "the window was made of another session.",
            hint="Give the one that this session's window() has made.",
        )
    if not window.session_id:
        raise errors.InvalidRequest(
            "the window was made of a list, so there is nothing to find it in.",
            hint="Give one that session.window() has made.",
        )
    shown = [e for e in window.ledger if e.fate in (Fate.KEPT, Fate.SHORTENED)]
    entries = iter(shown)
    parts: list[tuple[int, int] | Mapping[str, Json]] = []
    for at, message in enumerate(window.messages):
        entry = None if at == window.summary_at else next(entries)
        if entry is None or entry.fate is Fate.SHORTENED:
            number = {} if entry is None else {"number": entry.first}
            parts.append(freeze({**number, "message": message.to_dict()}))
        elif parts and isinstance(parts[-1], tuple) and parts[-1][1] == entry.first - 1:
            parts[-1] = (parts[-1][0], entry.first)
        else:
            parts.append((entry.first, entry.first))
    chosen = WindowSelection(
        window.session_id, window.version, window.began, window.budget, window.tokens,
        window.overhead, window.counter, window.exact, window.level, tuple(parts), window.sizes,
        digest(window.messages),
    )  # fmt: skip
    try:
        # What is recorded must be read again; a window that somebody has altered may not be.
        msgspec.json.decode(msgspec.json.encode(chosen), type=WindowSelection)
    except msgspec.MsgspecError as error:
        raise errors.InvalidRequest(f"the window is not as it was made: {error}.") from error
    return chosen


def rebuilt(recorded: WindowSelection, count: int, read: Read, *, tenant: str) -> Window:
    """Return the window that was recorded, of a conversation of `count` messages then.

    Raises Corrupt if it is not the same, Erased if something of it was erased.
    """
    if not recorded.digest:
        raise errors.Erased(
            "the window can't be made again: a message that was in it was erased.",
            facts={"session": recorded.session_id, "version": recorded.version},
        )
    messages: list[Message] = []
    inside: dict[int, LedgerEntry] = {}
    summary_at = -1
    for part in recorded.parts:
        if isinstance(part, Mapping):
            made = Message.from_dict(cast("Mapping[str, Json]", part["message"]))
            found, numbers = [made], [part["number"]] if "number" in part else []
            fate = Fate.SHORTENED
            if not numbers:
                summary_at = len(messages)
        else:
            found, numbers, fate = list(read(*part)), list(range(part[0], part[1] + 1)), Fate.KEPT
        for number, message in zip(numbers, found, strict=False):
            size = recorded.sizes[len(messages) + number - numbers[0]]
            inside[number] = LedgerEntry(
                number, number, fate, size, size, RECORDED, message.category
            )
        messages += found
    if digest(messages) != recorded.digest:
        raise errors.Corrupt(
            "a recorded window can't be made again as it was.",
            facts={"session": recorded.session_id, "version": recorded.version},
        )
    return Window(
        messages=tuple(messages), sizes=recorded.sizes, tokens=recorded.tokens, budget=recorded.budget,
        ledger=_ledger(inside, count), level=recorded.level, counter=recorded.counter,
        exact=recorded.exact, overhead=recorded.overhead, summary_at=summary_at,
        tenant=tenant, session_id=recorded.session_id, version=recorded.version, began=recorded.began,
    )  # fmt: skip


def _ledger(inside: Mapping[int, LedgerEntry], count: int) -> Ledger:
    entries: list[LedgerEntry] = []
    before = 0
    for number in (*sorted(inside), count + 1):
        if number > before + 1:
            entries.append(LedgerEntry(before + 1, number - 1, Fate.LEFT_OUT, 0, 0, NOT_IN))
        if number in inside:
            entries.append(inside[number])
        before = number
    return Ledger(tuple(entries))
