"""Import and export: from a caller's arguments to a file, and from files to sessions."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, cast

import msgspec

from limpet import errors
from limpet.core.values.messages import checked_id
from limpet.engine import exporting, foreign, importing
from limpet.engine.exporting import Exported, Sink
from limpet.engine.foreign import Notes, Skipped
from limpet.runtime.engine import Engine
from limpet.stores import urls

if TYPE_CHECKING:
    from limpet.engine.admin import Progress

Format = Literal["auto", "limpet", "penguin", "openai"]
FORMATS: Final = ("auto", "limpet", "penguin", "openai")


class Imported(msgspec.Struct, frozen=True):
    """What an import did: sessions and messages that are new, sessions that were here already, and the rest.

    `skipped` is what was left out, and why; `notes` tell of what is not as it was in the file, `more_notes` how many
    more of these there would be. With `dry_run` nothing was done: it is what would be.
    """

    format: str
    sessions: int
    messages: int
    already: int
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    more_notes: int = 0
    dry_run: bool = False


def export(
    engine: Engine,
    tenant: str,
    target: str | Path | Sink,
    *,
    session_id: str | None,
    user_id: str | None,
    progress: Progress,
) -> Exported:
    """Write sessions to a new file, or to something that takes bytes."""
    engine.check()
    if session_id is not None and user_id is not None:
        raise errors.InvalidRequest("export a session or a user, not both.")
    if session_id is not None:
        checked_id("a session's id", session_id)
    if user_id is not None:
        checked_id("a user's id", user_id)
    if isinstance(target, str | Path):
        place = _path(target).absolute()
        _check_free(place)
        states = exporting.chosen(engine, tenant, session_id, user_id)
        with _fresh(place) as file:
            return exporting.written(engine, tenant, states, file, progress)
    if not callable(getattr(cast("object", target), "write", None)):
        raise errors.InvalidRequest("an export goes to the path of a new file, or an open one.")
    if isinstance(target, io.TextIOBase) or hasattr(target, "encoding"):
        raise errors.InvalidRequest(
            "an export is bytes, and this takes text.",
            hint="Give what takes bytes: sys.stdout.buffer, or a file that was opened with 'wb'.",
        )
    states = exporting.chosen(engine, tenant, session_id, user_id)
    return exporting.written(engine, tenant, states, target, progress)


def _path(value: str | Path) -> Path:
    if not isinstance(cast("object", value), str | Path) or "\0" in str(value):
        raise errors.InvalidRequest("a file is named by its path.")
    if not str(value):
        raise errors.InvalidRequest("the path of the file is empty.", hint="Name a file.")
    return urls.local_path(value)


def _check_free(place: Path) -> None:
    if place.exists() or place.is_symlink():
        raise errors.InvalidRequest(
            f"{place} exists already.",
            hint="Name a new file; an export never overwrites.",
            facts={"exists": str(place)},
        )


def _take_name(made: Path, place: Path) -> None:
    """Give a file its name, unless somebody has taken that meanwhile."""
    try:
        place.hardlink_to(made)
    except FileExistsError:
        _check_free(place)
    except OSError:
        # Not every file system has links.
        made.rename(place)
    else:
        made.unlink()


@contextlib.contextmanager
def _fresh(place: Path) -> Iterator[BinaryIO]:
    """Give a file beside the place, for its owner only, which takes the name when it is whole and on disk."""
    # A file of this kind is made for its owner only.
    try:
        fd, name = tempfile.mkstemp(prefix=f"{place.name[:100]}.", suffix=".part", dir=place.parent)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise errors.InvalidRequest(
            f"no file can be made in {place.parent}: {error.strerror}.",
            hint="Name a file in a folder that is there and may be written to.",
        ) from error
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _take_name(Path(name), place)
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def import_(
    engine: Engine,
    tenant: str,
    source: str | Path,
    *,
    format: Format,  # noqa: A002 - what it is called everywhere
    user_id: str | None,
    rename: str,
    dry_run: bool,
    progress: Progress,
) -> Imported:
    """Take sessions in from a file, or from a folder of Penguin's."""
    engine.check()
    path = _path(source)
    if format not in FORMATS:
        raise errors.InvalidRequest(f"format is one of {', '.join(FORMATS)}.")
    if user_id is not None:
        checked_id("a user's id", user_id)
    if not isinstance(cast("object", rename), str):
        raise errors.InvalidRequest("rename is text that is put behind each id.")
    _check_source(path, format)
    kind = foreign.kind_of(path) if format == "auto" else format
    options = Options(kind, user_id, rename, dry_run)
    if kind == "limpet":
        with path.open("rb") as file:
            return _imported((engine, tenant), file, options, Notes(), progress)
    notes = Notes()
    with tempfile.TemporaryFile() as made:
        file_us = path.stat().st_mtime_ns // 1000
        found = foreign.READERS[kind](path, notes)
        out = exporting.Written(made)
        foreign.converted(found, out, notes, now_us=engine.now_us(), file_us=file_us)
        made.flush()
        return _imported((engine, tenant), cast("BinaryIO", made), options, notes, progress)


def _check_source(path: Path, format: Format) -> None:  # noqa: A002 - what it is called everywhere
    pipe = "It is read more than once: save what comes from a pipe to a file first, and name that."
    if not path.exists():
        hint = pipe if str(path) == "-" else "Check the path."
        raise errors.InvalidRequest(f"there is no file {path}.", hint=hint)
    if path.is_dir():
        if format not in ("auto", "penguin"):
            raise errors.InvalidRequest(
                f"{path} is a folder.", hint="Only Penguin's sessions are read from folders."
            )
    elif not path.is_file():
        raise errors.InvalidRequest(f"{path} is not a file on a disk.", hint=pipe)


class Options(msgspec.Struct, frozen=True):
    """What a caller wants of an import."""

    format: str
    user_id: str | None
    rename: str
    dry_run: bool


def _imported(
    into: tuple[Engine, str], file: BinaryIO, options: Options, notes: Notes, progress: Progress
) -> Imported:
    passes, size = 2 if options.dry_run else 3, importing.size_of(file)
    told, ours = _counting(progress, passes * size), options.format == "limpet"
    importer = importing.Importer(
        *into, file, told=told, user_id=options.user_id, suffix=options.rename, loosely=not ours
    )  # fmt: skip
    chosen, refused = importer.choices()
    for part, error in refused:
        if ours:
            raise _taken(error, part, len(refused))
        notes.skip(part.id, "another session here has its id.")
    new = [choice.part for choice in chosen if not choice.here]
    if not options.dry_run:
        importer.write(chosen)
    progress(passes * size, passes * size)
    return Imported(
        options.format,
        len(new),
        sum(part.messages for part in new),
        len(chosen) - len(new),
        tuple(notes.skipped),
        tuple(notes.told),
        notes.more,
        options.dry_run,
    )


def _taken(error: errors.Error, part: importing.Part, count: int) -> errors.DuplicateSession:
    more = f" (and {count - 1:,} more)" if count > 1 else ""
    return errors.DuplicateSession(
        f"another session here has the id {part.id!r}{more}. Nothing was written.",
        hint="Import under other ids, with rename, or into another tenant.",
        facts={**error.facts, "sessions": count},
    )


def _counting(progress: Progress, total: int) -> Callable[[int], None]:
    done = 0

    def told(size: int) -> None:
        nonlocal done
        before, done = done, min(done + size, total)
        # A call for each line would take longer than the lines.
        if before >> 16 != done >> 16:
            progress(done, total)

    return told
