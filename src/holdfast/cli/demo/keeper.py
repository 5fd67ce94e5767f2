"""The agent: a loop of forty lines around a session. It runs as a process of its own.

    python -m holdfast.cli.demo.keeper FOLDER [--jams-after 4] [--pace 0.5]

What it does is told on stdout, one JSON object a line. "acknowledged" is told only after the store
has returned, so the reader knows what must never be lost.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Message, Session, ToolCallResult
from holdfast.cli.demo import script
from holdfast.cli.demo.tools import TOOLS, Station

SESSION = "night-watch"


class Keeper:
    """Runs the conversation of one session to its end, from wherever it stands."""

    def __init__(self, session: Session, station: Station, *, pace_s: float) -> None:
        self._session = session
        self._station = station
        self._pace_s = pace_s

    def run(self) -> None:
        """Answer what an earlier process left open; then take turns until the script ends."""
        if self._session.message_count == 1:
            self._acknowledge(self._session.messages[0])
        self._settle()
        while (turn := script.next_turn(self._session.messages)) is not None:
            self._record(turn)
            if turn.tool_calls:
                results = [self._use(call.id, call.name, call.args) for call in turn.tool_calls]
                self._record(Message("tool", tool_results=results))

    def _settle(self) -> None:
        pending = self._session.pending_calls()
        safe = [call for call in pending if TOOLS[call.name].repeatable]
        if safe:
            results = [self._use(call.call_id, call.name, call.args) for call in safe]
            self._record(Message("tool", tool_results=results))
        if len(safe) < len(pending):
            self._session.close_pending_calls()
            self._acknowledge(self._session.messages[-1])

    def _use(self, call_id: str, name: str, args: Any) -> ToolCallResult:
        tell("tool", {"name": name})
        return ToolCallResult(call_id, TOOLS[name].use(self._station, call_id, args))

    def _record(self, message: Message) -> None:
        self._session.add_message(message)  # on disk when this returns
        self._acknowledge(message)

    def _acknowledge(self, message: Message) -> None:
        position = self._session.message_count
        tell("acknowledged", {"position": position, "message": message.to_dict()})
        time.sleep(self._pace_s)


def tell(event: str, facts: Mapping[str, Any]) -> None:
    """Tell whoever watches; it has left this process when this returns."""
    print(json.dumps({"event": event, **facts}), flush=True)


def main() -> None:
    """Open the store, find the session or begin it, and go on."""
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
    with holdfast.connect(given.folder / "state.db") as hf:
        if hf.sessions.load_session(SESSION) is None:
            station.build()
        session = hf.sessions.get_or_create_session(
            SESSION, user_id="ada", system=script.SYSTEM, title="A night on Holdfast Rock"
        )
        Keeper(session, station, pace_s=given.pace).run()


if __name__ == "__main__":
    main()
