"""An agent that plans a trip: it delegates, asks before it books, and survives kill -9 anywhere.

    python examples/agent.py --store state.db "Plan a trip to Oslo"

Offline: the model is scripted, unless --model names one of an OpenAI-compatible endpoint (OPENAI_BASE_URL and
OPENAI_API_KEY say where). Booking needs a yes: the program says how to give it and ends with code 10. Run again,
it goes on. The loop itself is in demo.agent.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import limpet
from demo.agent.loop import Agent
from demo.agent.parts import AwaitingDecision, Model, Reply, Shown, Tool, ToolFailed, Work, WorkFailed
from limpet import Limpet, Message, ToolCallRequest
from limpet.frames import ToolEffect

WAITS = 10
FLIGHT, HOTEL = "SK4455", "Hotel Bristol"


class Agency:
    """The tools: a travel agency in a folder. What it did is there to be read."""

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "notes"
        self._bookings = folder / "bookings.jsonl"
        folder.mkdir(parents=True, exist_ok=True)

    def search_flights(self, city: str, *, key: str) -> list[dict[str, Any]]:
        """Look; nothing changes."""
        return [{"flight": FLIGHT, "to": city, "price": 89}, {"flight": "DY1313", "price": 120}]

    def search_hotels(self, city: str, *, key: str) -> list[dict[str, Any]]:
        """Look; nothing changes."""
        return [{"hotel": HOTEL, "city": city, "price": 110}, {"hotel": "Anker", "price": 70}]

    def save_note(self, text: str, *, key: str) -> str:
        """Keep a note. It is named by the key: saved twice, there is one."""
        self._notes.mkdir(exist_ok=True)
        (self._notes / f"{key}.txt").write_text(text + "\n")
        return "saved"

    def book_flight(self, flight: str, *, key: str) -> str:
        """Book. Booked twice is paid twice."""
        if not flight:
            raise ToolFailed("Which flight?")
        with self._bookings.open("a") as file:
            file.write(json.dumps({"flight": flight, "key": key}) + "\n")
        return f"booked {flight}"

    def list_bookings(self, *, key: str) -> list[str]:
        """Look; nothing changes."""
        lines = self._bookings.read_text().splitlines() if self._bookings.exists() else []
        return [json.loads(line)["flight"] for line in lines]

    def tools(self) -> dict[str, Tool]:
        """Return the planner's tools."""
        return {
            "search_flights": Tool(self.search_flights, ToolEffect.PURE, "Find flights.", {"city": "string"}),
            "save_note": Tool(self.save_note, ToolEffect.IDEMPOTENT, "Keep a note.", {"text": "string"}),
            "book_flight": Tool(self.book_flight, ToolEffect.DESTRUCTIVE, "Book.", {"flight": "string"}),
            "list_bookings": Tool(self.list_bookings, ToolEffect.PURE, "What is booked."),
        }

    def helpers_tools(self) -> dict[str, Tool]:
        """Return the tools of whoever the planner delegates to."""
        return {"search_hotels": Tool(self.search_hotels, ToolEffect.PURE, "Find hotels.", {"city": "string"})}


Answers = Mapping[str, Sequence[tuple[Any, bool]]]
"""From a tool's name to what it gave, in order, and whether that was an error."""


def answers(messages: Sequence[Message]) -> Answers:
    """Return what tools have given in a conversation."""
    names: dict[str, str] = {}
    found: dict[str, list[tuple[Any, bool]]] = {}
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        for result in message.tool_results:
            found.setdefault(names[result.tool_call_id], []).append((result.result, result.is_error))
    return found


def scripted(decide: Callable[[Answers], Reply]) -> Model:
    """Return a model that decides by the conversation alone, so that any process can go on."""

    def model(shown: Shown, _tools: Mapping[str, Tool]) -> Reply:
        reply = decide(answers(shown.messages))
        return reply._replace(tokens=100 + len(reply.text))

    return model


def call(name: str, args: Mapping[str, Any] | None = None) -> ToolCallRequest:
    """Return a call of a tool; its id is made here, as a provider does."""
    return ToolCallRequest(name=name, args=args or {})


def planner(given: Answers) -> Reply:
    """Say what the planner says next."""
    if "search_flights" not in given:
        hotel = call("delegate", {"goal": "Find a good hotel in Oslo", "budget": 6_000})
        return Reply("Flights, and a hotel.", [hotel, call("search_flights", {"city": "Oslo"})])
    booked = call("book_flight", {"flight": FLIGHT})
    if "book_flight" not in given:
        note = call("save_note", {"text": f"Oslo: {FLIGHT}, {given['delegate'][-1][0]}"})
        return Reply("I note it and book.", [note, booked])
    told, failed = given["book_flight"][-1]
    if not failed:
        return Reply(f"Oslo is planned: {FLIGHT} is booked. {given['delegate'][-1][0]}")
    if "unknown" not in told:
        return Reply(f"Oslo is planned, but nothing is booked. {told}")
    looked = given.get("list_bookings", ())
    if len(looked) < len(given["book_flight"]):
        return Reply("Did that go through? I look.", [call("list_bookings")])
    if FLIGHT in looked[-1][0]:
        return Reply(f"Oslo is planned: {FLIGHT} is booked. {given['delegate'][-1][0]}")
    return Reply("It did not. Once more.", [booked])


def helper(given: Answers) -> Reply:
    """Say what the planner's helper says next."""
    if "search_hotels" not in given:
        return Reply("", [call("search_hotels", {"city": "Oslo"})])
    return Reply(f"Stay at {HOTEL}.")


def openai_model(name: str) -> Model:
    """Return a model of an OpenAI-compatible endpoint; the environment says which and where."""
    from openai import OpenAI  # not needed for anything else

    client = OpenAI()

    def model(shown: Shown, tools: Mapping[str, Tool]) -> Reply:
        messages: Any = shown.to_openai()
        offered: Any = [_function(name, tool) for name, tool in tools.items()]
        done = client.chat.completions.create(model=name, messages=messages, tools=offered)
        said = done.choices[0].message
        calls = [
            ToolCallRequest(one.id, one.function.name, _arguments(one.function.arguments))
            for one in said.tool_calls or ()
            if one.type == "function"
        ]
        return Reply(said.content or "", calls, done.usage.total_tokens if done.usage else 0)

    return model


def _function(name: str, tool: Tool) -> dict[str, Any]:
    properties = {argument: {"type": kind} for argument, kind in tool.parameters.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    about = {"name": name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": about}


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except json.JSONDecodeError:
        given = None
    # What is no object is handed on under a name that no tool has: the model is told by its result.
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {"arguments": text}


def team(lp: Limpet, folder: Path, *, model: str | None = None, frames: bool = True) -> Agent:
    """Return the planner with its helper, over a store and a folder."""
    agency = Agency(folder)
    index = lp.index if frames else None
    real = openai_model(model) if model else None
    worker = Agent(
        sessions=lp.sessions, index=index, actor="helper", system="You compare hotels. Be brief.",
        model=real or scripted(helper), tools=agency.helpers_tools(),
    )  # fmt: skip
    return Agent(
        sessions=lp.sessions, index=index, actor="planner", system="You plan trips.",
        model=real or scripted(planner), tools=agency.tools(), worker=worker,
    )  # fmt: skip


def work_on(task: str) -> Work:
    """Return the piece of work that a task is: the same words, the same work."""
    name = f"trip-{hashlib.sha256(task.encode()).hexdigest()[:12]}"
    return Work(name, task, session_id=name)


def run(lp: Limpet, agent: Agent, work: Work, *, approve: bool) -> str:
    """Run a piece of work to its end; with `approve`, everything that is asked gets a yes."""
    while True:
        try:
            return agent.run(work)
        except AwaitingDecision as waiting:
            if not approve:
                raise
            asked = waiting.suspension.suspension_id
            lp.index.decide_suspension(asked, "approve", by="--approve")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, open the store, and go on with the work or begin it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("task")
    parser.add_argument("--store", default="state.db")
    parser.add_argument("--folder", type=Path, default=Path("trips"))
    parser.add_argument("--approve", action="store_true", help="say yes to whatever is asked")
    parser.add_argument("--no-frames", action="store_true", help="a session alone, no state index")
    parser.add_argument("--model", help="a model of an OpenAI-compatible endpoint")
    given = parser.parse_args(arguments)
    with limpet.connect(given.store) as lp:
        agent = team(lp, given.folder, model=given.model, frames=not given.no_frames)
        try:
            print(run(lp, agent, work_on(given.task), approve=given.approve))
        except AwaitingDecision as waiting:
            asked = waiting.suspension
            print(f"{asked.reason}: {asked.purpose.partition('@')[0]} {json.dumps(asked.payload)}")
            print(f"  limpet suspensions approve {asked.suspension_id} --url {given.store}")
            print("Then run this again.")
            return WAITS
        except WorkFailed as error:
            print(f"given up: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
