"""Processes that run the agent of examples/agent.py, and are killed at a step of it.

    python -P looping.py

A step is a commit of the store or a call of a tool; see stepping.py.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import limpet  # noqa: E402 - found from the checkout
from demo.agent.loop import Agent  # noqa: E402
from demo.agent.parts import Tool  # noqa: E402
from limpet import Message, StateManager  # noqa: E402
from limpet.stores.sqlite.store import SQLiteStore  # noqa: E402
from tests.faults import step_kills  # noqa: E402
from tests.faults.step_kills import Kill, Steps  # noqa: E402

TASK = "Plan a trip to Oslo"


def example() -> ModuleType:
    """Return examples/agent.py as a module."""
    spec = importlib.util.spec_from_file_location("agent_example", ROOT / "examples/agent.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def watched(agent: Agent, steps: Steps, log: Path) -> Agent:
    """Return an agent whose tool calls are steps. Each effect is a line in a file, with its key."""

    def tool(name: str, one: Tool) -> Tool:
        def do(*, key: str, **args: Any) -> Any:
            def effect() -> Any:
                with log.open("a") as file:
                    file.write(f"{name} {key}\n")
                return one.do(**args, key=key)

            return steps.take(name, effect)

        return one._replace(do=do)

    tools = {name: tool(name, one) for name, one in agent.tools.items()}
    worker = watched(agent.worker, steps, log) if agent.worker else None
    return dataclasses.replace(agent, tools=tools, worker=worker)


def run(folder: Path, kill: Kill | None, *, frames: bool, agent_of: ModuleType) -> None:
    """Run the agent to its end, or to the step where it is killed; write down what it said."""
    steps = Steps(kill)
    commit = SQLiteStore.commit

    def counted(store: SQLiteStore, appends: Sequence[Any]) -> Any:
        return steps.take("commit", lambda: commit(store, appends))

    setattr(SQLiteStore, "commit", counted)  # noqa: B010 - a method of another name
    with limpet.connect(folder / "state.db") as lp:
        agent = watched(agent_of.team(lp, folder / "trips", frames=frames), steps, folder / "effects.log")
        answer = agent_of.run(lp, agent, agent_of.work_on(TASK), approve=True)
    (folder / "outcome.json").write_text(json.dumps({"answer": answer, "steps": steps.names}))


class Server(step_kills.Server):
    """Runs the agent."""

    def __init__(self) -> None:
        super().__init__(__file__)

    def run(self, folder: Path, kill: Kill | None, *, frames: bool = True) -> int:
        """Run the agent in a folder; return the exit code of its process."""
        return self.ask(folder, kill, frames=frames)


if __name__ == "__main__":
    StateManager(limit=1_000).count([Message("user", TASK)])  # loads the vocabulary
    step_kills.serve(partial(run, agent_of=example()))
