"""The agent loop, killed at every step it takes: run again, it ends as if nothing had happened.

A step is a commit of the store or a call of a tool; a real process dies of SIGKILL just before or just after
it. What is judged afterwards is what is in the store and what the tools did in the world.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import FrameStatus, Session
from limpet.core.values import events as e
from limpet.core.values.frame_state import ToolStatus
from limpet.runtime import state_cache
from limpet.testing import providers
from tests.faults import agent_processes
from tests.faults.agent_processes import Server
from tests.faults.step_kills import Kill

ANSWER = "Oslo is planned: SK4455 is booked. Stay at Hotel Bristol."
SEED = 20_260_711
PARTS = 8
RUNS_MAX = 10

WORK = agent_processes.example().work_on(agent_processes.TASK)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def killed(server: Server, folder: Path, kills: Sequence[Kill], *, frames: bool = True) -> None:
    """Run the agent with a kill for each of the first runs, then until it is through."""
    folder.mkdir()
    for kill in kills:
        assert server.run(folder, kill, frames=frames) in (-9, 0), kills
    for _ in range(RUNS_MAX):
        if server.run(folder, None, frames=frames) == 0:
            return
    raise AssertionError(f"{kills}: not through after {RUNS_MAX} more runs")


def steps_of(server: Server, folder: Path, *, frames: bool = True) -> list[str]:
    killed(server, folder, (), frames=frames)
    steps: list[str] = json.loads((folder / "outcome.json").read_text())["steps"]
    return steps


def judge(folder: Path, *, frames: bool = True) -> list[str]:
    """Return what is wrong with the outcome: nothing, it is hoped."""
    outcome = json.loads((folder / "outcome.json").read_text())
    with limpet.connect(folder / "state.db") as lp:
        talks = [lp.sessions.get_session(str(one["id"])) for one in lp.sessions.list_sessions()]
        found = [fault for talk in talks for fault in _conversation(talk)]
        found += [f"{len(talks)} sessions"] if len(talks) != 2 else []
        found += [str(fault) for fault in lp.admin.verify().faults]
        root = lp.sessions.get_session(WORK.session_id)
        finals = [m.content for m in root.messages if m.role == "assistant" and not m.tool_calls]
        if frames:
            found += [*_accounts(lp, talks), *_effects(lp, folder)]
        said = finals if finals == [outcome["answer"]] else [*finals, outcome["answer"]]
    if frames and said != [ANSWER]:
        found.append(f"the answers are {said}")
    if not frames and (len(said) != 1 or "nobody to ask" not in said[0]):
        found.append(f"the answers are {said}")
    return found


def _conversation(talk: Session) -> Iterator[str]:
    """A history that every provider takes: each call with one result, nothing open, one task."""
    calls = [call.id for message in talk.messages for call in message.tool_calls]
    results = [r.tool_call_id for message in talk.messages for r in message.tool_results]
    if Counter(calls) != Counter(results) or talk.pending_calls():
        yield f"{talk.id}: calls {calls}, results {results}"
    if sum(message.role == "user" for message in talk.messages) != 1:
        yield f"{talk.id}: the task is there more than once"
    yield from _requests(talk.id, talk.window(100_000))


def _requests(name: str, shown: Any) -> Iterator[str]:
    """What a model is shown is a request that each provider takes."""
    for check, made in (
        (providers.check_openai_chat, shown.to_openai()),
        (providers.check_openai_responses, shown.to_openai_responses()),
        (providers.check_anthropic, shown.to_anthropic()),
        (providers.check_gemini, shown.to_gemini()),
    ):
        yield from (f"{name}: {check.__name__}: {violation}" for violation in check(made))


def _accounts(lp: limpet.Limpet, talks: Sequence[Session]) -> Iterator[str]:
    """Every frame is closed, and what was spent is what the turns cost: once each."""
    frames = lp.index.list_frames(open_only=False)
    if sorted(frame.status for frame in frames) != [FrameStatus.COMPLETED] * 2:
        yield f"the frames are {frames}"
    if lp.index.list_suspensions():
        yield "somebody is still asked"
    root = lp.index.get_frame(WORK.id)
    cost = sum(int(str(m.metadata.get("tokens", 0))) for talk in talks for m in talk.messages)
    budget = root.budget
    if (budget.used, budget.reserved, budget.subcall_allocation) != (cost, 0, 0):
        yield f"the turns cost {cost}, the account says {budget}"
    calls = [f"{c.name}@{m.id}/{c.id}" for talk in talks for m in talk.messages for c in m.tool_calls]
    handles = [h.handle_id for f in frames for h in lp.index.get_frame(f.frame_id).context_handles]
    if Counter(handles) != Counter(calls):
        yield f"handles {handles} for calls {calls}"
    for frame in frames:
        yield from _requests(frame.frame_id, lp.index.pack_of(frame.frame_id))
    if root.result_summary != ANSWER:
        yield f"the frame's result is {root.result_summary!r}"


def _effects(lp: limpet.Limpet, folder: Path) -> Iterator[str]:
    """No tool ran again before its outcome was said to be unknown, and nothing was booked twice."""
    bookings = (folder / "trips/bookings.jsonl").read_text().splitlines()
    if len(bookings) != 1:
        yield f"booked {len(bookings)} times"
    if len(list((folder / "trips/notes").iterdir())) != 1:
        yield "the note is there more than once"
    allowed: Counter[str] = Counter()
    named: dict[str, str] = {}
    unsure: set[str] = set()
    store = lp.index._engine.store
    for stored in store.read("default", state_cache.tree_stream(WORK.id), limit=1_000):
        match state_cache.decode_tree_event(stored).event:
            case e.FrameUpdatedEvent(tool=tool) if tool and tool.status is ToolStatus.STARTED:
                if tool.attempt > 1 and tool.tool_id not in unsure:
                    yield f"{tool.name} was retried, and not known to be unknown"
                allowed[tool.key] += 1
                named[tool.tool_id] = tool.key
                unsure.discard(tool.tool_id)
            case e.ActorResumedEvent(unknown=lost):
                unsure.update(lost)
            case _:
                pass
    ran = Counter(line.split()[1] for line in (folder / "effects.log").read_text().splitlines())
    for key, times in ran.items():
        if times > allowed[key]:
            yield f"{key} ran {times} times, noted {allowed[key]} times"


@pytest.mark.slow
@pytest.mark.req("C-14", "C-29")
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_step(server: Server, scratch: Path, part: int):
    """Before and after each commit and each tool call: the same answer, effects and accounts."""
    steps = steps_of(server, scratch / "whole")
    assert judge(scratch / "whole") == []
    assert len(steps) > 30 and {"commit", "book_flight", "search_hotels"} <= set(steps)
    kills = [Kill(step, after) for step in range(1, len(steps) + 1) for after in (False, True)]
    for number, kill in enumerate(kills[part::PARTS]):
        folder = scratch / str(number)
        killed(server, folder, [kill])
        assert judge(folder) == [], f"killed {kill} ({steps[kill.step - 1]})"


@pytest.mark.slow
@pytest.mark.req("C-29")
def test_killed_again_while_coming_back(server: Server, scratch: Path):
    """The run that picks the pieces up is killed too, and the one after it."""
    steps = len(steps_of(server, scratch / "whole"))
    draw = random.Random(SEED)
    for number in range(40):
        kills = [
            Kill(draw.randint(1, steps), draw.random() < 0.5),
            *(Kill(draw.randint(1, 12), draw.random() < 0.5) for _ in range(draw.randint(1, 3))),
        ]
        killed(server, scratch / str(number), kills)
        assert judge(scratch / str(number)) == [], f"killed {kills}, seed {SEED}"


@pytest.mark.req("C-29")
def test_without_an_index_killed_at_every_step(server: Server, scratch: Path):
    """The index is optional: on a session alone the loop survives as well, and books nothing unasked."""
    steps = steps_of(server, scratch / "whole", frames=False)
    for step in range(1, len(steps) + 1):
        for after in (False, True):
            folder = scratch / f"{step}-{after}"
            killed(server, folder, [Kill(step, after)], frames=False)
            assert judge(folder, frames=False) == [], f"killed {Kill(step, after)}"
            assert not (folder / "trips/bookings.jsonl").exists()
