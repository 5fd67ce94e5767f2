"""Windows of long sessions: what one costs, what a whole turn costs, and how much of it stays the same."""

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agents.memory.sqlite_session import SQLiteSession
from langchain_core.messages import convert_to_messages, trim_messages
from langchain_core.messages.utils import count_tokens_approximately

import limpet
from benchmarks import harness, ours
from benchmarks.harness import Bench, Figure
from benchmarks.loads import Load
from limpet import tokens
from tests.corpus import ChatMessage

BUDGET = 8_000
LONG, SHORT, MIDDLE, PEER = 100_000, 1_000, 10_000, 5_000
TIMED = 50
PROMPT = "You answer for a booking desk. Be brief, and never guess."
COUNTER = "o200k_base"
CALLS = 1_500


def run(bench: Bench) -> list[Figure]:
    return [*_warm(bench), *_turn(bench), *_prefix(bench)]


def _spoken(load: Load) -> Iterator[ChatMessage]:
    """Conversations laid end to end under one system prompt."""
    return (message for message in load.laid_end_to_end() if message["role"] != "system")


def session_of(path: Path | str, load: Load, messages: int, closing: contextlib.ExitStack) -> limpet.Session:
    """Return a session of about so many messages, in a store of its own."""
    return _filled(closing.enter_context(ours.connect(path)), "s", load, messages)


def _filled(store: limpet.Limpet, name: str, load: Load, messages: int) -> limpet.Session:
    session = store.sessions.create_session(name, user_id="ada", system=PROMPT)
    spoken = _spoken(load)
    while session.message_count < messages or session.state.open_calls:
        session.add_messages(list(itertools.islice(spoken, ours.BATCH)))
        while session.state.open_calls:
            session.add_message(next(spoken))
    return session


def repeated(work: Callable[[], object]) -> harness.Slice:
    def measure(_: float) -> tuple[int, float]:
        began = time.perf_counter()
        for _ in range(TIMED):
            work()
        return TIMED, time.perf_counter() - began

    return measure


def lasting(work: Callable[[], object]) -> harness.Slice:
    return lambda seconds: harness.repeat_for(seconds, work)


def turns(
    bench: Bench, path: Path | str, messages: int, how: Callable[[Callable[[], object]], harness.Slice] = repeated
) -> harness.Slice:
    """Take turns in sessions of about so many messages: a session for each slice, so that none grows far beyond."""
    store = bench.closing.enter_context(ours.connect(path))
    count = bench.rounds * bench.slices + 1
    sessions = iter([_filled(store, f"s-{number}", bench.first_load, messages) for number in range(count)])

    def measure(seconds: float) -> tuple[int, float]:
        session = next(sessions)
        session.window(BUDGET, counter=COUNTER)
        return how(lambda: one_turn(session))(seconds)

    return measure


def _warm(bench: Bench) -> list[Figure]:
    load = bench.first_load
    long = session_of(bench.ram / "long.db", load, bench.scaled(LONG), bench.closing)
    short = session_of(bench.ram / "short.db", load, SHORT, bench.closing)
    measured = harness.rates(
        bench,
        {
            "long": repeated(lambda: long.window(BUDGET, counter=COUNTER)),
            "short": repeated(lambda: short.window(BUDGET, counter=COUNTER)),
        },
    )
    spent = tuple(1_000 / rate for rate in measured["long"].per_s)
    rounds = harness.ratio(measured["short"], measured["long"])
    figures = [
        Figure(
            name=f"{BUDGET:,}-token window of {LONG:,} messages, warm, exact",
            value=statistics.median(spent),
            unit="ms",
            at_most=0.5,
            rounds=spent,
        ),
        Figure(
            name=f"the same: time of that at {SHORT:,} messages",
            value=statistics.median(rounds),
            unit="x",
            at_most=1.2,
            rounds=rounds,
        ),
    ]
    return [*figures, *_beside_trim_messages(bench, load)]


def _beside_trim_messages(bench: Bench, load: Load) -> list[Figure]:
    size = bench.scaled(MIDDLE)
    session = session_of(bench.ram / "middle.db", load, size, bench.closing)
    listed = convert_to_messages([_for_langchain(m.raw()) for m in session.messages])
    exact = tokens.named(COUNTER)
    counters = {
        "estimated": count_tokens_approximately,
        "exact": lambda found: sum(exact.text(str(message.content)) + 4 for message in found),
    }
    figures: list[Figure] = []
    for name, counter in counters.items():
        began = time.perf_counter()
        trim_messages(listed, max_tokens=BUDGET, token_counter=counter, include_system=True, start_on="human")
        theirs = time.perf_counter() - began
        began = time.perf_counter()
        for _ in range(TIMED):
            session.window(BUDGET, counter=COUNTER)
        own = (time.perf_counter() - began) / TIMED
        figures.append(
            Figure(
                name=f"window at {MIDDLE:,} messages: LangChain's trim_messages, {name}, in its time",
                value=theirs / own,
                unit="x",
                at_least=100,
                beside={"trim_messages ms": theirs * 1_000, "ours ms": own * 1_000},
            )
        )
    return figures


def _for_langchain(raw: dict[str, object]) -> dict[str, object]:
    return {**raw, "content": raw.get("content") or ""}


def _turn(bench: Bench) -> list[Figure]:
    load = bench.first_load
    long = session_of(bench.ram / "turn-long.db", load, bench.scaled(LONG), bench.closing)
    measured = harness.rates(
        bench, {"long": repeated(lambda: one_turn(long)), "short": turns(bench, bench.ram / "turn-short.db", SHORT)}
    )
    growth = harness.ratio(measured["short"], measured["long"])
    beside = harness.rates(
        bench,
        {
            "ours": turns(bench, bench.ram / "turn-peer.db", bench.scaled(PEER), lasting),
            "peer": _peer_turns(bench, load),
        },
    )
    faster = harness.ratio(beside["ours"], beside["peer"])
    return [
        Figure(
            name=f"a turn and its window at {LONG:,} messages: time of that at {SHORT:,}",
            value=statistics.median(growth),
            unit="x",
            at_most=1.2,
            rounds=growth,
            beside=harness.medians(measured),
        ),
        Figure(
            name=f"the same at {PEER:,}: OpenAI Agents' SQLiteSession, load and append, in its time",
            value=statistics.median(faster),
            unit="x",
            at_least=20,
            rounds=faster,
            beside=harness.medians(beside),
        ),
    ]


TURN: list[ChatMessage] = [
    {"role": "user", "content": "Is there a sailing to Ostvik on Friday, and what does it cost?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "sailings", "arguments": '{"to": "Ostvik", "day": "Friday"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '[{"at": "09:40", "fare": 320}] ' * 10},
    {"role": "assistant", "content": "There is one at 09:40; it costs 320 crowns."},
]


def one_turn(session: limpet.Session) -> None:
    for message in TURN:
        session.add_message(message)
    session.window(BUDGET, counter=COUNTER)


def _peer_turns(bench: Bench, load: Load) -> harness.Slice:
    """Take turns at the peer, whose window is its whole history; each begins with as many messages."""
    loop = asyncio.new_event_loop()
    bench.closing.callback(loop.close)
    session = SQLiteSession("bench", bench.ram / "peer.db")
    bench.closing.callback(session.close)
    messages = list(itertools.islice(_spoken(load), bench.scaled(PEER)))
    loop.run_until_complete(session.add_items(messages))

    async def turns(seconds: float) -> tuple[int, float]:
        done, spent = 0, 0.0
        while spent < seconds:
            began = time.perf_counter()
            for message in TURN:
                await session.add_items([message])
            await session.get_items()
            spent += time.perf_counter() - began
            done += 1
            for _ in TURN:
                await session.pop_item()
        return done, spent

    return lambda seconds: loop.run_until_complete(turns(seconds))


def _prefix(bench: Bench) -> list[Figure]:
    shares, full = _followed(bench, stable=True)
    plain, plain_full = _followed(bench, stable=False)
    return [
        Figure(
            name=f"unchanged beginning of a prompt of {BUDGET:,} tokens",
            value=statistics.mean(shares) * 100,
            unit="%",
            at_least=90,
            beside={"dropping the oldest": round(statistics.mean(plain) * 100, 1)},
        ),
        Figure(
            name="how full those windows are",
            value=statistics.mean(full) * 100,
            unit="%",
            at_least=75,
            beside={"dropping the oldest": round(statistics.mean(plain_full) * 100, 1)},
        ),
    ]


def _followed(bench: Bench, *, stable: bool) -> tuple[list[float], list[float]]:
    """Make a window before each of a model's answers; give its unchanged part and how full it is."""
    shares, full = list[float](), list[float]()
    before: limpet.Window | None = None
    with limpet.connect("volatile:", max_messages_per_session=ours.SESSION_MAX) as store:
        session = store.sessions.create_session("s", system=PROMPT)
        for message in _spoken(bench.first_load):
            if message["role"] == "assistant" and session.state.tokens > BUDGET:
                now = session.window(BUDGET, counter=COUNTER, stable=stable)
                full.append(now.tokens / BUDGET)
                if before is not None:
                    shares.append(before.diff(now).share)
                before = now
            session.add_message(message)
            if len(full) >= bench.scaled(CALLS):
                return shares, full
    return shares, full
