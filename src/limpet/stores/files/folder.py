"""The folder of a file store: its layout, its blobs, and safe file names for ids.

journal/    the log: keep it
blobs/      large contents of the log, each under its SHA-256: keep them
sessions/   one readable file for each session, made from the log
.index/     a database for reads, made from the log: need not be kept

Files are readable by their owner only. No id leads to a path outside the folder, and no two ids
share a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from limpet import errors
from limpet.stores import chain
from limpet.stores.files.journal import lost_journal_error, segment_file_name
from limpet.stores.sqlite.shared_file.store_files import (
    NETWORK_FILE_SYSTEMS,
    StoreFiles,
    open_regular_file,
    read_regular_file,
)

LOCK_NAME: Final = ".lock"
INDEX_NAME: Final = "state.db"
_GITIGNORE: Final = "/.index/\n.lock\n*.new\n*.bak\n"
_GITATTRIBUTES: Final = "/journal/** -text\n/blobs/** -text\n/sessions/** -text\n/erased.list -text\n"
"""For git: line ends are not converted."""

_TEMPORARY_SUFFIX: Final = r"\.[a-z0-9_]{8}\.new"
"""The end of a name that `StoreFiles.create_temporary` makes."""

_SEGMENT_NAMES: Final = re.compile(r"\d+\.jsonl|rewriting")
_BLOB_NAMES: Final = re.compile(r"[0-9a-f]{64}")
_DOCUMENT_BEGINNING: Final = re.compile(rb'\s*\{\s*"limpet"\s*:\s*"sessions?"')
_DOCUMENT_BEGINNING_BYTES: Final = 64
_LISTED_FILES_MAX: Final = 3
"""How many files an error names."""


def files_named(folder: Path, names: re.Pattern[str]) -> Iterator[Path]:
    """Yield the regular files of a folder whose names match. Folders and links are never the store's."""
    for found in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if names.fullmatch(found.name) and found.is_file(follow_symlinks=False):
            yield folder / found.name


def remove_files(files: StoreFiles, paths: Iterable[Path]) -> list[Path]:
    """Remove files; return those that can't be removed."""
    left: list[Path] = []
    for path in paths:
        try:
            files.remove(path)
        except OSError:
            left.append(path)
    return left


def leftover_names(names: re.Pattern[str]) -> re.Pattern[str]:
    """Return the pattern of temporary files that an interrupted writer of such files leaves."""
    return re.compile(f"({names.pattern}){_TEMPORARY_SUFFIX}")


def is_session_document(path: Path) -> bool:
    """Return whether a regular file begins as a session document does, even if it was damaged or edited later on."""
    if not path.is_file() or path.is_symlink():
        return False
    with open_regular_file(path) as file:
        return _DOCUMENT_BEGINNING.match(file.read(_DOCUMENT_BEGINNING_BYTES)) is not None


def not_removed_error(paths: Sequence[Path]) -> errors.StoreReadOnly:
    """Return the error for files that may hold erased content and can't be removed."""
    names = ", ".join(str(path) for path in paths[:_LISTED_FILES_MAX])
    more = f" and {len(paths) - _LISTED_FILES_MAX:,} more" if len(paths) > _LISTED_FILES_MAX else ""
    return errors.StoreReadOnly(
        f"what was erased can't be read any more from the store, but may be in files that can't be removed: {names}{more}.",
        hint="Remove them, or let them be removed, then erase() once more; the next opening does it too.",
        facts={"path": str(paths[0]), "files": len(paths), "pending": True},
    )


class StoreFolder:
    """The folder of one store, and the files in it."""

    def __init__(self, files: StoreFiles, root: Path) -> None:
        self._files = files
        self.root = root
        self.journal, self.blobs = root / "journal", root / "blobs"
        self.sessions, self.index = root / "sessions", root / ".index"

    def prepare(self) -> None:
        """Create the folders and the files for git; raise UnsafeStore, InvalidRequest or Corrupt where a store can't be."""
        kind = self._files.file_system_type(self.root)
        if kind in NETWORK_FILE_SYSTEMS:
            raise errors.UnsafeStore(
                f"{self.root} lies on a network file system ({kind}), whose locks do not hold.",
                hint="Use a local disk, or a server database.",
                facts={"filesystem": kind},
            )
        self._check_not_occupied()
        for folder in (self.root, self.journal, self.blobs, self.sessions, self.index):
            self._make_folder(folder)
        for path, text in (
            (self.root / ".gitignore", _GITIGNORE),
            (self.root / ".gitattributes", _GITATTRIBUTES),
            # The root may have a .gitignore of the user's that does not mention the index.
            (self.index / ".gitignore", "*\n"),
        ):
            if not path.exists():
                self._files.replace_content(path, text.encode())

    def _check_not_occupied(self) -> None:
        """Raise Corrupt for a store that lost its journal, InvalidRequest if `sessions` has foreign files."""
        # First the files, then the journal: a process that creates the store meanwhile begins with its journal.
        found, traces = sorted(self.sessions.glob("[!.]*")), self._has_traces()
        if (self.journal / segment_file_name(1)).exists():
            return
        if traces:
            raise lost_journal_error(self.root)
        if found:
            raise errors.InvalidRequest(
                f"{self.sessions} holds files that Limpet did not write, such as {found[0].name}.",
                hint="Choose another folder for the store, or move them elsewhere. Nothing was changed.",
            )

    def _has_traces(self) -> bool:
        return any(self.journal.glob("*.jsonl")) or any(map(is_session_document, self.sessions.glob("[!.]*.json")))

    def is_store(self) -> bool:
        """Return whether the folder holds a store, or the remains of one that lost its journal."""
        return self._has_traces() or (self.index / INDEX_NAME).is_file()

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=folder == self.root)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                raise errors.InvalidRequest(
                    f"{folder} is in the way: a file store needs a folder of that name, and no link to one.",
                    hint="Choose another folder for the store. Nothing was changed.",
                ) from None
        else:
            self._files.sync(folder.parent)

    def clear_leftovers(self) -> list[Path]:
        """Remove temporary files of interrupted writers; return those that can't be removed. The caller holds the write lock."""
        leftovers = (
            path
            for folder, names in ((self.journal, _SEGMENT_NAMES), (self.blobs, _BLOB_NAMES))
            for path in files_named(folder, leftover_names(names))
        )
        return remove_files(self._files, leftovers)

    def remove_blobs(self, needed: Callable[[bytes], bool]) -> list[Path]:
        """Remove blobs that are not needed; return those that can't be removed. The caller holds the write lock."""
        found = (path for path in files_named(self.blobs, _BLOB_NAMES) if not needed(bytes.fromhex(path.name)))
        left = remove_files(self._files, found)
        self._files.sync(self.blobs)
        return left

    @property
    def size_bytes(self) -> int:
        """The total size of its files. Files that are removed or renamed meanwhile may be missing."""
        total = 0
        for place, _, names in os.walk(self.root):
            for each in names:
                with contextlib.suppress(FileNotFoundError):
                    found = os.lstat(os.path.join(place, each))
                    total += found.st_size if stat.S_ISREG(found.st_mode) else 0
        return total

    def write_blob(self, hash_: bytes, content: bytes) -> None:
        """Write a blob's file unless an intact one exists; durable on return."""
        path = self.blobs / hash_.hex()
        if not (path.exists() and chain.blob_matches(hash_, read_regular_file(path))):
            self._files.replace_content(path, content)

    def read_blob(self, name: str) -> bytes:
        """Return a blob's content; raise Corrupt if it is missing or damaged."""
        hash_ = bytes.fromhex(name)
        try:
            content = read_regular_file(self.blobs / hash_.hex())
        except FileNotFoundError:
            raise errors.Corrupt(
                f"the blob {name} is missing: {self.blobs / name} is not there.",
                hint="Nothing was changed. Put the file back from a backup or from git.",
                facts={"blob": name, "journal": "damaged"},
            ) from None
        if not chain.blob_matches(hash_, content):
            found = chain.damaged_blob_error(hash_)
            found.facts["journal"] = "damaged"
            raise found
        return content


_SAFE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_RESERVED_NAMES: Final = frozenset(("index",))


def safe_name(text: str, apart: str = "") -> str:
    """Return a file name for any text: the text itself if it is plain, else its plain part and a hash.

    `apart` separates equal texts of different tenants. Different texts have different names on every file system.
    """
    if not apart and _SAFE_NAME.fullmatch(text) and text not in _RESERVED_NAMES and not text.endswith("."):
        return text
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-")
    digest = hashlib.sha256(f"{apart}\0{text}".encode(errors="surrogatepass")).hexdigest()[:32]
    # No plain name has an exclamation mark, so no id can be chosen to collide with a hashed name.
    return f"{plain}!{digest}"
