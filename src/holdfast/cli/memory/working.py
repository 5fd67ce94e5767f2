"""`holdfast worker`: the work that nobody waits for, until it is interrupted, or once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast import limits
from holdfast.cli import exits, figures, target, visible
from holdfast.cli.options import Common
from holdfast.cli.surface import Face, Surface
from holdfast.values import ids

if TYPE_CHECKING:
    from types import FrameType

    from holdfast.engine.worker import Done, TaskStatus, Worker
    from holdfast.models.port import Model
    from holdfast.values.frozen import Json
    from holdfast.wiring import Holdfast


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which work, and how long."""

    once: bool = False
    status: bool = False
    memory: bool = True
    embeddings: bool = False
    model: str | None = None
    provider: str = "openai"
    base_url: str | None = None
    idle_s: float | None = None


def run(wanted: Wanted, common: Common) -> int:
    """Work for every tenant of a store."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common, opener=lambda url: _opened(url, wanted, common)) as hf:
        worker = hf.worker(every_tenant=True)
        if wanted.status:
            _show(surface, worker.status())
            return exits.DONE
        if wanted.once:
            done = worker.run_once()
            return _ended(surface, worker, done)
        surface.note(f"{worker.holder} works on {target.choose(common.url)}; ^C ends it.")
        _until_interrupted(worker)
        surface.note("stopped; what is left is taken up by the next one.")
    return exits.DONE


def _opened(url: str, wanted: Wanted, common: Common) -> Holdfast:
    import holdfast  # noqa: PLC0415 - the package is loaded by now; this only names it

    return holdfast.connect(
        url,
        tenant=common.tenant,
        memory=wanted.memory,
        model=_model(wanted),
        embedder=wanted.embeddings,
        idle_timeout_s=limits.IDLE_TIMEOUT_S if wanted.idle_s is None else wanted.idle_s,
    )


def _model(wanted: Wanted) -> Model | None:
    if wanted.model is None:
        return None
    if wanted.provider == "anthropic":
        from holdfast.models.anthropic import AnthropicModel  # noqa: PLC0415 - only whoever asks one

        return AnthropicModel(wanted.model, base_url=wanted.base_url)
    from holdfast.models.openai import OpenAIModel  # noqa: PLC0415 - as above

    return OpenAIModel(wanted.model, base_url=wanted.base_url)


def _until_interrupted(worker: Worker) -> None:
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        worker.run(stop)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(surface: Surface, worker: Worker, done: Done) -> int:
    if surface.face is Face.JSON:
        tasks = [_document(one) for one in worker.status()]
        surface.document({"steps": done.steps, "failures": done.failures, "tasks": tasks})
    elif surface.face is Face.PIPE:
        surface.row(done.steps, done.failures)
    else:
        mark = surface.glyphs.bad if done.failures else surface.glyphs.good
        surface.say(
            f"{mark} {figures.count(done.steps, 'step')}, {figures.count(done.failures, 'failure')}"
        )
    if done.failures:
        for one in worker.status():
            if one.error:
                surface.note(f"{one.task} of {one.tenant}: {one.error}; tried again later.")
    return exits.FAILED if done.failures else exits.DONE


def _document(one: TaskStatus) -> dict[str, Json]:
    return {
        "tenant": one.tenant,
        "task": one.task,
        "holder": one.holder,
        "until": ids.iso(one.until_us) if one.until_us else None,
        "failures": one.failures,
        "error": one.error,
        "retry_at": ids.iso(one.retry_us) if one.retry_us else None,
        "told": dict(one.told),
    }


def _show(surface: Surface, found: Sequence[TaskStatus]) -> None:
    if surface.face is Face.JSON:
        surface.document({"tasks": [_document(one) for one in found]})
        return
    if surface.face is Face.PIPE:
        for one in found:
            surface.row(one.tenant, one.task, one.holder, one.failures, one.error, _told(one))
        return
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    rows = [
        [
            Text(visible.line(one.tenant), style="cyan"),
            Text(one.task),
            Text(one.holder or "nobody"),
            Text(f"{one.failures}", style="red" if one.failures else ""),
            Text(visible.line(" ".join(filter(None, (one.error, _told(one)))))),
        ]
        for one in found
    ]
    surface.listed(["TENANT", "TASK", "WORKED ON BY", ">FAILED", "TOLD"], rows)


def _told(one: TaskStatus) -> str:
    return ", ".join(f"{name} {value}" for name, value in one.told.items())
