"""What must hold of a store after a crash, judged by what the callers know.

Everything acknowledged is there, nothing is there that was not submitted, each thing at most once
and in order, every step whole or not at all; a provider would accept every session; the store
verifies; and it takes new work. Only public reads are used, and none of the engine's own rules.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import limpet
from limpet import Message
from limpet.core.values.events import MessageAddedEvent
from tests.faults import journal, provider_pairing
from tests.faults.journal import ArchivedMessage, Entry, Journal
from tests.faults.workload import SHARED


@dataclass(frozen=True, slots=True)
class View:
    """A session as its callers' steps make it."""

    messages: tuple[ArchivedMessage, ...] = ()
    status: str = "active"
    generation: int = 0
    number: int = 0
    continued_to: str = ""


def expected(entries: Sequence[Entry], session: str) -> View | None:
    """The session after these steps; None if there is none."""
    view: View | None = None
    for entry in entries:
        step = entry.step
        match step.verb:
            case "create":
                view = View()
            case "continue" if entry.target == session:
                view = View(number=step.number)
            case "delete":
                view = None
            case _:
                assert view is not None, f"{step} of a session that is not there"
                view = _after(view, entry)
    return view


def _after(view: View, entry: Entry) -> View:
    step = entry.step
    match step.verb:
        case "add":
            return dataclasses.replace(view, messages=view.messages + step.messages)
        case "update":
            return dataclasses.replace(view, number=step.number)
        case "end":
            return dataclasses.replace(view, status="ended")
        case "continue":
            return dataclasses.replace(view, continued_to=entry.target)
        case "reset":
            return dataclasses.replace(view, messages=(), status="active", generation=view.generation + 1)
        case _:
            raise AssertionError(f"no such verb: {step.verb}")


@dataclass(slots=True)
class Verdict:
    """What a check found, and which steps have happened, by session."""

    faults: list[str] = field(default_factory=list)
    happened: dict[str, set[str]] = field(default_factory=dict)


def check(path: Path | str, known: Journal, *, only: set[str] | None = None) -> Verdict:
    """Open the store and judge it, or `only` these sessions of it, by all that is known of it.

    It is closed again, with one more session in it.
    """
    with limpet.connect(str(path)) as engine:
        verdict = _judge(engine, known, only)
        if only is None:
            verdict.faults.extend(_verified(engine))
            verdict.faults.extend(_listed(engine, verdict))
            verdict.faults.extend(_logged(engine, known))
        verdict.faults.extend(_takes_more(engine))
    return verdict


def _judge(engine: limpet.Limpet, known: Journal, only: set[str] | None) -> Verdict:
    by_session: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in known.entries.values():
        if entry.step.verb != "continue":
            by_session[entry.step.session].append(entry)
        elif target := _target(engine, entry):
            entry.target = target
            by_session[entry.step.session].append(entry)
            by_session[target].append(entry)
    judged = by_session.keys() if only is None else by_session.keys() & only
    verdict = Verdict()
    for session in judged:
        entries = sorted(by_session[session], key=lambda entry: entry.submitted)
        view, messages = _seen(engine, session)
        faults = [*provider_pairing.faults(messages), *_pending(engine, session, view, messages)]
        verdict.faults.extend(f"{session}: {fault}" for fault in faults)
        rule = _shared if session.startswith(SHARED) else _own
        rule(session, entries, view, verdict)
    verdict.faults.extend(_half_continued(by_session, verdict))
    return verdict


PROBE = "probe"


def _target(engine: limpet.Limpet, entry: Entry) -> str:
    """Where a continuation leads. One in flight has told nobody; if it happened, its source knows."""
    if entry.target:
        return entry.target
    source = engine.sessions.load_session(entry.step.session)
    return (source.state.continued_to or "") if source else ""


def _seen(engine: limpet.Limpet, session: str) -> tuple[View | None, list[Message]]:
    handle = engine.sessions.load_session(session)
    if handle is None:
        return None, []
    messages = list(handle.messages)
    state = handle.state
    view = View(
        tuple(journal.said(message) for message in messages if _authored(message)),
        str(state.status),
        state.generation,
        int(state.metadata.get("number", 0)),
        state.continued_to or "",
    )
    return view, messages


def _authored(message: Message) -> bool:
    """Whether a caller added it here, rather than the engine (system prompts, carried copies)."""
    return message.origin is None and message.id.startswith("message-")


def _pending(engine: limpet.Limpet, session: str, view: View | None, messages: Sequence[Message]) -> Iterator[str]:
    """Open calls are reported, but where the conversation goes on elsewhere, there."""
    if view is not None and not view.continued_to:
        reported = sorted(call.call_id for call in engine.sessions.pending_calls(session))
        if reported != sorted(provider_pairing.waiting(messages)):
            yield f"pending calls reported as {reported}"


def _own(session: str, entries: Sequence[Entry], view: View | None, verdict: Verdict) -> None:
    """A session with one author at a time is its steps up to some point past all acknowledged."""
    least = max((n for n, entry in enumerate(entries, 1) if entry.acked is not None), default=0)
    for count in range(len(entries), least - 1, -1):
        if expected(entries[:count], session) == view:
            verdict.happened[session] = {entry.step.id for entry in entries[:count]}
            return
    wanted = expected(entries[:least], session)
    verdict.faults.append(f"{session}: {_difference(wanted, view)}")


def _difference(wanted: View | None, view: View | None) -> str:
    if wanted is None or view is None:
        return f"expected {wanted}, found {view}"
    for name in (each.name for each in dataclasses.fields(View)):
        left, right = getattr(wanted, name), getattr(view, name)
        if left == right:
            continue
        if name != "messages":
            return f"{name} is {right!r}, acknowledged {left!r}"
        lost = [said.id for said in left if said not in right]
        alien = [said.id for said in right if said not in left]
        return f"messages: {len(left)} acknowledged, {len(right)} found; lost {lost}, new {alien}"
    return "no difference"


def _shared(session: str, entries: Sequence[Entry], view: View | None, verdict: Verdict) -> None:
    """A session with several authors: whole batches, in an order that real time allows."""
    if view is None:
        if any(entry.acked is not None for entry in entries):
            verdict.faults.append(f"{session}: lost")
        return
    owner = {entry.step.messages[0]: entry for entry in entries if entry.step.messages}
    at, latest = 0, 0
    met: set[str] = {entry.step.id for entry in entries if entry.step.verb == "create"}
    while at < len(view.messages):
        entry = owner.get(view.messages[at])
        if entry is None or view.messages[at:][: len(entry.step.messages)] != entry.step.messages:
            verdict.faults.append(f"{session}: {view.messages[at].id} is torn, changed or unknown")
            return
        if entry.step.id in met:
            verdict.faults.append(f"{session}: {entry.step.id} is there twice")
        if entry.acked is not None and entry.acked < latest:
            verdict.faults.append(f"{session}: {entry.step.id} comes after a later one")
        latest = max(latest, entry.submitted)
        met.add(entry.step.id)
        at += len(entry.step.messages)
    lost = [e.step.id for e in entries if e.acked is not None and e.step.id not in met]
    if lost:
        verdict.faults.append(f"{session}: lost {lost}")
    verdict.happened[session] = met


def _half_continued(by_session: Mapping[str, list[Entry]], verdict: Verdict) -> Iterator[str]:
    """A continuation is in both of its sessions or in neither."""
    for session, happened in verdict.happened.items():
        for entry in by_session[session]:
            other = entry.target if entry.target != session else entry.step.session
            there = verdict.happened.get(other, happened) if entry.target else happened
            if (entry.step.id in happened) != (entry.step.id in there):
                yield f"{session} and {other}: only half continued"


def _listed(engine: limpet.Limpet, verdict: Verdict) -> Iterator[str]:
    """The listing agrees with the sessions it lists, and lists no others."""
    cursor: str | None = None
    while True:
        page = engine.sessions.list_sessions(limit=100, cursor=cursor)
        for row in page:
            if row["id"] not in verdict.happened and row["id"] != PROBE:
                yield f"{row['id']}: nobody created it"
            state = engine.sessions.get_session(row["id"]).state
            shown = (row["message_count"], row["version"], row["status"], row["total_tokens"])
            if shown != (state.message_count, state.version, state.status, state.tokens):
                yield f"{row['id']}: listed as {shown}"
        cursor = page.next_cursor
        if cursor is None:
            return


def _logged(engine: limpet.Limpet, known: Journal) -> Iterator[str]:
    """The log is gapless and holds every acknowledged message once, those of past generations too."""
    met: Counter[str] = Counter()
    for number, recorded in enumerate(engine.events.feed(), 1):
        if recorded.position != number:
            yield f"position {recorded.position} follows {number - 1}"
        if isinstance(recorded.event, MessageAddedEvent) and _authored(recorded.event.message):
            met[recorded.event.message.id] += 1
    acked = (entry.step for entry in known.entries.values() if entry.acked is not None)
    for wanted in {said.id for step in acked for said in step.messages} - met.keys():
        yield f"{wanted} is not in the log"
    yield from (f"{id_} is in the log {count} times" for id_, count in met.items() if count > 1)


def _verified(engine: limpet.Limpet) -> Iterator[str]:
    report = engine.admin.verify()
    yield from (f"verify: {fault}" for fault in report.faults)


def _takes_more(engine: limpet.Limpet) -> Iterator[str]:
    handle = engine.sessions.get_or_create_session(PROBE)
    before = handle.message_count
    handle.add_message(Message(role="user", content="still here?"))
    if engine.sessions.get_session(PROBE).message_count != before + 1:
        yield "an append after recovery was not kept"
