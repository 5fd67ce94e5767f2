"""The director: starts the keeper, says yes to it, kills it while a tool runs, starts others, has all claims checked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import limpet
from demo import claims, keeper, logbook, seasons
from demo.claims import Acknowledged, Claim, Found, Page
from demo.stage import Stage
from limpet.cli.subcommands import context_command, store_commands

KEEPER = (sys.executable, "-P", "-m", "demo.keeper")
LOGBOOK = (sys.executable, "-P", "-m", "demo.logbook")
JAMS_AFTER = 4
PATIENCE_S = 120.0
"""A keeper that takes longer than this hangs, and is ended."""

HARBOUR = "harbour master"
ASKS_MAX = 5
_PLAN = "not safe to repeat: the model is told that the outcome is unknown"


class Night(NamedTuple):
    """How it went."""

    killed: dict[str, Any]
    approvals: int
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
        self.process = subprocess.Popen(
            [*command, str(folder), *options], stdout=subprocess.PIPE, text=True, process_group=0
        )
        self.acknowledged: list[Acknowledged] = []
        self.tool = "nothing"
        self.asked: dict[str, Any] | None = None
        self._watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        self._watchdog.start()

    def events(self, stage: Stage) -> Iterator[str]:
        """Yield the names of events as they come, shown on the stage."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            match event["event"]:
                case "acknowledged":
                    del event["event"]
                    self.acknowledged.append(Acknowledged(**event))
                    self.tool = "nothing"
                    helper = event["session"] != keeper.SESSION
                    stage.message(event["position"], event["message"], helper=helper)
                    yield "acknowledged"
                    continue
                case "tool":
                    self.tool = event["name"]
                case "asked":
                    self.asked = event
                case "stroke":
                    stage.stroke()
                case _:
                    pass
            yield event["event"]

    def __enter__(self) -> _Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
    actor: Sequence[str] = KEEPER,
    book: Sequence[str] = LOGBOOK,
    relief: Sequence[str] = seasons.RELIEF,
) -> Night:
    """Play the night in an empty folder; return what happened and what was found to be true."""
    with limpet.connect(folder / "state.db"):
        pass  # a place where no store can be is told here, before the curtain
    stage.title("A night on Limpet Rock", "The words are scripted; the tools, the file and kill -9 are real. Offline.")
    stage.named("store", str(folder / "state.db"))
    asked = _run(folder, stage, actor, pace_s, "the keeper")
    question = claims.asked(asked.code, claims.look(folder))
    stage.line()
    _verdicts(stage, [question])
    _approve(folder, stage, asked.asked)
    jammed = _run(folder, stage, actor, pace_s, "rings", "--jams-after", str(JAMS_AFTER))
    before = [*asked.acknowledged, *jammed.acknowledged]
    found = claims.look(folder)
    early = [
        claims.killed(jammed.code, jammed.tool, found),
        claims.kept("kept", before, found),
        claims.pending(before, found),
    ]
    _interval(stage, early, found)
    told, code_after = _to_the_end(folder, stage, actor, pace_s)
    after = claims.look(folder)
    page, middle = _hundred_nights(folder, stage, book)
    middle += seasons.play(folder, stage, relief)
    report, facts = _inspect(folder)
    told = [*before, *told]
    late = [
        claims.finished(code_after, after),
        claims.kept("kept_to_the_end", told, after),
        claims.once(after),
        claims.answered(after),
        claims.decided(after, HARBOUR),
        claims.accounts(after),
        claims.whole(report),
    ]
    stage.chapter("In the end, read from the file by another process")
    _verdicts(stage, late)
    return Night(
        killed={"signal": max(-jammed.code, 0), "during": jammed.tool, "strokes": found.strokes},
        approvals=len(after.suspensions),
        acknowledged=_promised(before, found) | _promised(told, after, "in_all", "found_in_all"),
        pending=[{"name": call.name, "args": call.args} for call in found.pending],
        claims=[question, *early, *middle, *late],
        facts=facts,
        window=context_command.recording_document(page.row) if page else None,
    )


def _promised(
    told: Sequence[Acknowledged], found: Found, promised: str = "before_the_kill", kept: str = "found_after_it"
) -> dict[str, int]:
    return {promised: len(told), kept: claims.intact(told, found)}


class _Ended(NamedTuple):
    """How a run of the keeper ended: what it had been promised, its code, the tool it was at, what it asks."""

    acknowledged: list[Acknowledged]
    code: int
    tool: str
    asked: dict[str, Any] | None


def _run(folder: Path, stage: Stage, command: Sequence[str], pace_s: float, what: str, *options: str) -> _Ended:
    """Run the keeper to its end; if the rope jams, kill it there."""
    with _Keeper(command, folder, "--pace", str(pace_s), *options) as running:
        stage.named("process", f"{running.process.pid}, {what}")
        stage.line()
        for event in running.events(stage):
            if event == "jammed":
                stage.countdown(f"The rope jams.  kill -9 {running.process.pid}")
                running.process.send_signal(signal.SIGKILL)
                break
        code = running.process.wait()
        return _Ended(running.acknowledged, code, running.tool, running.asked)


def _verdicts(stage: Stage, checked: Sequence[Claim]) -> None:
    for claim in checked:
        stage.verdict(claim.text, good=claim.held)
        stage.pause(0.5)


def _approve(folder: Path, stage: Stage, asked: Mapping[str, Any] | None) -> None:
    """Say yes, as somebody else in another process would: without the token, by the suspension's id."""
    if asked is None:
        return
    # Whoever else has decided is found out by the claim.
    with limpet.connect(folder / "state.db") as lp, suppress(limpet.errors.AlreadyDecided):
        lp.index.decide_suspension(asked["suspension"], "approve", by=HARBOUR)
    stage.chapter(f"The {HARBOUR} says yes to ring_bell({_args(asked['args'])}); a new process goes on")
    stage.line()


def _args(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {json.dumps(value)}" for name, value in args.items())


def _interval(stage: Stage, early: Sequence[Claim], found: Found) -> None:
    _verdicts(stage, early)
    for call in found.pending:
        stage.waiting(call.name, call.args, _PLAN)
        stage.pause()
    for frame in found.frames:
        stage.account(frame)
    stage.pause()


def _to_the_end(folder: Path, stage: Stage, command: Sequence[str], pace_s: float) -> tuple[list[Acknowledged], int]:
    """Run keepers until one needs no yes any more; return what they were promised, and how the last one ended."""
    stage.chapter("A new process opens the same file, and finds the call that had begun")
    stage.line()
    told: list[Acknowledged] = []
    code = keeper.WAITS
    for _ in range(ASKS_MAX):
        ended = _run(folder, stage, command, pace_s, "another keeper")
        told += ended.acknowledged
        code = ended.code
        if code != keeper.WAITS:
            break
        _approve(folder, stage, ended.asked)
    return told, code


def _hundred_nights(folder: Path, stage: Stage, command: Sequence[str]) -> tuple[Page | None, list[Claim]]:
    """Have the logbook kept, and show what its model saw of it: from the file, as it was recorded."""
    # In a group of its own, as the keeper is.
    ended = subprocess.run(
        [*command, str(folder)], stdout=subprocess.PIPE, text=True, process_group=0, timeout=PATIENCE_S, check=False
    )  # fmt: skip
    shown = logbook.Sent(**json.loads(ended.stdout)) if ended.returncode == 0 else None
    page = claims.leaf(folder)
    stage.chapter(f"{logbook.NIGHTS} nights later the logbook has outgrown its budget: {logbook.BUDGET:,} tokens")
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
    _verdicts(stage, checked)
    return page, checked


def _inspect(folder: Path) -> tuple[Any, dict[str, Any]]:
    with limpet.connect(folder / "state.db") as lp:
        return lp.admin.verify(), store_commands.read_status(lp)
