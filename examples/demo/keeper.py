"""The keeper: a program over the agent loop, a process of its own.

    python -m demo.keeper FOLDER [--jams-after 4] [--pace 0.5]

What it does is told on stdout, one JSON object a line. "acknowledged" is told only after the store
has returned, so the reader knows what must never be lost. Ends with code 10 while somebody has to decide.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import limpet
from demo import script, tools
from demo.agent.loop import Agent
from demo.agent.parts import AwaitingDecision, Tool, Work
from demo.tools import Station
from limpet import Session

SESSION = "night-watch"
WAITS = 10
WORKS = tuple(Work(f"{SESSION}-{number}", task, SESSION, budget=8_000) for number, task in enumerate(script.TASKS, 1))


class Watch:
    """Tells of every message that this process has not told of."""

    def __init__(self, sessions: limpet.SessionManager, *, pace_s: float) -> None:
        here = sessions.load_session(SESSION)
        self._told = {SESSION: here.message_count if here else 0}
        self._pace_s = pace_s

    def __call__(self, session: Session) -> None:
        """Tell what is new in a session."""
        told = self._told.get(session.id, 0)
        for position, message in enumerate(session.messages[told:], told + 1):
            facts = {"session": session.id, "position": position, "message": message.to_dict()}
            tell("acknowledged", facts)
            time.sleep(self._pace_s)
        self._told[session.id] = session.message_count


def tell(event: str, facts: Mapping[str, Any]) -> None:
    """Tell whoever watches; it has left this process when this returns."""
    print(json.dumps({"event": event, **facts}), flush=True)


def told(given: Mapping[str, Tool]) -> dict[str, Tool]:
    """Return tools that tell of their use."""

    def telling(name: str, tool: Tool) -> Tool:
        def _do(*, key: str, **args: Any) -> Any:
            tell("tool", {"name": name})
            return tool.do(**args, key=key)

        return tool._replace(do=_do)

    return {name: telling(name, tool) for name, tool in given.items()}


def keeper(lp: limpet.Limpet, station: Station, *, pace_s: float) -> Agent:
    """Return the keeper, who has the storekeeper count."""
    watch = Watch(lp.sessions, pace_s=pace_s)
    storekeeper = Agent(
        sessions=lp.sessions, index=lp.index, actor="storekeeper", system=script.STORE_ROOM,
        model=script.model(script.STOREKEEPER), tools=told(tools.storekeepers(station)), watch=watch,
    )  # fmt: skip
    return Agent(
        sessions=lp.sessions, index=lp.index, actor="keeper", system=script.SYSTEM,
        model=script.model(script.KEEPER), tools=told(tools.keepers(station)), watch=watch,
        worker=storekeeper,
    )  # fmt: skip


def main() -> None:
    """Open the store, and go on with the night or begin it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jams-after", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0)
    given = parser.parse_args()
    station = Station(
        given.folder,
        tell=lambda what, times: tell(what, {"times": times}),
        jams_after=given.jams_after,
        pace_s=given.pace,
    )
    with limpet.connect(given.folder / "state.db") as lp:
        agent = keeper(lp, station, pace_s=given.pace)
        if lp.sessions.load_session(SESSION) is None:
            station.build()
        lp.sessions.get_or_create_session(SESSION, user_id="ada", system=script.SYSTEM, title="A night on Limpet Rock")
        try:
            for work in WORKS:
                agent.run(work)
        except AwaitingDecision as waiting:
            asked = waiting.suspension
            tell("asked", {"suspension": asked.suspension_id, "args": asked.payload})
            sys.exit(WAITS)


if __name__ == "__main__":
    main()
