"""`limpet export`, `import`, `backup`, `restore` and `migrate`: sessions in files, and copies of a store.

Of several files, one that cannot be imported is skipped and reported. A single file that cannot
be imported ends the command with its error.
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
    """Whose sessions, and where to."""

    output: Annotated[str, Parameter(name=["--output", "-o"], allow_leading_hyphen=True)]
    """The new file. Nothing is ever overwritten. - is stdout."""
    user: str | None = None
    """All sessions of this user."""


def export_sessions(session: str | None = None, /, *, wanted: ExportOptions) -> None:
    """Write sessions to one file (JSON Lines), verbatim: a conversation, all of a user, or all.

    `limpet import` restores them as they were: ids, times, tool calls, images, forks, summaries.

    Example: limpet export --user ada -o ada.jsonl

    Args:
        session: Its id, the beginning of it, @last, or @last~2; with all that it is continued in.
    """
    surface, file, user = Output(wanted), wanted.output, wanted.user
    _check_export(session, wanted)
    started = time.monotonic()
    with target.open_store(wanted) as lp:
        chosen = target.find_session(lp, session).id if session is not None else None
        if user is not None and not lp.sessions.list_sessions(1, user_id=user):
            # It may be a slip in the name, so no file is made.
            if surface.mode is OutputMode.JSON:
                _print_export(surface, None, Exported(0, 0, 0, 0, ""), 0)
            known = hints.command_line("sessions list", on=wanted.store_options)
            surface.note(f"Nothing was written: no session here is of {user!r}. Whose there are: {known}")
            return
        with surface.progress("writing events") as bar:
            place = sys.stdout.buffer if file == STDOUT else file
            made = lp.admin.export(place, session_id=chosen, user_id=user, progress=bar)
    if file != STDOUT:
        _print_export(surface, file, made, time.monotonic() - started)
    surface.note(
        f"{output.quantity(made.sessions, 'session')}, {output.quantity(made.messages, 'message')}."
        " Frames and their suspensions are not in it."
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
        what, then = "a session and --user are both given.", "Export a session, or all of a user."
        raise exit_codes.usage_failure(what, then, nothing)
    to_file = "-o trip.jsonl, or a pipe: -o - | gzip"
    if not file:
        raise exit_codes.usage_failure("-o names no file.", to_file, nothing)
    if file == STDOUT:
        if wanted.json:
            raise exit_codes.usage_failure("--json and -o - would both write to stdout.", "Leave one out.", nothing)
        if sys.stdout.isatty():
            told = "The file would go to a terminal, which obeys what is in stored text."
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
"""Notes and reasons that a terminal shows of one file."""

_FILE_ERRORS: Final = (
    errors.DamagedFile, errors.DuplicateSession, errors.InvalidMessage, errors.InvalidRequest, errors.NewerStore,
    errors.PairingError,
)  # fmt: skip
"""What is wrong with a file; whatever else is refused would be so with the next one too."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions(CommonOptions):
    """How files are imported."""

    format: Literal["auto", "limpet", "penguin", "openai"] = "auto"
    """What the files are."""
    user: str | None = None
    """The user whom the sessions will belong to; else as the file says."""
    rename: Annotated[str, Parameter(allow_leading_hyphen=True, show_default=False)] = ""
    """Append this to each session's id, for example -copy."""
    dry_run: Switch = False
    """Only check, and say what would be done."""


def import_files(*files: str, wanted: ImportOptions = ImportOptions()) -> int:
    """Import sessions from files. Sessions that are in the store already stay as they are. Repeat it after an interruption.

    Files of `limpet export` are checked whole before anything is written. Also reads OpenAI chats (JSON, or JSONL with
    a chat or a message a line), and session files of Penguin or folders of them.
    A store that is named and does not exist is created.

    Example: limpet import ada.jsonl --url state.db --dry-run

    Args:
        files: The files; of Penguin also folders.
    """
    if not files:
        raise exit_codes.usage_failure("no file was named.", "limpet import --help")
    surface = Output(wanted)
    for name in files:
        _check_file(name, alone=len(files) == 1)
    if wanted.user is not None:
        # Here, or it would be said of each file.
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
        surface.note(f"{left_out:,} of {output.quantity(len(made), 'file')} left out.")
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
    """Import a file. If it can't be, it is left out with its reason; one that is alone raises Failure."""
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
        # Another one than the file's own, such as a full disk, is no matter of this file.
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
        surface.print_facts([(f"  {glyphs.dot} left out", why)])
    for note in report.notes[:NOTES_SHOWN]:
        surface.print_facts([(f"  {glyphs.dot} note", note)])
    beyond = max(0, len(report.skipped) - NOTES_SHOWN) + max(0, len(report.notes) - NOTES_SHOWN)
    if beyond + report.more_notes:
        surface.note(f"{beyond + report.more_notes:,} more: --json has them.")


def _import_counts(report: Imported) -> str:
    told = [
        f"{output.quantity(report.sessions, 'session')} with {output.quantity(report.messages, 'message')}"
        + (" would be imported" if report.dry_run else " imported")
    ]
    if report.already:
        told.append(f"{report.already:,} already here")
    if report.skipped:
        told.append(f"{len(report.skipped):,} left out")
    return f"{', '.join(told)} ({report.format})"


def _check_file(name: str, *, alone: bool) -> None:
    """Refuse what is no file before anything is read, or a store is made; of several, one may be missing."""
    path, nothing = Path(name), "Nothing was written."
    if not name:
        raise exit_codes.usage_failure("a file's name is empty.", "Name a file.", nothing)
    if (name == "-" and not path.exists()) or (path.exists() and not path.is_file() and not path.is_dir()):
        told = f"{name} is not a file on a disk, and an import reads more than once."
        raise exit_codes.usage_failure(told, "Save the pipe to a file first, and name that.", nothing)
    if alone and not path.exists():
        raise exit_codes.failure(
            exit_codes.NOT_FOUND, "no_file", f"there is no file {name}.", nothing, "Check the path."
        )


def _trial_import(surface: Output, files: Sequence[str], wanted: ImportOptions) -> list[tuple[str, Imported]]:
    """Read the files through before a store is made for them; return what came of it if that is all that there is to do.

    It is so of a dry run, and if none of them can be imported: those that are damaged leave nothing behind.
    """
    try:
        target.require_store(target.resolve_store(wanted.url))
    except exit_codes.CommandFailure as failure:
        if failure.problem.code != target.NO_STORE_CODE:
            raise
        from limpet import wiring  # noqa: PLC0415 - only who makes a store so pays for it

        with wiring.connect("volatile:") as nowhere:
            found = list(_import_each(surface, nowhere, files, replace(wanted, dry_run=True)))
        if wanted.dry_run:
            return found
        if all(_is_skipped(report) for _, report in found):
            return [(name, msgspec.structs.replace(one, dry_run=False)) for name, one in found]
    return []


def _is_skipped(report: Imported) -> bool:
    """Whether nothing of a file could be taken, and none of it is here."""
    return bool(report.skipped) and not report.sessions + report.already


def backup_store(copy: CopyTarget, /, *, common: CommonOptions = CommonOptions()) -> None:
    """Copy the store to a new file. The copy is consistent while other processes write.

    Example: limpet backup monday.db --url state.db

    Args:
        copy: The new file. Nothing is ever overwritten.
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
        f"It is a {kind}{held}, and a backup never overwrites.",
        hints.command_line("backup", named=str(target.free_path_beside(path)), on=common.store_options),
    )


def migrate_store(
    source: str, goal: CopyTarget, /, *, no_verify: NoVerify = False, printing: OutputOptions = OutputOptions()
) -> int:
    """Copy a store with all its tenants into another, on any backend, and check the copy. Repeat it after an interruption.

    The target is created if it does not exist; what it holds must be a part of the same log. Other processes may
    write to the source meanwhile: exit 5 if it has more by the end, and then repeat it.

    Example: limpet migrate state.db postgresql://user@host/database

    Args:
        source: The store to copy: a path or a URL.
        goal: The store to copy to: a path or a URL.
        no_verify: Only compare the ends of the logs.
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
        surface.note(f"See what it holds: {hints.command_line('status', named=goal)}")
        return exit_codes.DONE
    late = output.quantity(sum(moved.behind.values()), "event")
    surface.note(f"{urls.without_password(source)} has got {late} since. Stop who writes there, then repeat:")
    surface.note(f"{hints.command_line('migrate', goal, named=source)}  (exit {exit_codes.CONFLICT})")
    return exit_codes.CONFLICT


def restore_backup(
    backup: str, goal: CopyTarget, /, *, no_verify: NoVerify = False, printing: OutputOptions = OutputOptions()
) -> None:
    """Copy a backup into a new or empty store, on any backend, and check it. Repeat it after an interruption.

    Into a file: what the list of erasures beside it (TARGET-erased) names is erased again. A server and a folder have
    no such list: erase there what was erased since the backup was made.

    Example: limpet restore monday.db state.db

    Args:
        backup: A file that limpet backup made.
        goal: The new store: a path or a URL. Nothing is ever overwritten.
        no_verify: Do not check the copy.
    """
    from limpet.wiring import store_opener  # noqa: PLC0415 - only whoever restores pays for it

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
    surface.note(f"See what it holds: {hints.command_line('status', named=goal)}")


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
        raise exit_codes.usage_failure(told, "Name a file, or a server.", code="no_target")
    return goal


def _print_copy_result(surface: Output, what: tuple[str, str, str], moved: Migrated, seconds: float) -> None:
    did, source, goal = (urls.without_password(each) for each in what)
    document = {"source": source, "target": goal, **msgspec.to_builtins(moved), "seconds": round(seconds, 3)}
    row = (goal, moved.tenants, moved.events, moved.copied, sum(moved.behind.values()))
    if not surface.print_data(document, [row]):
        checked = "verified" if moved.verified else "not verified"
        counts = f"{output.quantity(moved.events, 'event')} of {output.quantity(moved.tenants, 'tenant')}"
        surface.print_outcome(f"{surface.symbols.good} {did}", f"{counts} to {goal}, {checked} ({seconds:.1f} s)")
