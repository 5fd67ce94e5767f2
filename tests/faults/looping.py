"""Processes that run the agent of examples/agent.py, and are killed at a step of it.

    python -P looping.py

A step is a commit of the store or a call of a tool. Each request, a line of JSON, names a folder and the
step to die at, just before or just after it. It is served by a fork of this process, which has everything
imported and nothing run, so that a run costs no time for starting. The answer is the exit code.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, Self

import holdfast
from holdfast import Message, StateManager
from holdfast.cli.demo.agent.loop import Agent
from holdfast.cli.demo.agent.parts import Tool
from holdfast.store.sqlite.store import SQLiteStore

ROOT = Path(__file__).resolve().parents[2]
TASK = "Plan a trip to Oslo"


def example() -> ModuleType:
    """Return examples/agent.py as a module."""
    spec = importlib.util.spec_from_file_location("agent_example", ROOT / "examples/agent.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Kill(NamedTuple):
    """Where a process dies: at a step, counted from 1, before or after it."""

    step: int
    after: bool

    def __repr__(self) -> str:
        return f"{'after' if self.after else 'before'} step {self.step}"


class Steps:
    """Counts steps, and ends the process at one of them."""

    def __init__(self, kill: Kill | None) -> None:
        self.names: list[str] = []
        self._kill = kill

    def take(self, name: str, do: Callable[[], Any]) -> Any:
        self.names.append(name)
        mine = self._kill is not None and self._kill.step == len(self.names)
        if mine and self._kill is not None and not self._kill.after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = do()
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


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
    with holdfast.connect(folder / "state.db") as hf:
        agent = watched(
            agent_of.team(hf, folder / "trips", frames=frames), steps, folder / "effects.log"
        )
        answer = agent_of.run(hf, agent, agent_of.work_on(TASK), approve=True)
    (folder / "outcome.json").write_text(json.dumps({"answer": answer, "steps": steps.names}))


def serve() -> None:
    """Answer requests until there are none."""
    module = example()
    StateManager(limit=1_000).count([Message("user", TASK)])  # loads the vocabulary
    gc.freeze()
    for line in sys.stdin:
        process = os.fork()
        if not process:
            request: Mapping[str, Any] = json.loads(line)
            kill = Kill(*request["kill"]) if request["kill"] else None
            try:
                run(Path(request["folder"]), kill, frames=request["frames"], agent_of=module)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


class Server:
    """The process that forks runs of the agent, for as long as the body takes."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def run(self, folder: Path, kill: Kill | None, *, frames: bool = True) -> int:
        """Run the agent in a folder; return the exit code of its process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"folder": str(folder), "kill": kill, "frames": frames}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    serve()
