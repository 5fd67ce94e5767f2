"""`limpet export` and `limpet import`: sessions to one file, and from files.

Of several files, one that cannot be imported is skipped and reported. A single file that cannot
be imported ends the command with its error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from limpet import errors
from limpet.admin.export import Exported
from limpet.cli import exit_codes, formatting, hints, target
from limpet.cli.options import CommonOptions
from limpet.cli.output import Output, OutputMode
from limpet.core.values.messages import checked_id

if TYPE_CHECKING:
    from limpet.admin.import_ import Format, Imported
    from limpet.core.values.validation import Json
    from limpet.wiring import Limpet


STDOUT = "-"


def export_sessions(session: str | None, user: str | None, output: str, common: CommonOptions) -> int:
    """Write a conversation, all sessions of a user, or all of the tenant."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    if session is not None and user is not None:
        raise exit_codes.CommandFailure(_session_and_user_problem())
    _check_output(session, user, output, common)
    started = time.monotonic()
    with target.open_store(common) as lp:
        chosen = target.find_session(lp, session).id if session is not None else None
        if user is not None and not lp.sessions.list_sessions(1, user_id=user):
            return _print_no_session_of_user(surface, user, common)
        with surface.progress("writing events") as bar:
            place = sys.stdout.buffer if output == STDOUT else output
            made = lp.admin.export(place, session_id=chosen, user_id=user, progress=bar)
    if output != STDOUT:
        _print_export(surface, output, made, time.monotonic() - started)
    surface.note(
        f"{formatting.quantity(made.sessions, 'session')}, {formatting.quantity(made.messages, 'message')}."
        " Frames and their suspensions are not in it."
    )
    return exit_codes.DONE


def _print_no_session_of_user(surface: Output, user: str, common: CommonOptions) -> int:
    """Say that a user has no session, which may be a slip in the name; no file is made."""
    if surface.mode is OutputMode.JSON:
        _print_export(surface, None, Exported(0, 0, 0, 0, ""), 0)
    surface.note(
        f"Nothing was written: no session here is of {user!r}."
        f" Whose there are: {hints.command_line('sessions list', on=common.store_options)}"
    )
    return exit_codes.DONE


def _print_export(surface: Output, output: str | None, made: Exported, seconds: float) -> None:
    if surface.mode is OutputMode.JSON:
        surface.print_json(
            {
                "file": output,
                "sessions": made.sessions,
                "events": made.events,
                "messages": made.messages,
                "bytes": made.bytes,
                "sha256": made.sha256 or None,
                "seconds": round(seconds, 3),
            }
        )
    elif surface.mode is OutputMode.PIPE:
        surface.print_row(output, made.sessions, made.events, made.messages, made.bytes)
    else:
        surface.console.print(f"{surface.symbols.good} {output}", style="bold green", end="")
        surface.console.print(
            f"   {formatting.byte_size(made.bytes)}, {formatting.quantity(made.events, 'event')} in {seconds:.1f} s"
        )


def _check_output(session: str | None, user: str | None, output: str, common: CommonOptions) -> None:
    if output == STDOUT:
        if common.json:
            raise exit_codes.CommandFailure(
                _export_usage_problem("--json and -o - would both write to stdout.", "Leave one out.")
            )
        if sys.stdout.isatty():
            told = "The file would go to a terminal, which obeys what is in stored text."
            raise exit_codes.CommandFailure(_export_usage_problem(told, "-o trip.jsonl, or a pipe: -o - | gzip"))
    elif not output:
        raise exit_codes.CommandFailure(
            _export_usage_problem("-o names no file.", "-o trip.jsonl, or a pipe: -o - | gzip")
        )
    elif Path(output).exists():
        raise exit_codes.CommandFailure(_output_exists_problem(session, user, output, common))


def _export_usage_problem(what: str, then: str) -> exit_codes.CommandProblem:
    return exit_codes.CommandProblem(exit_codes.USAGE, "usage", what, "Nothing was written.", then)


def _session_and_user_problem() -> exit_codes.CommandProblem:
    return _export_usage_problem("a session and --user are both given.", "Export a session, or all of a user.")


def _output_exists_problem(
    session: str | None, user: str | None, output: str, common: CommonOptions
) -> exit_codes.CommandProblem:
    of = hints.option_words("--user", user) if user is not None else ()
    free = hints.option_words("-o", target.free_path_beside(Path(output)))
    return exit_codes.CommandProblem(
        exit_codes.UNSAFE,
        "target_exists",
        f"{output} exists already.",
        "An export never overwrites. Nothing was written.",
        hints.command_line("export", *of, *free, named=session or "", on=common.store_options),
    )


NOTES_SHOWN = 10
"""Notes and reasons that a terminal shows of one file."""

_FILE_ERRORS: Final = (
    errors.DamagedFile, errors.DuplicateSession, errors.InvalidMessage, errors.InvalidRequest, errors.NewerStore,
    errors.PairingError,
)  # fmt: skip
"""What is wrong with a file; whatever else is refused would be so with the next one too."""


class ImportCommandOptions(NamedTuple):
    """How files are imported."""

    format: Format
    user: str | None
    rename: str
    dry_run: bool


def import_files(files: Sequence[str], wanted: ImportCommandOptions, common: CommonOptions) -> int:
    """Take in the sessions of each file; those that are here already stay as they are."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    for name in files:
        _check_file(name, alone=len(files) == 1)
    if wanted.user is not None:
        # Here, or it would be said of each file.
        checked_id("a user's id", wanted.user)
    started = time.monotonic()
    made = _trial_import(surface, files, wanted, common)
    if made:
        for name, report in made if surface.mode is not OutputMode.JSON else ():
            _print_import(surface, name, report)
    else:
        made = _import_all(surface, files, wanted, common)
    if surface.mode is OutputMode.JSON:
        seconds = round(time.monotonic() - started, 3)
        surface.print_json(_import_document(target.store_name(common.url), made, wanted, seconds))
    if wanted.dry_run:
        surface.note("Nothing was written (--dry-run).")
    left_out = sum(_is_skipped(report) for _, report in made)
    if left_out:
        surface.note(f"{left_out:,} of {formatting.quantity(len(made), 'file')} left out.")
    return exit_codes.FAILED if left_out else exit_codes.DONE


def _import_all(
    surface: Output, files: Sequence[str], wanted: ImportCommandOptions, common: CommonOptions
) -> list[tuple[str, Imported]]:
    made: list[tuple[str, Imported]] = []
    with target.open_store(common, create=not wanted.dry_run, writes=not wanted.dry_run) as lp:
        for name, report in _import_each(surface, lp, files, wanted):
            made.append((name, report))
            if surface.mode is not OutputMode.JSON:
                _print_import(surface, name, report)
    return made


def _import_each(
    surface: Output, lp: Limpet, files: Sequence[str], wanted: ImportCommandOptions
) -> Iterator[tuple[str, Imported]]:
    for name in files:
        with surface.progress(f"reading {Path(name).name}") as bar:
            report = _import_file(lp, name, wanted, bar, alone=len(files) == 1)
        yield name, report


def _import_file(
    lp: Limpet, name: str, wanted: ImportCommandOptions, progress: Callable[[int, int], None], *, alone: bool
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


def _skipped_file(name: str, reason: str, wanted: ImportCommandOptions) -> Imported:
    from limpet.admin.foreign_files import SkippedSource  # noqa: PLC0415 - as below
    from limpet.admin.import_ import Imported  # noqa: PLC0415 - as below

    kind = "unknown" if wanted.format == "auto" else wanted.format
    return Imported(kind, 0, 0, 0, (SkippedSource(name, reason),), dry_run=wanted.dry_run)


def _import_document(
    store: str, made: Sequence[tuple[str, Imported]], wanted: ImportCommandOptions, seconds: float
) -> Json:
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
    whole = not report.skipped
    mark = f"{glyphs.good if whole else glyphs.warn} {name}"
    surface.console.print(mark, style="bold green" if whole else "bold yellow", end="")
    surface.console.print(f"   {_import_counts(report)}", soft_wrap=True)
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
        f"{formatting.quantity(report.sessions, 'session')} with {formatting.quantity(report.messages, 'message')}"
        + (" would be imported" if report.dry_run else " imported")
    ]
    if report.already:
        told.append(f"{report.already:,} already here")
    if report.skipped:
        told.append(f"{len(report.skipped):,} left out")
    return f"{', '.join(told)} ({report.format})"


def _check_file(name: str, *, alone: bool) -> None:
    """Refuse what is no file before anything is read, or a store is made; of several, one may be missing."""
    path = Path(name)
    if not name:
        raise exit_codes.CommandFailure(_import_usage_problem("a file's name is empty.", "Name a file."))
    if (name == "-" and not path.exists()) or (path.exists() and not path.is_file() and not path.is_dir()):
        told = f"{name} is not a file on a disk, and an import reads more than once."
        raise exit_codes.CommandFailure(_import_usage_problem(told, "Save the pipe to a file first, and name that."))
    if alone and not path.exists():
        raise exit_codes.CommandFailure(_missing_file(name))


def _trial_import(
    surface: Output, files: Sequence[str], wanted: ImportCommandOptions, common: CommonOptions
) -> list[tuple[str, Imported]]:
    """Read the files through before a store is made for them; return what came of it if that is all that there is to do.

    It is so of a dry run, and if none of them can be imported: those that are damaged leave nothing behind.
    """
    try:
        target.require_store(target.resolve_store(common.url))
    except exit_codes.CommandFailure as failure:
        if failure.problem.code != target.NO_STORE_CODE:
            raise
        from limpet import wiring  # noqa: PLC0415 - only who makes a store so pays for it

        with wiring.connect("volatile:") as nowhere:
            found = list(_import_each(surface, nowhere, files, wanted._replace(dry_run=True)))
        if wanted.dry_run:
            return found
        if all(_is_skipped(report) for _, report in found):
            return [(name, msgspec.structs.replace(one, dry_run=False)) for name, one in found]
    return []


def _is_skipped(report: Imported) -> bool:
    """Whether nothing of a file could be taken, and none of it is here."""
    return bool(report.skipped) and not report.sessions + report.already


def _import_usage_problem(what: str, then: str) -> exit_codes.CommandProblem:
    return exit_codes.CommandProblem(exit_codes.USAGE, "usage", what, "Nothing was written.", then)


def _missing_file(name: str) -> exit_codes.CommandProblem:
    return exit_codes.CommandProblem(
        exit_codes.NOT_FOUND, "no_file", f"there is no file {name}.", "Nothing was written.", "Check the path."
    )
