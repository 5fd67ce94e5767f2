"""`limpet import`: sessions from files: those of `limpet export`, and those of other programs.

Of several files one that can't be imported is left out with its reason; one that is alone ends the command with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from limpet import errors
from limpet.cli import exits, figures, target
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values.messages import checked_id

if TYPE_CHECKING:
    from limpet.admin.import_ import Format, Imported
    from limpet.core.values.json_values import Json
    from limpet.wiring import Limpet

SHOWN = 10
"""Notes and reasons that a terminal shows of one file."""

_OF_A_FILE: Final = (
    errors.DamagedFile, errors.DuplicateSession, errors.InvalidMessage, errors.InvalidRequest, errors.NewerStore,
    errors.PairingError,
)  # fmt: skip
"""What is wrong with a file; whatever else is refused would be so with the next one too."""


class Wanted(NamedTuple):
    """How files are imported."""

    format: Format
    user: str | None
    rename: str
    dry_run: bool


def run(files: Sequence[str], wanted: Wanted, common: Common) -> int:
    """Take in the sessions of each file; those that are here already stay as they are."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    for name in files:
        _check(name, alone=len(files) == 1)
    if wanted.user is not None:
        # Here, or it would be said of each file.
        checked_id("a user's id", wanted.user)
    started = time.monotonic()
    made = _looked_through(surface, files, wanted, common)
    if made:
        for name, report in made if surface.face is not Face.JSON else ():
            _tell(surface, name, report)
    else:
        made = _taken(surface, files, wanted, common)
    if surface.face is Face.JSON:
        seconds = round(time.monotonic() - started, 3)
        surface.document(_document(target.named(common.url), made, wanted, seconds))
    if wanted.dry_run:
        surface.note("Nothing was written (--dry-run).")
    left_out = sum(_is_left_out(report) for _, report in made)
    if left_out:
        surface.note(f"{left_out:,} of {figures.count(len(made), 'file')} left out.")
    return exits.FAILED if left_out else exits.DONE


def _taken(
    surface: Surface, files: Sequence[str], wanted: Wanted, common: Common
) -> list[tuple[str, Imported]]:
    made: list[tuple[str, Imported]] = []
    with target.opened(common, create=not wanted.dry_run, writes=not wanted.dry_run) as lp:
        for name, report in _each(surface, lp, files, wanted):
            made.append((name, report))
            if surface.face is not Face.JSON:
                _tell(surface, name, report)
    return made


def _each(
    surface: Surface, lp: Limpet, files: Sequence[str], wanted: Wanted
) -> Iterator[tuple[str, Imported]]:
    for name in files:
        with surface.progress(f"reading {Path(name).name}") as bar:
            report = _imported(lp, name, wanted, bar, alone=len(files) == 1)
        yield name, report


def _imported(
    lp: Limpet, name: str, wanted: Wanted, progress: Callable[[int, int], None], *, alone: bool
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
            problem = exits.of_error(error)
            named = problem.what if name in problem.what else f"{name}: {problem.what}"
            raise exits.Failure(problem._replace(what=named)) from error
        if not isinstance(error, _OF_A_FILE):
            raise
        return _left_out(name, error.message, wanted)
    except OSError as error:
        # Another one than the file's own, such as a full disk, is no matter of this file.
        if alone or error.filename is None or Path(error.filename) != Path(name):
            raise
        return _left_out(name, f"it can't be read: {error.strerror}.", wanted)


def _left_out(name: str, reason: str, wanted: Wanted) -> Imported:
    from limpet.admin.foreign_files import SkippedSource  # noqa: PLC0415 - as below
    from limpet.admin.import_ import Imported  # noqa: PLC0415 - as below

    kind = "unknown" if wanted.format == "auto" else wanted.format
    return Imported(kind, 0, 0, 0, (SkippedSource(name, reason),), dry_run=wanted.dry_run)


def _document(
    store: str, made: Sequence[tuple[str, Imported]], wanted: Wanted, seconds: float
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


def _tell(surface: Surface, name: str, report: Imported) -> None:
    if surface.face is Face.PIPE:
        skipped = len(report.skipped)
        surface.row(name, report.format, report.sessions, report.messages, report.already, skipped)
        for one in report.skipped:
            surface.row("skipped", one.source, one.reason)
        for note in report.notes:
            surface.row("note", note)
        return
    glyphs = surface.glyphs
    whole = not report.skipped
    mark = f"{glyphs.good if whole else glyphs.warn} {name}"
    surface.console.print(mark, style="bold green" if whole else "bold yellow", end="")
    surface.console.print(f"   {_counts(report)}", soft_wrap=True)
    for one in report.skipped[:SHOWN]:
        why = one.reason if one.source in one.reason else f"{one.source}: {one.reason}"
        surface.facts([(f"  {glyphs.dot} left out", why)])
    for note in report.notes[:SHOWN]:
        surface.facts([(f"  {glyphs.dot} note", note)])
    beyond = max(0, len(report.skipped) - SHOWN) + max(0, len(report.notes) - SHOWN)
    if beyond + report.more_notes:
        surface.note(f"{beyond + report.more_notes:,} more: --json has them.")


def _counts(report: Imported) -> str:
    told = [
        f"{figures.count(report.sessions, 'session')} with {figures.count(report.messages, 'message')}"
        + (" would be imported" if report.dry_run else " imported")
    ]
    if report.already:
        told.append(f"{report.already:,} already here")
    if report.skipped:
        told.append(f"{len(report.skipped):,} left out")
    return f"{', '.join(told)} ({report.format})"


def _check(name: str, *, alone: bool) -> None:
    """Refuse what is no file before anything is read, or a store is made; of several, one may be missing."""
    path = Path(name)
    if not name:
        raise exits.Failure(_usage("a file's name is empty.", "Name a file."))
    if (name == "-" and not path.exists()) or (
        path.exists() and not path.is_file() and not path.is_dir()
    ):
        told = f"{name} is not a file on a disk, and an import reads more than once."
        raise exits.Failure(_usage(told, "Save the pipe to a file first, and name that."))
    if alone and not path.exists():
        raise exits.Failure(_missing(name))


def _looked_through(
    surface: Surface, files: Sequence[str], wanted: Wanted, common: Common
) -> list[tuple[str, Imported]]:
    """Read the files through before a store is made for them; return what came of it if that is all that there is to do.

    It is so of a dry run, and if none of them can be imported: those that are damaged leave nothing behind.
    """
    try:
        target.must_exist(target.choose(common.url))
    except exits.Failure as failure:
        if failure.problem.code != target.NO_STORE:
            raise
        from limpet import wiring  # noqa: PLC0415 - only who makes a store so pays for it

        with wiring.connect("volatile:") as nowhere:
            found = list(_each(surface, nowhere, files, wanted._replace(dry_run=True)))
        if wanted.dry_run:
            return found
        if all(_is_left_out(report) for _, report in found):
            return [(name, msgspec.structs.replace(one, dry_run=False)) for name, one in found]
    return []


def _is_left_out(report: Imported) -> bool:
    """Whether nothing of a file could be taken, and none of it is here."""
    return bool(report.skipped) and not report.sessions + report.already


def _usage(what: str, then: str) -> exits.Problem:
    return exits.Problem(exits.USAGE, "usage", what, "Nothing was written.", then)


def _missing(name: str) -> exits.Problem:
    return exits.Problem(
        exits.NOT_FOUND,
        "no_file",
        f"there is no file {name}.",
        "Nothing was written.",
        "Check the path.",
    )
