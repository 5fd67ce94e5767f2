"""Commands for a whole store: status, verify, rebuild, backup, restore, migrate, retention.

Also `limpet version`.
"""

from __future__ import annotations

import contextlib
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from limpet import errors
from limpet.cli import confirm, exit_codes, formatting, hints, target
from limpet.cli.options import CommonOptions, OutputOptions
from limpet.cli.output import Output, OutputMode, Symbols
from limpet.core.values.frame_state import SuspensionStatus
from limpet.core.values.validation import Json
from limpet.stores import urls
from limpet.stores.port import Report
from limpet.wiring import Limpet, store_opener

if TYPE_CHECKING:
    from limpet.admin.migrate import Migrated
    from limpet.admin.retention import Retained


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
"""What a backend is reached with."""


def show_status(store: str | None, common: CommonOptions) -> int:
    """Print the store's facts."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common, store) as lp:
        facts = read_status(lp, common.tenant)
    if surface.mode is OutputMode.JSON:
        surface.print_json(facts)
    elif surface.mode is OutputMode.PIPE:
        for name, value in _flat_status(facts):
            surface.print_row(name, value)
    else:
        surface.print_facts(status_lines(facts, surface.symbols))
        for note in facts.get("notes", ()):
            surface.console.print(f"{surface.symbols.warn} {note}", style="yellow")
    return exit_codes.DONE


def read_status(lp: Limpet, tenant: str = "default") -> dict[str, Json]:
    """Return the store's facts, how many frames of a tenant are open, and who reads them."""
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
    from importlib import metadata  # noqa: PLC0415 - slow to import

    found: dict[str, str] = {}
    for name in _BACKEND_LIBRARIES.get(backend, ()):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _reader_lag(lp: Limpet) -> dict[str, Json]:
    """Return how far archive and memory of a tenant are behind its log; nothing if nobody has begun either.

    None for an archive that can't be read now.
    """
    archive: int | None = None
    with contextlib.suppress(errors.Corrupt, errors.Unavailable):
        if not lp.archive.size():
            return {}
        archive = lp.archive.behind()
    queue = lp.memory.queue()
    dead = sum(one.dead for one in queue)
    return {"archive": archive, "memory": lp.memory.behind(), "waiting": len(queue) - dead, "given_up": dead}


def _flat_status(facts: Mapping[str, Json], above: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat_status(cast("dict[str, Json]", value), f"{above}{name}.")
        elif isinstance(value, list):
            for item in cast("list[Json]", value):
                yield above + name, item
        else:
            yield above + name, value


def status_lines(facts: Mapping[str, Json], glyphs: Symbols) -> list[tuple[str, str]]:
    """Return what a person wants to know first, as names and values."""
    dot, cut = glyphs.dot, glyphs.cut
    heads: Mapping[str, Mapping[str, Json]] = facts.get("heads", {})
    product = facts.get("product", facts.get("backend"))
    level = _DURABILITY_TEXTS.get(str(facts.get("durability")), "?")
    versions = [f"limpet {facts.get('limpet')}", *_library_versions(facts)]
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
    """Return the version of what keeps the store: of a library, or of the server."""
    return str(facts.get("version", facts.get(str(facts.get("backend")), "")))


def _size_facts(facts: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    if "bytes" in facts:
        free = f", {formatting.byte_size(facts['bytes_free'])} free" if "bytes_free" in facts else ""
        yield "size", f"{formatting.byte_size(facts['bytes'])}{free}"


def _durability_settings(facts: Mapping[str, Json]) -> Iterator[str]:
    """Yield the settings on which durability rests: those of SQLite in words, those of a server by name."""
    if facts.get("backend") == "files":
        yield "each line of the journal synced and checksummed"
    elif "journal_mode" in facts:
        yield str(facts["journal_mode"]).upper()
        synchronous = {2: "FULL", 3: "EXTRA"}.get(facts.get("synchronous", 0), "not FULL")
        yield f"synchronous {synchronous}"
        yield "page checksums" if facts.get("page_checksums") else "no page checksums"
    yield from (f"{name} {facts[name]}" for name in _SERVER_SETTINGS if name in facts)


def _library_versions(facts: Mapping[str, Json]) -> Iterator[str]:
    for name, version in cast("dict[str, str]", facts.get("libraries", {})).items():
        yield f"{name} {version}"


def _holdings_text(facts: Mapping[str, Json], dot: str) -> str:
    held: Mapping[str, Mapping[str, int]] = facts.get("holds", {})
    sessions = held.get("session", {})
    told = [f"{formatting.quantity(sum(sessions.values()), 'session')} ({sessions.get('active', 0):,} active)"]
    if "tree" in held:
        for tenant, count in cast("dict[str, int]", facts.get("open_frames", {})).items():
            whose = "" if list(facts.get("heads", {})) == [tenant] else f" of {tenant}"
            told.append(f"{formatting.quantity(count, 'open frame')}{whose}")
        asked = held.get("suspension", {}).get(SuspensionStatus.WAITING, 0)
        told.append(f"{formatting.quantity(asked, 'approval')} waiting")
    return f" {dot} ".join(told)


def _session_file_facts(facts: Mapping[str, Json], dot: str) -> Iterator[tuple[str, str]]:
    match facts.get("session_files"):
        case {"files": int(files), "lagging": int(lagging), "edited": int(edited)}:
            told = [formatting.quantity(files, "session file")]
            told += [f"{lagging:,} behind the log"] if lagging else []
            told += [f"{edited:,} changed by hand, or damaged"] if edited else []
            others = int(facts["session_files"].get("others", 0))
            told += [f"{others:,} beside them that Limpet did not write"] if others else []
            yield "files", f" {dot} ".join(told)
        case _:
            return


def _lag_facts(facts: Mapping[str, Json], dot: str) -> Iterator[tuple[str, str]]:
    for tenant, late in cast("dict[str, dict[str, int | None]]", facts.get("behind", {})).items():
        whose = "" if list(facts.get("heads", {})) == [tenant] else f" of {tenant}"
        archive, waiting, dead = late["archive"], late["waiting"] or 0, late["given_up"] or 0
        told = [
            "archive can't be read now" if archive is None else f"archive {formatting.quantity(archive, 'event')}",
            f"memory {formatting.quantity(late['memory'] or 0, 'event')}",
        ]
        if waiting:
            told.append(f"{formatting.quantity(waiting, 'conversation')} waiting")
        if dead:
            told.append(f"{formatting.quantity(dead, 'conversation')} given up")
        late_at_all = archive is None or any(late.values())
        yield f"behind{whose}", f" {dot} ".join(told) if late_at_all else "nothing"


def _log_text(facts: Mapping[str, Json], heads: Mapping[str, Mapping[str, Json]], cut: str) -> str:
    events = formatting.quantity(facts.get("events", 0), "event")
    if len(heads) != 1:
        return f"{events} of {formatting.quantity(len(heads), 'tenant')}"
    link = str(next(iter(heads.values())).get("link", ""))
    return f"{events}, chain head {link[:4]}{cut}{link[-4:]}"


def verify_store(store: str | None, common: CommonOptions) -> int:
    """Check every event and page; change nothing."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    url = target.resolve_store(target.given_store(store, common))
    started = time.monotonic()
    report = _verification_report(url, surface, common.tenant)
    seconds = time.monotonic() - started
    if surface.mode is OutputMode.JSON:
        surface.print_json(
            {
                "store": urls.without_password(url),
                "ok": report.ok,
                "events": report.events,
                "tenants": report.tenants,
                "faults": list(report.faults),
                "notes": list(report.notes),
                "seconds": round(seconds, 3),
            }
        )
    elif surface.mode is OutputMode.PIPE:
        surface.print_row(
            "ok" if report.ok else "damage", report.events, len(report.faults), urls.without_password(url)
        )
        for fault in report.faults:
            surface.print_row("fault", fault)
        for note in report.notes:
            surface.print_row("note", note)
    else:
        _print_verification(surface, report, url, seconds)
    if not report.ok:
        _print_repair_hints(surface, url)
    return exit_codes.DONE if report.ok else exit_codes.DAMAGE


def _verification_report(url: str, surface: Output, tenant: str) -> Report:
    """Return the report; a store too damaged to open or to read through is a report as well."""
    seen = 0
    try:
        with _connected_store(url, tenant) as lp, surface.progress("reading events") as bar:

            def told(done: int, total: int) -> None:
                nonlocal seen
                seen = done
                bar(done, total)

            return lp.admin.verify(told)
    except errors.Corrupt as damage:
        return Report(seen, 0, (damage.message,))


@contextlib.contextmanager
def _connected_store(url: str, tenant: str) -> Iterator[target.Limpet]:
    lp = target.connect(url, tenant=tenant)
    try:
        yield lp
    finally:
        lp.close()


def _print_verification(surface: Output, report: Report, url: str, seconds: float) -> None:
    glyphs, events = surface.symbols, formatting.quantity(report.events, "event")
    if report.ok:
        surface.console.print(f"{glyphs.good} whole", style="bold green", end="")
        what = ", every link and blob"
        if store_opener.is_files_store(url):
            what = ", every line of the journal and the index"
        elif target.store_file(url):
            what = ", every page and the anchor"
        surface.console.print(f"   {events}{what} are as they were written ({seconds:.1f} s)")
    else:
        surface.console.print(f"{glyphs.bad} damage", style="bold red", end="")
        surface.console.print(f"   {formatting.quantity(len(report.faults), 'fault')} in {urls.without_password(url)}")
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
            "Nothing was changed. Put what is damaged of journal and blobs back from git or a backup.",
            f"If only the index is damaged, this makes it again: {hints.command_line('rebuild', named=url)}",
            f"If only the journal is, this saves what the index has: {saved}",
        ]
    elif target.store_file(url):
        put_back = hints.command_line("restore", "BACKUP", shown)
        told = [
            f"Nothing was changed. Keep {shown} and its -wal and -anchor files: move them away together,",
            f"and put an earlier backup in their place: {put_back}",
        ]
    else:
        told = [
            "Nothing was changed. Keep the data as it is, and restore an earlier backup into a new",
            f"store: {hints.command_line('restore', 'BACKUP', 'URL')}",
        ]
    for line in told[:-1]:
        surface.note(line)
    surface.note(f"{told[-1]}  (exit {exit_codes.DAMAGE})")


def rebuild_store(store: str | None, common: CommonOptions, *, accept_loss: bool, give_up_copy: bool) -> int:
    """Make it all again, whole or not at all."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    url = target.store_name(target.given_store(store, common))
    started = time.monotonic()

    def opener(url: str) -> Limpet:
        if give_up_copy:
            _give_up_copy(surface, url, common.tenant)
        return _connect_accepting_loss(url, common.tenant, surface if accept_loss else None)

    with target.open_store(common, store, opener=opener) as lp, surface.progress("going through events") as bar:
        made = lp.admin.rebuild(bar)
    seconds = time.monotonic() - started
    if surface.mode is OutputMode.JSON:
        document = {"store": url, **msgspec.structs.asdict(made), "seconds": round(seconds, 3)}
        surface.print_json(document)
    elif surface.mode is OutputMode.PIPE:
        surface.print_row(made.events, made.projections, made.claims, url)
    else:
        surface.console.print(f"{surface.symbols.good} made again", style="bold green", end="")
        surface.console.print(
            f"   {formatting.quantity(made.projections, 'row')} and {formatting.quantity(made.claims, 'claim')}"
            f" from {formatting.quantity(made.events, 'event')} ({seconds:.1f} s)"
        )
    surface.note(
        f"Check it with: {hints.command_line('verify', on=hints.store_options(store or common.url, common.tenant))}"
    )
    return exit_codes.DONE


def _give_up_copy(surface: Output, url: str, tenant: str) -> None:
    """Open tenants with what came of a copy."""
    from limpet.wiring import backup_restore  # noqa: PLC0415 - only whoever gives one up pays for it

    with surface.progress("proving what has come") as bar:
        for opened in backup_restore.abandon_copy(url, (tenant,), bar):
            surface.note(f"Tenant {opened} can be used, with what has come of it.")


def _connect_accepting_loss(url: str, tenant: str, told: Output | None) -> Limpet:
    """Open a store. Who is told of the loss accepts it: a journal whose index knows of more is taken as it is."""
    try:
        return target.connect(url, tenant=tenant, writes=True)
    except errors.Corrupt as error:
        if told is None or error.facts.get("journal") != "cut off" or not store_opener.accept_journal(url):
            raise
        told.note(f"Accepted: {error.message}")
    return target.connect(url, tenant=tenant, writes=True)


def backup_store(copy: str, common: CommonOptions) -> int:
    """Copy the store to a file that does not exist yet."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    url = target.store_name(common.url)
    if not copy:
        raise exit_codes.CommandFailure(_empty_target_problem())
    if (there := urls.local_path(copy)).exists():
        raise exit_codes.CommandFailure(_backup_exists_problem(there, common))
    started = time.monotonic()
    with surface.hint_on_interrupt(), target.open_store(common) as lp, surface.progress("copying pages") as bar:
        made = lp.admin.backup(copy, bar)
    seconds, size = time.monotonic() - started, made.stat().st_size
    if surface.mode is OutputMode.JSON:
        surface.print_json({"store": url, "target": copy, "bytes": size, "seconds": round(seconds, 3)})
    elif surface.mode is OutputMode.PIPE:
        surface.print_row(copy, size)
    else:
        surface.console.print(f"{surface.symbols.good} {copy}", style="bold green", end="")
        surface.console.print(f"   {formatting.byte_size(size)}, copied from {url} in {seconds:.1f} s")
    surface.note(f"Check it with: {hints.command_line('verify', named=copy)}")
    return exit_codes.DONE


def _empty_target_problem() -> exit_codes.CommandProblem:
    return exit_codes.CommandProblem(
        exit_codes.USAGE, "usage", "the name of the backup is empty.", "Nothing was done.", "Name a new file."
    )  # fmt: skip


def _backup_exists_problem(path: Path, common: CommonOptions) -> exit_codes.CommandProblem:
    kind = "folder" if path.is_dir() else "file"
    held = "" if path.is_dir() else f" of {formatting.byte_size(path.stat().st_size)}"
    return exit_codes.CommandProblem(
        exit_codes.UNSAFE,
        "target_exists",
        f"{path} exists already.",
        f"It is a {kind}{held}, and a backup never overwrites.",
        hints.command_line("backup", named=str(target.free_path_beside(path)), on=common.store_options),
    )


def show_versions(printing: OutputOptions) -> int:
    """Print the versions that matter to a report."""
    import limpet  # noqa: PLC0415 - the package is still loading when this module is

    surface = Output(as_json=printing.json, quiet=printing.quiet)
    found = {"limpet": limpet.__version__, "python": platform.python_version(), "apsw": metadata.version("apsw")}
    if surface.mode is OutputMode.JSON:
        surface.print_json(found)
    else:
        for name, value in found.items():
            print(f"{name} {value}")
    return exit_codes.DONE


_SESSIONS_SHOWN = 20
"""Sessions that a terminal names for each list."""


@dataclass(frozen=True, kw_only=True)
class RetentionCommandOptions:
    """For how long, and how."""

    keep: str
    dry_run: bool = False
    memory: bool = True
    yes: bool = False


def apply_retention(wanted: RetentionCommandOptions, common: CommonOptions) -> int:
    """Say what would go; if it is to, ask, and let it go."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    days = (formatting.parse_duration("--keep", wanted.keep, formatting.DURATION_EXAMPLES) or 0.0) / 86_400
    with target.open_store(common, opener=lambda url: _open_for_retention(url, wanted, common)) as lp:
        told = lp.admin.retention(days, dry_run=True)
        if not wanted.dry_run and told.gone:
            count = formatting.quantity(len(told.gone), "session")
            question = f"erase {count} in {target.store_name(common.url)}, for good?"
            confirm.require_confirmation(surface, question, yes=wanted.yes)
            told = lp.admin.retention(days)
    _print_retention(surface, told)
    if told.dry_run and told.gone:
        command = hints.command_line("retention", *hints.option_words("--keep", wanted.keep), on=common.store_options)
        surface.note(f"Nothing was changed. To let them go: {command}")
    return exit_codes.DONE


def _open_for_retention(url: str, wanted: RetentionCommandOptions, common: CommonOptions) -> Limpet:
    import limpet  # noqa: PLC0415 - the package is loaded by now; this only names it

    return limpet.connect(url, tenant=common.tenant, memory=wanted.memory)


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
        surface.note(f"{formatting.quantity(len(told.gone), 'session')} {word}, {sum(told.stays.values()):,} stay.")
        return
    from limpet.admin.retention import KEEP_REASON_TEXTS, KeepReason  # noqa: PLC0415 - only a terminal shows them

    surface.print_sentence(f"{surface.symbols.good} {formatting.quantity(len(told.gone), 'session')} {word}")
    for session_id in told.gone[:_SESSIONS_SHOWN]:
        surface.print_sentence(f"  {surface.symbols.dot} {session_id}")
    for why, count in told.stays.items():
        surface.print_sentence(f"{formatting.quantity(count, 'session')} stay: {KEEP_REASON_TEXTS[KeepReason(why)]}")
        named = [kept for kept in told.kept if kept.why == why]
        for kept in named[:_SESSIONS_SHOWN]:
            because = f" ({kept.other})" if kept.other else ""
            surface.print_sentence(f"  {surface.symbols.dot} {kept.session_id}{because}")


def migrate_store(source: str, goal: str, printing: OutputOptions, *, verify: bool) -> int:
    """Copy a store into another; exit 5 if the source has grown since."""
    surface = Output(as_json=printing.json, quiet=printing.quiet)
    common = CommonOptions(json=printing.json, quiet=printing.quiet, url=source)
    started = time.monotonic()
    with (
        surface.hint_on_interrupt(),
        target.open_store(common) as lp,
        surface.progress("copying and checking events") as bar,
        _explain_interrupted_copy("migrate", source, goal),
    ):
        moved = lp.admin.migrate(_checked_target(goal), verify=verify, progress=bar)
    _print_copy_result(surface, ("moved", source, goal), moved, time.monotonic() - started)
    if not moved.behind:
        surface.note(f"See what it holds: {hints.command_line('status', named=goal)}")
        return exit_codes.DONE
    late = formatting.quantity(sum(moved.behind.values()), "event")
    surface.note(f"{urls.without_password(source)} has got {late} since. Stop who writes there, then repeat:")
    surface.note(f"{hints.command_line('migrate', goal, named=source)}  (exit {exit_codes.CONFLICT})")
    return exit_codes.CONFLICT


def restore_backup(backup: str, goal: str, printing: OutputOptions, *, verify: bool) -> int:
    """Put a backup into an empty store."""
    from limpet.wiring import backup_restore  # noqa: PLC0415 - only whoever restores pays for it

    surface = Output(as_json=printing.json, quiet=printing.quiet)
    started = time.monotonic()
    target.require_store(backup)
    with (
        surface.hint_on_interrupt(),
        _explain_interrupted_copy("restore", backup, goal),
        surface.progress("copying and checking") as bar,
    ):
        moved = backup_restore.restore(backup, _checked_target(goal), bar, verify=verify)
    _print_copy_result(surface, ("restored", backup, goal), moved, time.monotonic() - started)
    surface.note(f"See what it holds: {hints.command_line('status', named=goal)}")
    return exit_codes.DONE


@contextlib.contextmanager
def _explain_interrupted_copy(command: str, source: str, goal: str) -> Iterator[None]:
    """Let an error that ends a copy say what it leaves, and how to go on."""
    try:
        yield
    except errors.Unavailable as error:
        problem = exit_codes.problem_of(error)
        why = "What has come so far is kept; nobody can open the target until all of it is there."
        before = problem.next.replace("Repeat the command.", "").strip()
        then = f"{before} Run the same again, it goes on: {hints.command_line(command, goal, named=source)}"
        raise exit_codes.CommandFailure(problem._replace(why=why, next=then.lstrip(), command=())) from error
    except errors.Conflict as error:
        why = "The target is not empty: it has a log of its own. Nothing was changed."
        raise exit_codes.CommandFailure(exit_codes.problem_of(error)._replace(why=why)) from error
    except errors.Error as error:
        raise exit_codes.CommandFailure(exit_codes.problem_of(error)) from error


def _checked_target(goal: str) -> str:
    if urls.scheme_of(goal) == "volatile":
        told = "volatile: names a store in the memory of one process; nothing put there would last."
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.USAGE, "no_target", told, "Nothing was done.", "Name a file, or a server."
            )
        )
    return goal


def _print_copy_result(surface: Output, what: tuple[str, str, str], moved: Migrated, seconds: float) -> None:
    did, source, goal = (urls.without_password(each) for each in what)
    if surface.mode is OutputMode.JSON:
        document = {"source": source, "target": goal, **msgspec.to_builtins(moved)}
        surface.print_json({**document, "seconds": round(seconds, 3)})
    elif surface.mode is OutputMode.PIPE:
        surface.print_row(goal, moved.tenants, moved.events, moved.copied, sum(moved.behind.values()))
    else:
        checked = "verified" if moved.verified else "not verified"
        surface.console.print(f"{surface.symbols.good} {did}", style="bold green", end="")
        surface.console.print(
            f"   {formatting.quantity(moved.events, 'event')} of {formatting.quantity(moved.tenants, 'tenant')}"
            f" to {goal}, {checked} ({seconds:.1f} s)"
        )
