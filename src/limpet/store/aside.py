"""A file that is made aside: in a folder beside its place, by one at a time, so that it comes to its place whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from limpet import errors


def folder_of(target: Path) -> Path:
    """Return where a file is made."""
    return target.with_name(f"{target.name}.part")


@contextlib.contextmanager
def making(target: Path) -> Iterator[Path]:
    """Yield the folder in which a file is made, for one at a time; it goes when the body has come to its end.

    What a body that was broken off has left in it is there for the next. Raises InvalidRequest if another is at work.
    """
    folder = folder_of(target)
    fd = _opened(folder / "making", target)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _busy(target) from error
        if not _is_there(fd, folder / "making"):
            # Whoever was through just now has removed what this one had opened.
            raise _busy(target)
        yield folder
        # What can't be removed does no harm: the file is in its place.
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)


def _opened(lock: Path, target: Path) -> int:
    try:
        lock.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError as error:
        raise errors.InvalidRequest(
            f"{target} can't be made: there is no folder {target.parent}.",
            hint=f"Make it first: mkdir -p {shlex.quote(str(target.parent))}",
        ) from error
    except PermissionError as error:
        raise errors.StoreReadOnly(
            f"{target} can't be written.",
            hint="Check the permissions of its folder, or name a file in another.",
        ) from error
    except OSError as error:
        raise errors.InvalidRequest(
            f"nothing can be made beside {target}: {error.strerror}.",
            hint="Name a file in a folder that exists and may be written to.",
        ) from error


def _is_there(fd: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), lock.stat())
    except FileNotFoundError:
        return False


def _busy(target: Path) -> errors.InvalidRequest:
    return errors.InvalidRequest(
        f"somebody else makes {target} just now.", hint="Wait for it, or name another file."
    )
