"""What the demo claims, each checked against the file and the folder, never against what was printed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import limpet
from demo import keeper, logbook, script
from limpet.cli import output
from limpet.cli.subcommands import context_command
from limpet.stores.port import Report


class Claim(NamedTuple):
    """A sentence, and whether it is true."""

    name: str
    text: str
    held: bool


class Acknowledged(NamedTuple):
    """A message that the store had taken when the keeper said so."""

    session: str
    position: int
    message: dict[str, Any]


class Found(NamedTuple):
    """What is really there: in the store, in the outbox, in the bell's log."""

    talks: Mapping[str, list[dict[str, Any]]]
    pending: list[limpet.sessions.PendingCall]
    frames: list[limpet.Frame]
    suspensions: list[limpet.frames.Suspension]
    telegrams: int
    strokes: int

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What the keeper's own conversation holds."""
        return self.talks.get(keeper.SESSION, [])


class Page(NamedTuple):
    """What the file says of the logbook: a recorded window, made again, and the messages themselves."""

    row: limpet.sessions.RecordedWindow
    window: limpet.Window
    messages: list[limpet.Message]


def leaf(folder: Path) -> Page | None:
    """Read the logbook and the window that was recorded in it; None if there is none."""
    with limpet.connect(folder / "state.db") as lp:
        book = lp.sessions.load_session(logbook.SESSION)
        rows = book.recorded_windows(1) if book else []
        if book is None or not rows:
            return None
        return Page(rows[0], book.window_of(rows[0].message_id), list(book.messages))


def look(folder: Path) -> Found:
    """Read store and folder, in this process."""
    with limpet.connect(folder / "state.db") as lp:
        frames = lp.index.list_frames(open_only=False)
        names = {keeper.SESSION, *(str(frame.scope.session_id) for frame in frames)}
        talks = {name: talk for name in names if (talk := lp.sessions.load_session(name))}
        here = talks.get(keeper.SESSION)
        found = {name: [m.to_dict() for m in talk.messages] for name, talk in talks.items()}
        pending = here.pending_calls() if here else []
        suspensions = lp.index.list_suspensions(waiting=False)
    bell = folder / "bell.log"
    return Found(
        talks=found,
        pending=pending,
        frames=sorted(frames, key=lambda frame: frame.created_us),
        suspensions=suspensions,
        telegrams=len(list(folder.glob("outbox/*.txt"))),
        strokes=bell.read_text().count("dong") if bell.exists() else 0,
    )


def intact(acknowledged: Sequence[Acknowledged], found: Found) -> int:
    """Return how many acknowledged messages are in their place, each as it was handed in."""
    return sum(
        position <= len(held := found.talks.get(session, [])) and held[position - 1] == message
        for session, position, message in acknowledged
    )


def asked(code: int, found: Found) -> Claim:
    """The process has ended without ringing, and what it asks is in the file."""
    waiting = [one for one in found.suspensions if one.status == "waiting"]
    text = (
        f"the process ended with code {code} after {found.strokes} strokes:"
        f" {output.quantity(len(waiting), 'approval')} waiting in the store"
    )
    held = code == keeper.WAITS and found.strokes == 0 and len(waiting) == 1
    return Claim("asked", text, held and waiting[0].purpose.startswith("ring_bell@"))


def decided(found: Found, by: str) -> Claim:
    """Every ringing was allowed, each by a person and for itself."""
    calls = [c for m in found.messages for c in m["tool_calls"] if c["name"] == "ring_bell"]
    yes = [one for one in found.suspensions if (one.status, one.decided_by) == ("approved", by)]
    text = f"{len(calls)} requests to ring, {len(yes)} decisions, each an approval by the {by}"
    held = len(yes) == len(found.suspensions) == len(calls) > 0
    return Claim("decided", text, held)


def accounts(found: Found) -> Claim:
    """Frames are closed, and what they spent is what the turns cost, those of the store room once."""
    cost = sum(int(m["metadata"].get("tokens", 0)) for talk in found.talks.values() for m in talk)
    roots = [frame for frame in found.frames if frame.parent_frame_id is None]
    lent = sum(frame.settled for frame in roots)
    used = sum(frame.budget.used for frame in roots)
    total = sum(frame.budget.total for frame in roots)
    text = (
        f"{output.quantity(len(found.frames), 'frame')} closed: of {total:,} tokens {used:,} are spent,"
        f" {lent:,} of them by the store room, {total - used:,} are left"
    )
    closed = all(frame.status == "completed" for frame in found.frames)
    kept = all(frame.budget.subcall_allocation == 0 for frame in roots)
    return Claim("accounts", text, closed and kept and used == cost > lent > 0)


def killed(code: int, during: str, found: Found) -> Claim:
    """The process died of SIGKILL while the bell was ringing."""
    if code != -signal.SIGKILL:
        return Claim("killed", f"the keeper was not killed, but ended with code {code}", held=False)
    middle = during == "ring_bell" and 0 < found.strokes < script.STROKES
    text = f"process killed by signal {-code} during {during}, after {found.strokes} of {script.STROKES} strokes"
    return Claim("killed", text, middle)


def kept(name: str, acknowledged: Sequence[Acknowledged], found: Found) -> Claim:
    """Nothing acknowledged is missing or different."""
    there, told = intact(acknowledged, found), len(acknowledged)
    text = f"{there} of {told} acknowledged messages are in the file, each as it was written"
    return Claim(name, text, there == told > 0)


def pending(acknowledged: Sequence[Acknowledged], found: Found) -> Claim:
    """The open calls are exactly those that were asked for and not answered, and their frame knows them."""
    told = [one.message for one in acknowledged if one.session == keeper.SESSION]
    answered = {r["tool_call_id"] for message in told for r in message["tool_results"]}
    wanted = [
        (call["id"], call["name"], call.get("args", {}))
        for message in told
        for call in message["tool_calls"]
        if call["id"] not in answered
    ]
    known = [(call.call_id, call.name, call.args) for call in found.pending]
    began = [tool.call_id for frame in found.frames for tool in frame.tools if tool.status == "started"]
    text = (
        f"{output.quantity(len(known), 'call')} without a result, known by id, name and arguments;"
        " its frame has recorded that it began"
    )
    held = known == wanted != [] and began == [call_id for call_id, _, _ in known]
    return Claim("pending", text, held)


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
    counted, number = context_command.window_coverage(page.window), page.row.number
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
        return Claim("seen", "it is not recorded what the model was shown", held=False)
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
        f"{output.quantity(found.telegrams, 'telegram')} sent and {found.strokes} strokes rung:"
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
    text = f"{output.quantity(calls, 'tool call')}, each with one result: a history that any provider takes"
    return Claim("answered", text, not wrong and not waiting and calls > 0)


def finished(code: int, found: Found) -> Claim:
    """The last process reached the end of the story, and it is the story that was asked for."""
    said = sum(message["role"] in ("user", "assistant") for message in found.messages)
    tasks = [message["content"] for message in found.messages if message["role"] == "user"]
    turns = len(script.TASKS) + len(script.KEEPER)
    text = f"new processes went on to the end: {said} of {turns} turns"
    return Claim("finished", text, code == 0 and said == turns and tasks == [*script.TASKS])


def whole(report: Report) -> Claim:
    """Every event and page is as it was written."""
    text = f"verify read {output.quantity(report.events, 'event')} and every page: {output.quantity(len(report.faults), 'fault')}"
    return Claim("whole", text, report.ok and report.events > 0)
