"""What the demo claims, each checked against the file and the folder, never against what was printed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast.cli import figures, picture
from holdfast.cli.demo import keeper, logbook, script
from holdfast.store.port import Report


class Claim(NamedTuple):
    """A sentence, and whether it is true."""

    name: str
    text: str
    held: bool


class Acknowledged(NamedTuple):
    """A message that the store had taken when the keeper said so."""

    position: int
    message: dict[str, Any]


class Found(NamedTuple):
    """What is really there: in the store, in the outbox, in the bell's log."""

    messages: list[dict[str, Any]]
    pending: list[holdfast.PendingCall]
    telegrams: int
    strokes: int


class Page(NamedTuple):
    """What the file says of the logbook: a recorded window, made again, and the messages themselves."""

    row: holdfast.RecordedWindow
    window: holdfast.Window
    messages: list[holdfast.Message]


def leaf(folder: Path) -> Page | None:
    """Read the logbook and the window that was recorded in it; None if there is none."""
    with holdfast.connect(folder / "state.db") as hf:
        book = hf.sessions.load_session(logbook.SESSION)
        rows = book.recorded_windows(1) if book else []
        if book is None or not rows:
            return None
        return Page(rows[0], book.window_of(rows[0].message_id), list(book.messages))


def look(folder: Path) -> Found:
    """Read store and folder, in this process."""
    with holdfast.connect(folder / "state.db") as hf:
        session = hf.sessions.load_session(keeper.SESSION)
        messages = [message.to_dict() for message in session.messages] if session else []
        pending = session.pending_calls() if session else []
    bell = folder / "bell.log"
    return Found(
        messages=messages,
        pending=pending,
        telegrams=len(list(folder.glob("outbox/*.txt"))),
        strokes=bell.read_text().count("dong") if bell.exists() else 0,
    )


def intact(acknowledged: Sequence[Acknowledged], found: Found) -> int:
    """Return how many acknowledged messages are in their place, each as it was handed in."""
    held = found.messages
    return sum(
        position <= len(held) and held[position - 1] == message
        for position, message in acknowledged
    )


def killed(code: int, during: str, found: Found) -> Claim:
    """The process died of SIGKILL while the bell was ringing."""
    if code != -signal.SIGKILL:
        return Claim("killed", f"the keeper was not killed, but ended with code {code}", held=False)
    middle = during == "ring_bell" and 0 < found.strokes < script.STROKES
    text = (
        f"dead of signal {-code} in the middle of {during},"
        f" after {found.strokes} of {script.STROKES} strokes"
    )
    return Claim("killed", text, middle)


def kept(name: str, acknowledged: Sequence[Acknowledged], found: Found) -> Claim:
    """Nothing acknowledged is missing or different."""
    there, told = intact(acknowledged, found), len(acknowledged)
    text = f"{there} of {told} acknowledged messages are in the file, each as it was written"
    return Claim(name, text, there == told > 0)


def pending(acknowledged: Sequence[Acknowledged], found: Found) -> Claim:
    """The open calls are exactly those of the last turn, arguments included."""
    asked: list[dict[str, Any]] = acknowledged[-1].message["tool_calls"] if acknowledged else []
    wanted = [(call["id"], call["name"], call.get("args", {})) for call in asked]
    known = [(call.call_id, call.name, call.args) for call in found.pending]
    text = f"{figures.count(len(known), 'call')} without a result, known by id, name and arguments"
    return Claim("pending", text, known == wanted != [])


def fits(page: Page | None) -> Claim:
    """The window keeps to its budget, and what must be in it is: however old."""
    if page is None:
        return Claim("fits", "there is no recorded window", held=False)
    window = page.window
    contents = [message.content for message in window]
    needed = contents[0] == script.SYSTEM and contents[-1] == logbook.QUESTION
    needed = needed and {logbook.CHART, logbook.DEBT} <= {c for c in contents if isinstance(c, str)}
    text = (
        f"{window.tokens:,} of {window.budget:,} tokens: the orders, the chart, the question,"
        f" and the debt of night {logbook.DEBT_NIGHT}, which was pinned"
    )
    return Claim("fits", text, needed and window.tokens <= window.budget == logbook.BUDGET)


def accounted(page: Page | None) -> Claim:
    """Every message that there was then has its place in the account, and is still in the file."""
    if page is None:
        return Claim("accounted", "there is no account", held=False)
    counted, number = picture.coverage(page.window), page.row.number
    before = page.messages[: number - 1]
    there = page.messages[number - 1].id == page.row.message_id
    shown = {message.id for message in page.window}
    out = sum(message.id not in shown for message in before)
    text = f"{out} messages were not shown to the model; they are in the file like all the others"
    held = there and len(before) == counted.messages and out == counted.not_in > 0
    return Claim("accounted", text, held)


def seen(shown: logbook.Sent | None, page: Page | None) -> Claim:
    """What the model was shown can be had again, byte for byte, though the logbook went on."""
    if page is None or shown is None:
        return Claim("seen", "nobody knows what the model was shown", held=False)
    again, after = logbook.sent(page.window), len(page.messages) - page.row.number
    text = (
        f"rebuilt from the file, {after} messages later: the {again.bytes:,} bytes"
        " that the model was shown, each the same"
    )
    same = again == shown and page.window.digest == page.row.digest
    return Claim("seen", text if same else "what was rebuilt is not what was shown", same)


def once(found: Found) -> Claim:
    """Effects in the world happened as often as they should."""
    text = (
        f"{figures.count(found.telegrams, 'telegram')} sent and {found.strokes} strokes rung:"
        " nothing twice, nothing left out"
    )
    return Claim("once", text, found.telegrams == 1 and found.strokes == script.STROKES)


def answered(found: Found) -> Claim:
    """The history is one that a provider accepts: results follow their calls, one for each."""
    waiting: list[str] = []
    wrong = 0
    calls = 0
    for message in found.messages:
        results = [result["tool_call_id"] for result in message["tool_results"]]
        wrong += bool(waiting) != (message["role"] == "tool")
        wrong += bool(Counter(results) - Counter(waiting))
        waiting = [call for call in waiting if call not in results]
        waiting += [call["id"] for call in message["tool_calls"]]
        calls += len(message["tool_calls"])
    text = f"{figures.count(calls, 'tool call')}, each with one result: a history that any provider takes"
    return Claim("answered", text, not wrong and not waiting and calls > 0)


def finished(code: int, found: Found) -> Claim:
    """The second process reached the end of the story."""
    said = sum(message["role"] in ("user", "assistant") for message in found.messages)
    text = f"the new process went on to the end: {said} of {len(script.TURNS)} turns"
    return Claim("finished", text, code == 0 and said == len(script.TURNS))


def whole(report: Report) -> Claim:
    """Every event and page is as it was written."""
    text = f"verify read {figures.count(report.events, 'event')} and every page: {figures.count(len(report.faults), 'fault')}"
    return Claim("whole", text, report.ok and report.events > 0)
