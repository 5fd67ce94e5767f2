"""A store that was finished aside comes to its place in one step: a file, and the list of what was erased beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

from limpet import errors
from limpet.store.sqlite import erasures, translate
from limpet.store.sqlite.files import Files


def refuse_present(target: Path) -> None:
    """Raise InvalidRequest if a store, or something that belongs to one, is at a path: nothing is overwritten."""
    for present in at(target):
        raise errors.InvalidRequest(
            f"{present} exists already.",
            hint="Name a new file; nothing is ever overwritten.",
            facts={"exists": str(present)},
        )


def at(target: Path) -> list[Path]:
    """Return what is at a path of a store, and what belongs to it."""
    beside = (Path(f"{target}-{end}") for end in ("wal", "shm", "journal", "anchor"))
    return [path for path in (target, *beside) if path.exists()]


def cleared(folder: Path) -> Path:
    """Return where a store is finished in a folder; what somebody has left there is gone."""
    with translate.at(str(folder)):
        shutil.rmtree(folder / "restored", ignore_errors=True)
        (folder / "restored").mkdir(mode=0o700)
    return folder / "restored" / "state.db"


def lend_list(made: Path, target: Path, files: Files | None = None) -> None:
    """Have the list that waits at a place lie beside the store that is made for it: opening that erases it all again."""
    with translate.at(str(target)):
        listed = erasures.path_of(target)
        if listed.exists():
            (files or Files()).put(erasures.path_of(made), listed.read_bytes())


def put(made: Path, target: Path, files: Files | None = None) -> None:
    """Put the file of a store that is closed at a place where nothing is; durable on return."""
    used = files or Files()
    with translate.at(str(target)):
        refuse_present(target)
        if Path(f"{made}-wal").exists():
            raise errors.StoreBusy(
                f"{made} is in use.", hint="Nobody else is to open it until it is in its place."
            )
        listed = erasures.path_of(made)
        if listed.exists():
            # It has what it had, and what else was erased.
            used.put(erasures.path_of(target), listed.read_bytes())
        used.sync(made)
        used.rename(made, target)
