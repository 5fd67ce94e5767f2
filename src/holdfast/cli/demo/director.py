"""The director: starts the keeper, kills it while a tool runs, starts another, and has all claims checked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import holdfast
from holdfast.cli import recalled, status
from holdfast.cli.demo import claims, logbook
from holdfast.cli.demo.claims import Acknowledged, Claim, Found, Page
from holdfast.cli.demo.stage import Stage
from holdfast.cli.demo.tools import TOOLS

KEEPER = (sys.executable, "-P", "-m", "holdfast.cli.demo.keeper")
LOGBOOK = (sys.executable, "-P", "-m", "holdfast.cli.demo.logbook")
JAMS_AFTER = 4
PATIENCE_S = 120.0
"""A keeper that takes longer than this hangs, and is ended."""

_PLANS = {
    True: "safe to repeat: its file is named by the call's id",
    False: "not safe to repeat: the model is told that the outcome is unknown",
}


class Night(NamedTuple):
    """How it went."""

    killed: dict[str, Any]
    acknowledged: dict[str, int]
    pending: list[dict[str, Any]]
    claims: list[Claim]
    facts: dict[str, Any]
    window: dict[str, Any] | None

    @property
    def ok(self) -> bool:
        """Whether every claim held."""
        return all(claim.held for claim in self.claims)


class _Keeper:
    """A running keeper, and what it told of itself so far."""

    def __init__(self, command: Sequence[str], folder: Path, *options: str) -> None:
        # In a group of its own: ^C is for the director, who ends the keeper himself.
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command, str(folder), *options], stdout=subprocess.PIPE, text=True, process_group=0
        )
        self.acknowledged: list[Acknowledged] = []
        self.tool = "nothing"
        self._watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        self._watchdog.start()

    def events(self, stage: Stage) -> Iterator[str]:
        """Yield the names of events as they come, shown on the stage."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            match event["event"]:
                case "acknowledged":
                    self.acknowledged.append(Acknowledged(event["position"], event["message"]))
                    self.tool = "nothing"
                    stage.message(event["position"], event["message"])
                case "tool":
                    self.tool = event["name"]
                case "stroke":
                    stage.stroke()
                case _:
                    pass
            yield event["event"]

    def __enter__(self) -> _Keeper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def play(
    folder: Path,
    stage: Stage,
    *,
    pace_s: float,
    keeper: Sequence[str] = KEEPER,
    book: Sequence[str] = LOGBOOK,
) -> Night:
    """Play the night in an empty folder; return what happened and what was found to be true."""
    with holdfast.connect(folder / "state.db"):
        pass  # a place where no store can be is told here, before the curtain
    stage.title(
        "A night on Holdfast Rock",
        "The words are scripted; the tools, the file and kill -9 are real. Offline.",
    )
    stage.named("store", str(folder / "state.db"))
    first, code, during = _first(folder, stage, keeper, pace_s)
    found = claims.look(folder)
    early = [
        claims.killed(code, during, found),
        claims.kept("kept", first, found),
        claims.pending(first, found),
    ]
    _interval(stage, early, found)
    second, code_after = _second(folder, stage, keeper, pace_s)
    after = claims.look(folder)
    page, middle = _hundred_nights(folder, stage, book)
    report, facts = _inspect(folder)
    told = [*first, *second]
    late = [
        claims.finished(code_after, after),
        claims.kept("kept_to_the_end", told, after),
        claims.once(after),
        claims.answered(after),
        claims.whole(report),
    ]
    stage.chapter("In the end, read from the file by a third process")
    for claim in late:
        stage.verdict(claim.text, good=claim.held)
        stage.pause(0.5)
    return Night(
        killed={"signal": max(-code, 0), "during": during, "strokes": found.strokes},
        acknowledged={
            "before_the_kill": len(first),
            "found_after_it": claims.intact(first, found),
            "in_all": len(told),
            "found_in_all": claims.intact(told, after),
        },
        pending=[
            {"name": call.name, "args": call.args, "repeatable": TOOLS[call.name].repeatable}
            for call in found.pending
        ],
        claims=[*early, *middle, *late],
        facts=facts,
        window=recalled.document(page.row) if page else None,
    )


def _first(
    folder: Path, stage: Stage, command: Sequence[str], pace_s: float
) -> tuple[list[Acknowledged], int, str]:
    """Run the keeper until the rope jams, and kill it there; return what it had been promised."""
    options = ("--jams-after", str(JAMS_AFTER), "--pace", str(pace_s))
    with _Keeper(command, folder, *options) as running:
        stage.named("process", f"{running.process.pid}, the keeper")
        stage.line()
        for event in running.events(stage):
            if event == "jammed":
                stage.countdown(f"The rope jams.  kill -9 {running.process.pid}")
                running.process.send_signal(signal.SIGKILL)
                break
        code = running.process.wait()
        return running.acknowledged, code, running.tool


def _interval(stage: Stage, early: Sequence[Claim], found: Found) -> None:
    for claim in early:
        stage.verdict(claim.text, good=claim.held)
        stage.pause()
    for call in found.pending:
        stage.waiting(call.name, call.args, _PLANS[TOOLS[call.name].repeatable])
        stage.pause()


def _second(
    folder: Path, stage: Stage, command: Sequence[str], pace_s: float
) -> tuple[list[Acknowledged], int]:
    with _Keeper(command, folder, "--pace", str(pace_s)) as running:
        stage.chapter(f"A new process, {running.process.pid}, opens the same file")
        stage.line()
        for _ in running.events(stage):
            pass
        return running.acknowledged, running.process.wait()


def _hundred_nights(
    folder: Path, stage: Stage, command: Sequence[str]
) -> tuple[Page | None, list[Claim]]:
    """Have the logbook kept, and show what its model saw of it: from the file, as it was recorded."""
    # In a group of its own, as the keeper is.
    ended = subprocess.run(  # noqa: S603 - our own interpreter and module
        [*command, str(folder)], stdout=subprocess.PIPE, text=True, process_group=0, timeout=PATIENCE_S, check=False
    )  # fmt: skip
    shown = logbook.Sent(**json.loads(ended.stdout)) if ended.returncode == 0 else None
    page = claims.leaf(folder)
    stage.chapter(
        f"{logbook.NIGHTS} nights later the logbook has outgrown its budget: {logbook.BUDGET:,} tokens"
    )
    if page is not None:
        stage.line()
        question = page.row.number - 1
        for number in (question, question + 1):
            stage.message(number, page.messages[number - 1].to_dict())
            stage.pause(0.5)
        stage.line()
        stage.window(page.window)
        stage.line()
    checked = [claims.fits(page), claims.accounted(page), claims.seen(shown, page)]
    for claim in checked:
        stage.verdict(claim.text, good=claim.held)
        stage.pause(0.5)
    return page, checked


def _inspect(folder: Path) -> tuple[Any, dict[str, Any]]:
    with holdfast.connect(folder / "state.db") as hf:
        return hf.admin.verify(), status.read(hf)
