"""`limpet export`, `import`, `backup`, `restore` and `migrate`: sessions in files, and copies of a store.

If several files are imported, a file that can't be imported is skipped and reported. If only one file is
imported, its error ends the command.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from cyclopts import Parameter

from limpet import errors
from limpet.admin.export import Exported
from limpet.cli import exit_codes, hints, output, target
from limpet.cli.options import CommonOptions, NoVerify, OutputOptions, Switch
from limpet.cli.output import Output, OutputMode
from limpet.core.values.validation import checked_id
from limpet.stores import urls

if TYPE_CHECKING:
    from limpet.admin.import_ import Imported
    from limpet.admin.migrate import Migrated
    from limpet.core.values.validation import Json
    from limpet.wiring import Limpet


STDOUT: Final = "-"
CopyTarget = Annotated[str, Parameter(name="TARGET")]


@dataclass(frozen=True, kw_only=True)
class ExportOptions(CommonOptions):
    """Which sessions to export, and to which file."""

    output: Annotated[str, Parameter(name=["--output", "-o"], allow_leading_hyphen=True)]
    """The new file; an existing file is never overwritten. - is stdout."""
    user: str | None = None
    """All sessions of this user."""


def export_sessions(session: str | None = None, /, *, wanted: ExportOptions) -> None:
    """Write sessions to one file (JSON Lines): one conversation, all sessions of a user, or all sessions.

    `limpet import` restores them unchanged: ids, times, tool calls, images, forks, summaries.

    Example: limpet export --user ada -o ada.jsonl

    Args:
        session: Its id, a prefix of it, @last, or @last~2. Its continuations are exported with it.
    """
    surface, file, user = Output(wanted), wanted.output, wanted.user
    _check_export(session, wanted)
    started = time.monotonic()
    with target.open_store(wanted) as lp:
        chosen = target.find_session(lp, session).id if session is not None else None
        if user is not None and not lp.sessions.list_sessions(1, user_id=user):
            # The name may be a typo, so no file is created.
            if surface.mode is OutputMode.JSON:
                _print_export(surface, None, Exported(0, 0, 0, 0, ""), 0)
            known = hints.command_line("sessions list", on=wanted.store_options)
            surface.note(
                f"Nothing was written: the store has no session of {user!r}. To list all users' sessions: {known}"
            )
            return
        with surface.progress("writing events") as bar:
            place = sys.stdout.buffer if file == STDOUT else file
            made = lp.admin.export(place, session_id=chosen, user_id=user, progress=bar)
    if file != STDOUT:
        _print_export(surface, file, made, time.monotonic() - started)
    surface.note(
        f"{output.quantity(made.sessions, 'session')}, {output.quantity(made.messages, 'message')}."
        " Frames and suspensions are not exported."
    )


def _print_export(surface: Output, file: str | None, made: Exported, seconds: float) -> None:
    document: Json = {
        "file": file, "sessions": made.sessions, "events": made.events, "messages": made.messages,
        "bytes": made.bytes, "sha256": made.sha256 or None, "seconds": round(seconds, 3),
    }  # fmt: skip
    if not surface.print_data(document, [(file, made.sessions, made.events, made.messages, made.bytes)]):
        told = f"{output.byte_size(made.bytes)}, {output.quantity(made.events, 'event')} in {seconds:.1f} s"
        surface.print_outcome(f"{surface.symbols.good} {file}", told)


def _check_export(session: str | None, wanted: ExportOptions) -> None:
    file, nothing = wanted.output, "Nothing was written."
    if session is not None and wanted.user is not None:
        what, then = "a session and --user are both given.", "Give a session or --user."
        raise exit_codes.usage_failure(what, then, nothing)
    to_file = "-o trip.jsonl, or a pipe: -o - | gzip"
    if not file:
        raise exit_codes.usage_failure("-o names no file.", to_file, nothing)
    if file == STDOUT:
        if wanted.json:
            raise exit_codes.usage_failure(
                "--json and -o - would both write to stdout.", "Give only one of them.", nothing
            )
        if sys.stdout.isatty():
            told = "The file would go to a terminal, which executes control sequences in stored text."
            raise exit_codes.usage_failure(told, to_file, nothing)
    elif Path(file).exists():
        given = [("--user", wanted.user), ("-o", target.free_path_beside(Path(file)))]
        raise exit_codes.failure(
            exit_codes.UNSAFE,
            "target_exists",
            f"{file} exists already.",
            "An export never overwrites. Nothing was written.",
            hints.command_line("export", *hints.given_options(given), named=session or "", on=wanted.store_options),
        )


NOTES_SHOWN = 10
"""The number of notes and of skipped sessions that a terminal shows for one file."""

_FILE_ERRORS: Final = (
    errors.DamagedFile, errors.DuplicateSession, errors.InvalidMessage, errors.InvalidRequest, errors.NewerStore,
    errors.PairingError,
)  # fmt: skip
"""Errors of one file. Any other error would occur with the next file too."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions(CommonOptions):
    """How to import files."""

    format: Literal["auto", "limpet", "penguin", "openai"] = "auto"
    """The format of the files."""
    user: str | None = None
    """The user of the imported sessions; else the user that the file names."""
    rename: Annotated[str, Parameter(allow_leading_hyphen=True, show_default=False)] = ""
    """A suffix for each session's id, for example -copy."""
    dry_run: Switch = False
    """Only check the files, and print what would be imported."""


def import_files(*files: str, wanted: ImportOptions = ImportOptions()) -> int:
    """Import sessions from files. Sessions that the store already has are not changed. Repeat it after an interruption.

    A file of `limpet export` is checked completely before anything is written. Also reads OpenAI chats (JSON, or JSONL
    with one chat or one message a line), and session files of Penguin or folders of them.
    A store that is named and does not exist is created.

    Example: limpet import ada.jsonl --url state.db --dry-run

    Args:
        files: The files, or folders of Penguin session files.
    """
    if not files:
        raise exit_codes.usage_failure("no file was named.", "limpet import --help")
    surface = Output(wanted)
    for name in files:
        _check_file(name, alone=len(files) == 1)
    if wanted.user is not None:
        # Checked here, or the error would be reported for each file.
        checked_id("a user's id", wanted.user)
    started = time.monotonic()
    made = _trial_import(surface, files, wanted)
    if made:
        for name, report in made if surface.mode is not OutputMode.JSON else ():
            _print_import(surface, name, report)
    else:
        made = _import_all(surface, files, wanted)
    if surface.mode is OutputMode.JSON:
        seconds = round(time.monotonic() - started, 3)
        surface.print_json(_import_document(target.store_name(wanted.url), made, wanted, seconds))
    if wanted.dry_run:
        surface.note("Nothing was written (--dry-run).")
    left_out = sum(_is_skipped(report) for _, report in made)
    if left_out:
        surface.note(f"{left_out:,} of {output.quantity(len(made), 'file')} skipped.")
    return exit_codes.FAILED if left_out else exit_codes.DONE


def _import_all(surface: Output, files: Sequence[str], wanted: ImportOptions) -> list[tuple[str, Imported]]:
    made: list[tuple[str, Imported]] = []
    with target.open_store(wanted, create=not wanted.dry_run, writes=not wanted.dry_run) as lp:
        for name, report in _import_each(surface, lp, files, wanted):
            made.append((name, report))
            if surface.mode is not OutputMode.JSON:
                _print_import(surface, name, report)
    return made


def _import_each(
    surface: Output, lp: Limpet, files: Sequence[str], wanted: ImportOptions
) -> Iterator[tuple[str, Imported]]:
    for name in files:
        with surface.progress(f"reading {Path(name).name}") as bar:
            report = _import_file(lp, name, wanted, bar, alone=len(files) == 1)
        yield name, report


def _import_file(
    lp: Limpet, name: str, wanted: ImportOptions, progress: Callable[[int, int], None], *, alone: bool
) -> Imported:
    """Import a file. A file that can't be imported is skipped with its reason; if `alone`, it raises its error."""
    try:
        return lp.admin.import_(
            name,
            format=wanted.format,
            user_id=wanted.user,
            rename=wanted.rename,
            dry_run=wanted.dry_run,
            progress=progress,
        )
    except (errors.Refused, errors.Conflict) as error:
        if alone:
            problem = exit_codes.problem_of(error)
            named = problem.what if name in problem.what else f"{name}: {problem.what}"
            raise exit_codes.CommandFailure(problem._replace(what=named)) from error
        if not isinstance(error, _FILE_ERRORS):
            raise
        return _skipped_file(name, error.message, wanted)
    except OSError as error:
        # An error of another file or of the disk does not concern only this file.
        if alone or error.filename is None or Path(error.filename) != Path(name):
            raise
        return _skipped_file(name, f"it can't be read: {error.strerror}.", wanted)


def _skipped_file(name: str, reason: str, wanted: ImportOptions) -> Imported:
    from limpet.admin.foreign_files import SkippedSource  # noqa: PLC0415 - as below
    from limpet.admin.import_ import Imported  # noqa: PLC0415 - as below

    kind = "unknown" if wanted.format == "auto" else wanted.format
    return Imported(kind, 0, 0, 0, (SkippedSource(name, reason),), dry_run=wanted.dry_run)


def _import_document(store: str, made: Sequence[tuple[str, Imported]], wanted: ImportOptions, seconds: float) -> Json:
    return {
        "store": store,
        "dry_run": wanted.dry_run,
        "sessions": sum(report.sessions for _, report in made),
        "messages": sum(report.messages for _, report in made),
        "already": sum(report.already for _, report in made),
        "skipped": sum(len(report.skipped) for _, report in made),
        "files": [
            {
                "file": name,
                "format": report.format,
                "sessions": report.sessions,
                "messages": report.messages,
                "already": report.already,
                "skipped": [{"source": one.source, "reason": one.reason} for one in report.skipped],
                "notes": list(report.notes),
                "more_notes": report.more_notes,
            }
            for name, report in made
        ],
        "seconds": seconds,
    }


def _print_import(surface: Output, name: str, report: Imported) -> None:
    if surface.mode is OutputMode.PIPE:
        skipped = len(report.skipped)
        surface.print_row(name, report.format, report.sessions, report.messages, report.already, skipped)
        for one in report.skipped:
            surface.print_row("skipped", one.source, one.reason)
        for note in report.notes:
            surface.print_row("note", note)
        return
    glyphs = surface.symbols
    mark, style = (glyphs.warn, "bold yellow") if report.skipped else (glyphs.good, "bold green")
    surface.print_head((f"{mark} {name}", style), f"   {_import_counts(report)}")
    for one in report.skipped[:NOTES_SHOWN]:
        why = one.reason if one.source in one.reason else f"{one.source}: {one.reason}"
        surface.print_facts([(f"  {glyphs.dot} skipped", why)])
    for note in report.notes[:NOTES_SHOWN]:
        surface.print_facts([(f"  {glyphs.dot} note", note)])
    beyond = max(0, len(report.skipped) - NOTES_SHOWN) + max(0, len(report.notes) - NOTES_SHOWN)
    if beyond + report.more_notes:
        surface.note(f"{beyond + report.more_notes:,} more: use --json to show all.")


def _import_counts(report: Imported) -> str:
    told = [
        f"{output.quantity(report.sessions, 'session')} with {output.quantity(report.messages, 'message')}"
        + (" would be imported" if report.dry_run else " imported")
    ]
    if report.already:
        told.append(f"{report.already:,} already there")
    if report.skipped:
        told.append(f"{len(report.skipped):,} skipped")
    return f"{', '.join(told)} ({report.format})"


def _check_file(name: str, *, alone: bool) -> None:
    """Raise CommandFailure for a name that is not a file, before a store is created. Only a single file must exist."""
    path, nothing = Path(name), "Nothing was written."
    if not name:
        raise exit_codes.usage_failure("a file's name is empty.", "Name a file.", nothing)
    if (name == "-" and not path.exists()) or (path.exists() and not path.is_file() and not path.is_dir()):
        told = f"{name} is not a file on a disk, and an import reads its file more than once."
        raise exit_codes.usage_failure(told, "Save the pipe to a file and import that file.", nothing)
    if alone and not path.exists():
        raise exit_codes.failure(
            exit_codes.NOT_FOUND, "no_file", f"there is no file {name}.", nothing, "Check the path."
        )


def _trial_import(surface: Output, files: Sequence[str], wanted: ImportOptions) -> list[tuple[str, Imported]]:
    """If the store does not exist, import the files into a volatile store first.

    Return the reports if no real import follows: for a dry run, or if no file can be imported. No store is created then.
    """
    try:
        target.require_store(target.resolve_store(wanted.url))
    except exit_codes.CommandFailure as failure:
        if failure.problem.code != target.NO_STORE_CODE:
            raise
        from limpet import wiring  # noqa: PLC0415 - only an import into a new store needs it

        with wiring.connect("volatile:") as nowhere:
            found = list(_import_each(surface, nowhere, files, replace(wanted, dry_run=True)))
        if wanted.dry_run:
            return found
        if all(_is_skipped(report) for _, report in found):
            return [(name, msgspec.structs.replace(one, dry_run=False)) for name, one in found]
    return []


def _is_skipped(report: Imported) -> bool:
    """Whether nothing of a file was imported or is already in the store."""
    return bool(report.skipped) and not report.sessions + report.already


def backup_store(copy: CopyTarget, /, *, common: CommonOptions = CommonOptions()) -> None:
    """Copy the store to a new file. The copy is consistent even while other processes write.

    Example: limpet backup monday.db --url state.db

    Args:
        copy: The new file. An existing file is never overwritten.
    """
    surface = Output(common)
    url = target.store_name(common.url)
    if not copy:
        raise exit_codes.usage_failure("the name of the backup is empty.", "Name a new file.")
    if (there := urls.local_path(copy)).exists():
        raise _backup_exists(there, common)
    started = time.monotonic()
    with surface.hint_on_interrupt(), target.open_store(common) as lp, surface.progress("copying pages") as bar:
        made = lp.admin.backup(copy, bar)
    seconds, size = time.monotonic() - started, made.stat().st_size
    document: Json = {"store": url, "target": copy, "bytes": size, "seconds": round(seconds, 3)}
    if not surface.print_data(document, [(copy, size)]):
        told = f"{output.byte_size(size)}, copied from {url} in {seconds:.1f} s"
        surface.print_outcome(f"{surface.symbols.good} {copy}", told)
    surface.note(f"Check it with: {hints.command_line('verify', named=copy)}")


def _backup_exists(path: Path, common: CommonOptions) -> exit_codes.CommandFailure:
    kind = "folder" if path.is_dir() else "file"
    held = "" if path.is_dir() else f" of {output.byte_size(path.stat().st_size)}"
    return exit_codes.failure(
        exit_codes.UNSAFE,
        "target_exists",
        f"{path} exists already.",
        f"The {kind}{held} is not overwritten.",
        hints.command_line("backup", named=str(target.free_path_beside(path)), on=common.store_options),
    )


def migrate_store(
    source: str, goal: CopyTarget, /, *, no_verify: NoVerify = False, printing: OutputOptions = OutputOptions()
) -> int:
    """Copy a store with all tenants to another store, on any backend, and verify it. Repeat it after an interruption.

    The target is created if it does not exist; otherwise it must hold a part of the same log. Other processes may write
    to the source meanwhile. Exit 5 if the source has newer events at the end: repeat the command.

    Example: limpet migrate state.db postgresql://user@host/database

    Args:
        source: The store to copy: a path or a URL.
        goal: The store to copy to: a path or a URL.
        no_verify: Compare only the heads of the logs.
    """
    surface = Output(printing)
    common = CommonOptions(json=printing.json, quiet=printing.quiet, url=source)
    started = time.monotonic()
    with (
        surface.hint_on_interrupt(),
        target.open_store(common) as lp,
        surface.progress("copying and checking events") as bar,
        _explain_interrupted_copy("migrate", source, goal),
    ):
        moved = lp.admin.migrate(_checked_target(goal), verify=not no_verify, progress=bar)
    _print_copy_result(surface, ("moved", source, goal), moved, time.monotonic() - started)
    if not moved.behind:
        surface.note(f"To show its status: {hints.command_line('status', named=goal)}")
        return exit_codes.DONE
    late = output.quantity(sum(moved.behind.values()), "event")
    surface.note(f"{urls.without_password(source)} has {late} more since then. Stop its writers, then repeat:")
    surface.note(f"{hints.command_line('migrate', goal, named=source)}  (exit {exit_codes.CONFLICT})")
    return exit_codes.CONFLICT


def restore_backup(
    backup: str, goal: CopyTarget, /, *, no_verify: NoVerify = False, printing: OutputOptions = OutputOptions()
) -> None:
    """Copy a backup to a new or empty store, on any backend, and verify it. Repeat it after an interruption.

    If the target is a file, the erasures that the file TARGET-erased lists are applied again. A server and a folder
    have no such list: repeat there the erasures that were made after the backup.

    Example: limpet restore monday.db state.db

    Args:
        backup: A file that limpet backup made.
        goal: The new store: a path or a URL. An existing store is never overwritten.
        no_verify: Do not verify the copy.
    """
    from limpet.wiring import store_opener  # noqa: PLC0415 - only this command needs it

    surface = Output(printing)
    started = time.monotonic()
    target.require_store(backup)
    with (
        surface.hint_on_interrupt(),
        _explain_interrupted_copy("restore", backup, goal),
        surface.progress("copying and checking") as bar,
    ):
        moved = store_opener.restore(backup, _checked_target(goal), bar, verify=not no_verify)
    _print_copy_result(surface, ("restored", backup, goal), moved, time.monotonic() - started)
    surface.note(f"To show its status: {hints.command_line('status', named=goal)}")


@contextlib.contextmanager
def _explain_interrupted_copy(command: str, source: str, goal: str) -> Iterator[None]:
    """Add to an error that ends a copy the state of the target and the command that continues the copy."""
    try:
        yield
    except errors.Unavailable as error:
        problem = exit_codes.problem_of(error)
        why = "The events copied so far are kept. The target can't be opened until the copy is complete."
        before = problem.next.replace("Repeat the command.", "").strip()
        then = f"{before} To continue, repeat the command: {hints.command_line(command, goal, named=source)}"
        raise exit_codes.CommandFailure(problem._replace(why=why, next=then.lstrip(), command=())) from error
    except errors.Conflict as error:
        why = "The target has a log of its own. Nothing was changed."
        raise exit_codes.CommandFailure(exit_codes.problem_of(error)._replace(why=why)) from error
    except errors.Error as error:
        raise exit_codes.CommandFailure(exit_codes.problem_of(error)) from error


def _checked_target(goal: str) -> str:
    if urls.scheme_of(goal) == "volatile":
        told = "volatile: is a store in the memory of one process; the copy would be lost."
        raise exit_codes.usage_failure(told, "Name a file or a server.", code="no_target")
    return goal


def _print_copy_result(surface: Output, what: tuple[str, str, str], moved: Migrated, seconds: float) -> None:
    did, source, goal = (urls.without_password(each) for each in what)
    document = {"source": source, "target": goal, **msgspec.to_builtins(moved), "seconds": round(seconds, 3)}
    row = (goal, moved.tenants, moved.events, moved.copied, sum(moved.behind.values()))
    if not surface.print_data(document, [row]):
        checked = "verified" if moved.verified else "not verified"
        counts = f"{output.quantity(moved.events, 'event')} of {output.quantity(moved.tenants, 'tenant')}"
        surface.print_outcome(f"{surface.symbols.good} {did}", f"{counts} to {goal}, {checked} ({seconds:.1f} s)")
