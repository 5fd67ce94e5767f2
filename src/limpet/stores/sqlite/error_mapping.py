"""The mapping from SQLite and operating system errors to Limpet errors. The cause is kept."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import TracebackType

import apsw

from limpet import errors

DRIVER_ERRORS = (apsw.Error, OSError, UnicodeDecodeError)
"""What SQLite and the system raise."""

_CHECKSUM_ERROR_CODES = frozenset({apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS})


class ErrorTranslator:
    """A context manager that turns whatever SQLite raises in its body into a Limpet error."""

    def __init__(self, explain: Callable[[Exception], errors.Error]) -> None:
        self._to_error = explain

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and isinstance(error, DRIVER_ERRORS):
            raise self._to_error(error) from error


def translator(path: str) -> ErrorTranslator:
    """Translate what happens to the store at a path."""
    return ErrorTranslator(lambda error: to_error(error, path))


def to_error(error: Exception, path: str) -> errors.Error:
    """Return our error for one of SQLite's or the system's."""
    facts = {"path": path}
    match error:
        case apsw.FullError():
            return errors.StoreFull(facts=facts)
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError() | PermissionError():
            return errors.StoreReadOnly(
                f"{path} can't be written.", hint="Check the permissions of the file and its folder.", facts=facts
            )
        case apsw.BusyError() | apsw.LockedError():
            return errors.StoreBusy(f"another program holds a lock on {path}.", hint="Close it and retry.", facts=facts)
        case apsw.ConnectionClosedError():
            return errors.EngineClosed()
        case (
            apsw.CorruptError()
            | apsw.NotADBError()
            | apsw.FormatError()
            | apsw.SQLError()
            | UnicodeDecodeError()
            | apsw.ConstraintError()
            | apsw.SchemaChangeError()
            | apsw.MismatchError()
        ):
            return _corrupt_error(path, str(error))
        case apsw.IOError() if is_checksum_error(error):
            found = _corrupt_error(path, "a page's checksum does not match")
            found.facts["checksums"] = False
            return found
        case OSError() if error.errno == errno.EROFS:
            return errors.StoreReadOnly(
                f"{path} can't be written: its file system is read-only.",
                hint="Mount it for writing, or choose another place.",
                facts=facts,
            )
        case OSError() if error.errno == errno.ENOSPC:
            return errors.StoreFull(facts=facts)
        case _:
            return errors.Unavailable(f"{path} can't be used now: {error}.", facts=facts)


def unknown_outcome_error(why: str) -> errors.Unavailable:
    """Return the error for a write that may have taken place, or may still."""
    return errors.Unavailable(
        f"{why}; whether the write holds is unknown.",
        hint="Retry with the same key or the same message ids: it has one effect.",
    )


def is_checksum_error(error: apsw.IOError) -> bool:
    """Whether a page was read whose checksum does not match."""
    return getattr(error, "extendedresult", 0) in _CHECKSUM_ERROR_CODES


def _corrupt_error(path: str, why: str) -> errors.Corrupt:
    return errors.Corrupt(
        f"{path} is damaged: {why}.",
        hint="Nothing was changed. `limpet verify` says how far it goes; a backup can replace it.",
        facts={"path": path},
    )
