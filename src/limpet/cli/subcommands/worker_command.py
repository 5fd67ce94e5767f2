"""`limpet worker`: runs the background tasks, once or until interrupted, and shows their status."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet import limits
from limpet.cli import exit_codes, formatting, hints, output, target
from limpet.cli.options import CommonOptions
from limpet.cli.output import Output, OutputMode
from limpet.core.values import ids

if TYPE_CHECKING:
    from types import FrameType

    from limpet.core.values.validation import Json
    from limpet.jobs.worker import Done, TaskStatus, Worker
    from limpet.llm.port import Model
    from limpet.wiring import Limpet


_UNDONE_COUNTS = ("waiting", "dead")
_LOG_FIELDS = ("task", "tenant", "session", "error", "failures", "tries")


@dataclass(frozen=True, kw_only=True)
class WorkerCommandOptions:
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


def run_worker(wanted: WorkerCommandOptions, common: CommonOptions) -> int:
    """Work for every tenant of a store, or the one that is named."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common, opener=lambda url: _open_for_work(url, wanted, common)) as lp:
        worker = lp.worker(every_tenant=wanted.every_tenant)
        if wanted.status:
            _print_tasks(surface, worker.status())
            return exit_codes.DONE
        with _warnings_on_stderr(surface):
            if wanted.once:
                return _print_result(surface, worker, worker.run_once(), common)
            begun = f"{worker.holder} works on {target.store_name(common.url)}; ^C ends it."
            _run_until_interrupted(worker, lambda: surface.note(begun))
        surface.note("Stopped. What is left is taken up by the next one.")
    return exit_codes.DONE


@contextlib.contextmanager
def _warnings_on_stderr(surface: Output) -> Iterator[None]:
    """Say what is logged meanwhile, with what it is about: it is tried again, and nobody else hears of it."""
    logger, handler = logging.getLogger("limpet"), _WarningHandler(surface)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _WarningHandler(logging.Handler):
    def __init__(self, surface: Output) -> None:
        super().__init__(logging.WARNING)
        self._surface = surface

    def emit(self, record: logging.LogRecord) -> None:
        about = [f"{name} {getattr(record, name)}" for name in _LOG_FIELDS if getattr(record, name, None)]
        self._surface.note(f"{ids.iso(int(record.created * 1_000_000))} {record.getMessage()}: {', '.join(about)}")


def _open_for_work(url: str, wanted: WorkerCommandOptions, common: CommonOptions) -> Limpet:
    import limpet  # noqa: PLC0415 - the package is loaded by now; this only names it

    return limpet.connect(
        url,
        tenant=common.tenant,
        memory=wanted.memory,
        model=_language_model(wanted),
        embedder=wanted.embeddings,
        idle_timeout_s=limits.IDLE_TIMEOUT_S if wanted.idle_s is None else wanted.idle_s,
        keep_ended_days=None if wanted.keep_s is None else wanted.keep_s / 86_400,
    )


def _language_model(wanted: WorkerCommandOptions) -> Model | None:
    if wanted.model is None:
        return None
    if wanted.provider == "anthropic":
        from limpet.llm.models import AnthropicModel  # noqa: PLC0415 - only whoever asks one

        return AnthropicModel(wanted.model, base_url=wanted.base_url)
    from limpet.llm.models import OpenAIModel  # noqa: PLC0415 - as above

    return OpenAIModel(wanted.model, base_url=wanted.base_url)


def _run_until_interrupted(worker: Worker, begun: Callable[[], None]) -> None:
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


def _print_result(surface: Output, worker: Worker, done: Done, common: CommonOptions) -> int:
    if surface.mode is OutputMode.JSON:
        tasks = [_task_document(one) for one in worker.status()]
        surface.print_json({"steps": done.steps, "failures": done.failures, "held": done.held, "tasks": tasks})
    elif surface.mode is OutputMode.PIPE:
        surface.print_row(done.steps, done.failures)
    elif done.failures:
        failed = formatting.quantity(done.failures, "failure")
        surface.print_sentence(
            f"{surface.symbols.bad} {failed}, {formatting.quantity(done.steps, 'step')}. Tried again by the next worker, later."
        )
    elif not done.held:
        surface.print_sentence(
            f"{surface.symbols.good} nothing is left to do now ({formatting.quantity(done.steps, 'step')})."
        )
    if done.held:
        surface.note(_held_text(worker, done))
    late = sum(int(one.told.get(name, 0)) for one in worker.status() for name in _UNDONE_COUNTS)
    if late:
        command = hints.command_line("worker", "--status", on=common.store_options)
        surface.note(f"{late:,} not done, tried again later or given up. How it stands: {command}")
    return exit_codes.FAILED if done.failures else exit_codes.DONE


def _held_text(worker: Worker, done: Done) -> str:
    """Say who has the work that was left."""
    others = {one.holder: one.until_us for one in worker.status() if one.holder}
    by = ", ".join(f"{who} until {ids.iso(until or 0)}" for who, until in sorted(others.items()))
    told = formatting.quantity(done.held, "task")
    return f"{told} left ({formatting.quantity(done.steps, 'step')} done): held by {by or 'another worker'}."


def _task_document(one: TaskStatus) -> dict[str, Json]:
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


def _print_tasks(surface: Output, found: Sequence[TaskStatus]) -> None:
    if surface.mode is OutputMode.JSON:
        surface.print_json({"tasks": [_task_document(one) for one in found]})
        return
    if surface.mode is OutputMode.PIPE:
        for one in found:
            surface.print_row(one.tenant, one.task, one.holder, one.failures, one.error, _task_counters(one))
        return
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    rows = [
        [
            Text(output.escape_line(one.tenant), style="cyan"),
            Text(one.task),
            Text(one.holder or "nobody"),
            Text(f"{one.failures}", style="red" if one.failures else ""),
            Text(output.escape_line(", ".join(filter(None, (one.error, *_task_state_parts(one)))))),
        ]
        for one in found
    ]
    surface.print_table(["TENANT", "TASK", "WORKED ON BY", ">FAILED", "HOW IT STANDS"], rows)


def _task_state_parts(one: TaskStatus) -> Iterator[str]:
    """Yield what a task tells of itself as people say it: how far behind, what waits, what was given up."""
    told = dict(one.told)
    told.pop("cursor", None)
    lag = told.pop("lag", None)
    if isinstance(lag, int):
        yield f"{formatting.quantity(lag, 'event')} behind" if lag else "up to date"
    told["given up"] = told.pop("dead", 0)
    for name, value in told.items():
        if value:
            yield f"{value:,} {name}" if isinstance(value, int) else f"{name} {value}"


def _task_counters(one: TaskStatus) -> str:
    return ", ".join(f"{name} {value}" for name, value in one.told.items())
