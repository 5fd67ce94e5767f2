"""The file: read without a lock, since it is only ever replaced whole; changed under one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Generator
from pathlib import Path

import msgspec

from limpet import errors
from pocket.books import Everything

_decoder = msgspec.msgpack.Decoder(Everything)


class PocketFile:
    """One file of one store object, for many threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.RLock()
        self._seen: tuple[int, ...] = ()
        self._now = Everything()

    def read(self) -> Everything:
        """Return what the file has now. Nobody changes what this returns: a change begins with a fresh look."""
        with self._mutex:
            try:
                found = self.path.stat()
                seen = (found.st_ino, found.st_mtime_ns, found.st_size)
                if seen != self._seen:
                    self._now = _decoder.decode(self.path.read_bytes())
                    self._seen = seen
            except FileNotFoundError:
                self._now, self._seen = Everything(), ()
            except msgspec.MsgspecError as error:
                raise errors.Corrupt(f"{self.path} can't be read.") from error
            except OSError as error:
                raise errors.Unavailable(f"{self.path} can't be read: {error}") from error
            return self._now

    @contextlib.contextmanager
    def changing(self) -> Generator[Everything]:
        """What the file has, to be changed; written and synced when the body ends, unless it raises."""
        with self._mutex, self._locked():
            self.read()
            # Whoever reads meanwhile has the old one; a body that raises leaves nothing behind.
            fresh = _decoder.decode(msgspec.msgpack.encode(self._now))
            yield fresh
            self._write(msgspec.msgpack.encode(fresh))

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        lock = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, data: bytes) -> None:
        new = f"{self.path}.new"
        try:
            with open(new, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(new).replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            # It may be there or not: whoever retries with the same key has one effect.
            raise errors.Unavailable(f"{self.path} can't be written: {error}") from error
