"""The folder of a file store: its layout, its blobs, its session files, and safe file names for ids.

journal/    the log: keep it
blobs/      large contents of the log, each under its SHA-256: keep them
sessions/   one readable file for each session, made from the log
.index/     a database for reads, made from the log: need not be kept

Files are readable by their owner only. No id leads to a path outside the folder, and no two ids share a file.

A session file has a checksum and a backup. It is replaced in fixed steps: new content synced under
another name, present file to backup, new file into place, folder synced. A present file that does
not verify never becomes the backup. An edited file is reported and overwritten when its session
continues. A file that is not a session document is set aside, never overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.values.validation import Json
from limpet.stores import chain
from limpet.stores.files.journal import lost_journal_error, segment_file_name
from limpet.stores.port import ReadableDocuments
from limpet.stores.sqlite import database
from limpet.stores.sqlite.shared_file import store_files
from limpet.stores.sqlite.shared_file.store_files import StoreFiles, open_regular_file, read_regular_file

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
    left: list[Path] = []
    for path in paths:
        try:
            files.remove(path)
        except OSError:
            left.append(path)
    return left


def leftover_names(names: re.Pattern[str]) -> re.Pattern[str]:
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
        database.check_file_system(self._files, self.root, self.root)
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


_CHECKSUM_FIELD: Final = b',\n  "checksum": "'
_DOCUMENT_END: Final = b'"\n}\n'
_CHECKSUM_CHARS: Final = 64
_NOT_SESSIONS: Final = frozenset(("index.json",))
_DOCUMENT_NAMES: Final = re.compile(r"[^.].*\.json(\.bak)?")
_SET_ASIDE_NAMES: Final = re.compile(rf"({_DOCUMENT_NAMES.pattern})\.other-\d+")
_DOCUMENT_MARK: Final = re.compile(rb'"limpet"\s*:\s*"sessions?"')
"""Text that every document has unescaped, so a document that quotes another is not taken for it."""


def encode_document(document: Mapping[str, Json]) -> bytes:
    """Return a document as text for people, with its checksum as the last field."""
    body = msgspec.json.format(msgspec.json.encode(document), indent=2).removesuffix(b"\n}")
    return body + _CHECKSUM_FIELD + hashlib.sha256(body).hexdigest().encode() + _DOCUMENT_END


def decode_document(data: bytes) -> dict[str, Json] | None:
    end = len(_CHECKSUM_FIELD) + _CHECKSUM_CHARS + len(_DOCUMENT_END)
    body, seal = data[:-end], data[-end:]
    check = hashlib.sha256(body).hexdigest().encode()
    found = _decode_json(data) if seal == _CHECKSUM_FIELD + check + _DOCUMENT_END else None
    return found if isinstance(found, dict) else None


def _decode_json(data: bytes) -> dict[str, Json] | list[Json] | None:
    try:
        return msgspec.json.decode(data, type=dict[str, Json] | list[Json])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _is_document(data: bytes) -> bool:
    """Return whether a text was written as a document, even if it was edited or damaged since."""
    match _decode_json(data):
        case {"limpet": "session" | "sessions"}:
            return True
        case None:
            return _DOCUMENT_MARK.search(data) is not None
        case _:
            return False


class FileDocuments:
    """The documents of one folder, each under a safe name."""

    def __init__(self, files: StoreFiles, folder: Path) -> None:
        self._files = files
        self.folder = folder
        self._thread_lock = threading.Lock()
        self._cleared = False
        self._error_translator = database.translator(str(folder))

    def safe_name(self, text: str, apart: str = "") -> str:
        return safe_name(text, apart)

    @contextlib.contextmanager
    def write_lock(self) -> Iterator[None]:
        """Keep other threads and processes from writing: an older state must not follow a newer one.

        Raises StoreBusy, which names the holder, if another process holds it for too long.
        """
        with self._thread_lock, self._error_translator:
            path = self.folder / LOCK_NAME
            fd = self._files.open_or_create(path)
            try:
                self._lock(fd, path)
                if not self._cleared:
                    self._clear_leftovers()
                yield
            finally:
                self._files.close(fd)

    def _lock(self, fd: int, path: Path) -> None:
        until, pause_s = time.monotonic() + limits.WRITE_LOCK_WAIT_S, store_files.LOCK_POLL_S
        while not self._files.try_lock(fd):
            if time.monotonic() > until:
                raise store_files.lock_busy_error(self._files, fd, path, limits.WRITE_LOCK_WAIT_S)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, store_files.LOCK_POLL_S_MAX)

    def _clear_leftovers(self) -> list[Path]:
        self._cleared = True
        return remove_files(self._files, files_named(self.folder, leftover_names(_DOCUMENT_NAMES)))

    def put(self, name: str, document: Mapping[str, Json]) -> None:
        """Replace a document atomically; durable on return."""
        path = self._path(name)
        with self._error_translator:
            before = self._read_bytes(path)
            if before is not None and decode_document(before) is not None:
                self._set_aside_foreign(self._backup(name))
                self._files.replace_content(self._backup(name), before)
            self._set_aside_foreign(path)
            self._files.replace_content(path, encode_document(document))

    def _set_aside_foreign(self, path: Path) -> None:
        """Rename a foreign file out of the way, unless it is empty."""
        if not path.exists() or not path.stat().st_size or is_session_document(path):
            return
        number = 1
        while (aside := path.with_name(f"{path.name}.other-{number}")).exists():
            number += 1
        self._files.rename(path, aside)

    def get(self, name: str) -> dict[str, Json] | None:
        return self.get_primary(name) or self._read_document(self._backup(name))

    def get_primary(self, name: str) -> dict[str, Json] | None:
        return self._read_document(self._path(name))

    def exists(self, name: str) -> bool:
        return self._path(name).is_file()

    def checksum(self, name: str) -> bytes | None:
        return self._read_bytes(self._path(name), _CHECKSUM_CHARS + len(_DOCUMENT_END))

    def drop(self, name: str) -> None:
        """Remove a document and its backup; foreign files in their place stay."""
        there = ((path, self._read_bytes(path)) for path in (self._path(name), self._backup(name)))
        paths = [path for path, data in there if data is not None and _is_document(data)]
        for path in paths:
            self._files.remove(path)
        if paths:
            self._files.sync(self.folder)

    def drop_unless(self, keeps: Callable[[Mapping[str, Json]], bool]) -> list[Path]:
        """Remove documents, backups and set-aside copies that `keeps` rejects; return files that can't be removed.

        Other files stay, whatever their names. The caller holds the write lock.
        """
        left = self._clear_leftovers()
        for path in (*files_named(self.folder, _DOCUMENT_NAMES), *files_named(self.folder, _SET_ASIDE_NAMES)):
            try:
                if self._must_be_removed(path, keeps):
                    self._files.remove(path)
            except (OSError, errors.Unavailable):
                left.append(path)
        self._files.sync(self.folder)
        return left

    def _must_be_removed(self, path: Path, keeps: Callable[[Mapping[str, Json]], bool]) -> bool:
        """Return whether a file is a document, edited or not, that `keeps` does not accept."""
        data = self._read_bytes(path)
        if data is None or not _is_document(data):
            return False
        document = _decode_json(data)
        return not isinstance(document, dict) or not keeps(document)

    def survey(self, version: Callable[[str, str], int]) -> dict[str, int]:
        """Return the numbers of documents, of those that lag behind the log, of edited ones, and of other files.

        `version` returns the present version of a tenant's stream.
        """
        found = {"files": 0, "lagging": 0, "edited": 0, "others": 0}
        ours = set(files_named(self.folder, _DOCUMENT_NAMES))
        for path in sorted(self.folder.glob("[!.]*")):
            if path not in ours:
                found["others"] += 1
            elif path.suffix == ".json" and path.name not in _NOT_SESSIONS:
                found["files"] += 1
                match self._read_document(path):
                    case {"tenant": str(tenant), "stream": str(stream), "version": int(known)}:
                        found["lagging"] += known != version(tenant, stream)
                    case _:
                        found["edited"] += 1
        return found

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _backup(self, name: str) -> Path:
        return self.folder / f"{name}.json.bak"

    def _read_bytes(self, path: Path, last: int | None = None) -> bytes | None:
        """Return a file's content, or its last bytes; None if it is missing or a link."""
        if not path.is_file() or path.is_symlink():
            return None
        # Another process may remove it now.
        with self._error_translator, contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if last is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - last))
            return file.read()
        return None

    def _read_document(self, path: Path) -> dict[str, Json] | None:
        data = self._read_bytes(path)
        return None if data is None else decode_document(data)


_conforms: type[ReadableDocuments] = FileDocuments
