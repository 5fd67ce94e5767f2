"""`limpet worker`: the work that nobody waits for, until it is interrupted, or once."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet import limits
from limpet.cli import again, exits, figures, target, visible
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values import ids

if TYPE_CHECKING:
    from types import FrameType

    from limpet.core.values.json_values import Json
    from limpet.jobs.worker import Done, TaskStatus, Worker
    from limpet.llm.port import Model
    from limpet.wiring import Limpet


_UNDONE = ("waiting", "dead")
_ABOUT = ("task", "tenant", "session", "error", "failures", "tries")


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
    keep_s: float | None = None
    every_tenant: bool = True


def run(wanted: Wanted, common: Common) -> int:
    """Work for every tenant of a store, or the one that is named."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common, opener=lambda url: _opened(url, wanted, common)) as lp:
        worker = lp.worker(every_tenant=wanted.every_tenant)
        if wanted.status:
            _show(surface, worker.status())
            return exits.DONE
        with _troubles_told(surface):
            if wanted.once:
                return _ended(surface, worker, worker.run_once(), common)
            begun = f"{worker.holder} works on {target.named(common.url)}; ^C ends it."
            _until_interrupted(worker, lambda: surface.note(begun))
        surface.note("Stopped. What is left is taken up by the next one.")
    return exits.DONE


@contextlib.contextmanager
def _troubles_told(surface: Surface) -> Iterator[None]:
    """Say what is logged meanwhile, with what it is about: it is tried again, and nobody else hears of it."""
    logger, handler = logging.getLogger("limpet"), _Telling(surface)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Telling(logging.Handler):
    def __init__(self, surface: Surface) -> None:
        super().__init__(logging.WARNING)
        self._surface = surface

    def emit(self, record: logging.LogRecord) -> None:
        about = [
            f"{name} {getattr(record, name)}" for name in _ABOUT if getattr(record, name, None)
        ]
        self._surface.note(
            f"{ids.iso(int(record.created * 1_000_000))} {record.getMessage()}: {', '.join(about)}"
        )


def _opened(url: str, wanted: Wanted, common: Common) -> Limpet:
    import limpet  # noqa: PLC0415 - the package is loaded by now; this only names it

    return limpet.connect(
        url,
        tenant=common.tenant,
        memory=wanted.memory,
        model=_model(wanted),
        embedder=wanted.embeddings,
        idle_timeout_s=limits.IDLE_TIMEOUT_S if wanted.idle_s is None else wanted.idle_s,
        keep_ended_days=None if wanted.keep_s is None else wanted.keep_s / 86_400,
    )


def _model(wanted: Wanted) -> Model | None:
    if wanted.model is None:
        return None
    if wanted.provider == "anthropic":
        from limpet.llm.anthropic_model import AnthropicModel  # noqa: PLC0415 - only whoever asks one

        return AnthropicModel(wanted.model, base_url=wanted.base_url)
    from limpet.llm.openai_model import OpenAIModel  # noqa: PLC0415 - as above

    return OpenAIModel(wanted.model, base_url=wanted.base_url)


def _until_interrupted(worker: Worker, begun: Callable[[], None]) -> None:
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        begun()
        worker.run(stop)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(surface: Surface, worker: Worker, done: Done, common: Common) -> int:
    if surface.face is Face.JSON:
        tasks = [_document(one) for one in worker.status()]
        surface.document(
            {"steps": done.steps, "failures": done.failures, "held": done.held, "tasks": tasks}
        )
    elif surface.face is Face.PIPE:
        surface.row(done.steps, done.failures)
    elif done.failures:
        failed = figures.count(done.failures, "failure")
        surface.say(
            f"{surface.glyphs.bad} {failed}, {figures.count(done.steps, 'step')}. Tried again by the next worker, later."
        )
    elif not done.held:
        surface.say(
            f"{surface.glyphs.good} nothing is left to do now ({figures.count(done.steps, 'step')})."
        )
    if done.held:
        surface.note(_held(worker, done))
    late = sum(int(one.told.get(name, 0)) for one in worker.status() for name in _UNDONE)
    if late:
        command = again.command("worker", "--status", on=common.on)
        surface.note(f"{late:,} not done, tried again later or given up. How it stands: {command}")
    return exits.FAILED if done.failures else exits.DONE


def _held(worker: Worker, done: Done) -> str:
    """Say who has the work that was left."""
    others = {one.holder: one.until_us for one in worker.status() if one.holder}
    by = ", ".join(f"{who} until {ids.iso(until or 0)}" for who, until in sorted(others.items()))
    told = figures.count(done.held, "task")
    return (
        f"{told} left ({figures.count(done.steps, 'step')} done): held by {by or 'another worker'}."
    )


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
            Text(visible.line(", ".join(filter(None, (one.error, *_stand(one)))))),
        ]
        for one in found
    ]
    surface.listed(["TENANT", "TASK", "WORKED ON BY", ">FAILED", "HOW IT STANDS"], rows)


def _stand(one: TaskStatus) -> Iterator[str]:
    """Yield what a task tells of itself as people say it: how far behind, what waits, what was given up."""
    told = dict(one.told)
    told.pop("cursor", None)
    lag = told.pop("lag", None)
    if isinstance(lag, int):
        yield f"{figures.count(lag, 'event')} behind" if lag else "up to date"
    told["given up"] = told.pop("dead", 0)
    for name, value in told.items():
        if value:
            yield f"{value:,} {name}" if isinstance(value, int) else f"{name} {value}"


def _told(one: TaskStatus) -> str:
    return ", ".join(f"{name} {value}" for name, value in one.told.items())
