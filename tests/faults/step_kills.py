"""Processes that are killed at a step of what they do, forked from one that has everything imported and nothing run.

A step is whatever is run with `Steps.take`. Each request, a line of JSON, names a folder and the step to die at, just
before or just after it, and whatever else a run is to know; a fork serves it, so that a run costs no time for
starting. The answer is the exit code.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self


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


def serve(run: Callable[..., None]) -> None:
    """Answer requests until there are none: `run` gets the folder, the kill, and by name what else was sent."""
    gc.freeze()
    for line in sys.stdin:
        process = os.fork()
        if not process:
            request = json.loads(line)
            kill = Kill(*request["kill"]) if request["kill"] else None
            try:
                run(Path(request["folder"]), kill, **request["more"])
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


class Server:
    """The process that forks runs of a script, for as long as the body takes."""

    def __init__(self, script: str) -> None:
        self._script = script

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", self._script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def ask(self, folder: Path, kill: Kill | None, **more: object) -> int:
        """Run it in a folder; return the exit code of its process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"folder": str(folder), "kill": kill, "more": more}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
