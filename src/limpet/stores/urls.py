"""Store URLs and local paths: parsing and checks that all backends share. Errors and output never show a password."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from limpet import errors

_PASSWORD_OPTION: Final = re.compile(r"([?&](?:ssl)?password=)[^&#]*")
_SIMILARITY_MIN: Final = 0.8
"""From which similarity on, of at most 1, a word counts as a mistyped scheme."""

_SCHEME_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_AUTHORITY_END: Final = re.compile(r"[/?#]")
_LOGIN: Final = re.compile(r"(?P<user>[^/@:\s]*):[^/\\\s]*@(?P<where>[\w.-]+(?::\d+)?(?:/.*)?)")
"""The part after // of a server's URL with a password."""

BUILT_IN_SCHEMES: Final = (
    "sqlite", "files", "volatile", "postgresql", "postgres",
    "redis", "rediss", "redis+cluster", "rediss+cluster",
)  # fmt: skip
"""The schemes of the built-in backends."""

_SCHEMES_WITHOUT_SLASHES: Final = ("sqlite", "files", "volatile")
"""The schemes that may be written without //."""


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case; an empty text for a path."""
    word = url.partition(":")[0].lower()
    return word if "://" in url or (word in _SCHEMES_WITHOUT_SLASHES and ":" in url) else ""


def closest_name(word: str, among: Iterable[str]) -> str:
    """Return the known name that is most similar to a mistyped word; an empty text if there is none."""
    from difflib import get_close_matches  # noqa: PLC0415 - only slips need it

    return next(iter(get_close_matches(word.lower(), list(among), 1, _SIMILARITY_MIN)), "")


def check_path(name: str) -> None:
    """Raise InvalidRequest if a path looks like a mistyped URL."""
    word, colon, _ = name.partition(":")
    if not colon or scheme_of(name):
        return
    if login := _LOGIN.fullmatch(name):
        shown_ = f"{login['user']}:***@{login['where']}"
        raise errors.InvalidRequest(
            f"{shown_} looks like the URL of a server without its beginning.",
            hint=f"Did you mean postgresql://{shown_}, or redis://…? If it is a path, write ./ in front of it.",
        )
    known = closest_name(word, BUILT_IN_SCHEMES) if _SCHEME_WORD.fullmatch(word) else ""
    if known:
        form = f"{known}:" if known in _SCHEMES_WITHOUT_SLASHES else f"{known}://"
        raise errors.InvalidRequest(
            f"{word}: is no beginning of a URL of a store, and is too close to {form} to be one of a path.",
            hint=f"Write {form}…, or ./{word}:… if it is a path.",
        )


def resolve_path(path: str | Path) -> Path:
    """Return the real path, links resolved; raise InvalidRequest if no store can be there.

    SQLite accepts only UTF-8 names.
    """
    try:
        found = local_path(path).resolve()
        str(found).encode()
    except UnicodeEncodeError:
        raise _impossible_path_error("it leads to a folder whose name is not UTF-8") from None
    except RuntimeError as error:
        raise _impossible_path_error(str(error)) from error
    return found


def without_password(url: object) -> str:
    """Return a path or URL for output, without its password."""
    scheme, joint, rest = str(url).partition("://")
    # A password may hold unescaped characters, even an @: so it ends at the last one.
    login, at, where = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    hidden = f"{user}:***@{where}" if at and colon else rest
    return scheme + joint + _PASSWORD_OPTION.sub(r"\1***", hidden) if joint else scheme


def local_path(name: str | Path) -> Path:
    """Return a local path, ~ expanded; raise InvalidRequest if no file can have that name.

    Whether the file exists is not checked.
    """
    try:
        str(name).encode()
        path = Path(name).expanduser()
    except UnicodeEncodeError:
        raise _impossible_path_error("it is not UTF-8, since it has half of a surrogate pair") from None
    except RuntimeError:
        raise _impossible_path_error("what stands after ~ is no user here") from None
    try:
        path.lstat()
    except ValueError:
        raise _impossible_path_error("it has a NUL in it") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _impossible_path_error("it is too long") from None
    return path


def decode_path(path: str) -> str:
    """Return the percent-decoded path of a URL; raise InvalidRequest if it is no text."""
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise _impossible_path_error("what is percent-encoded in it is not UTF-8") from None


def _impossible_path_error(why: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(
        f"this can't be the path of a file: {why}.", hint="Name another one, such as ./state.db."
    )


def split_url(url: str) -> SplitResult:
    """Split a server's URL; raise InvalidRequest, without quoting it, if that is impossible."""
    try:
        url.encode()
        return urlsplit(url)
    except ValueError:
        # The error may quote the password, which is beside the host.
        raise _impossible_host_error() from None


def check_host(host: str) -> None:
    """Raise InvalidRequest for an impossible host name."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise _impossible_host_error() from None


def _impossible_host_error() -> errors.InvalidRequest:
    return errors.InvalidRequest(
        "the host in the URL of the store can't be one.",
        hint="Write a name or an address after //, one of IPv6 in brackets: redis://[::1]:6379.",
    )


def check_credentials(url: str) -> None:
    """Raise InvalidRequest if the end of user or password in a URL is ambiguous."""
    behind = url.partition("://")[2]
    authority = _AUTHORITY_END.split(behind, maxsplit=1)[0]
    path, _, query = behind[len(authority) :].partition("?")
    names = [option.partition("=")[0] for option in query.split("&")]
    if (
        authority.count("@") > 1
        or "@" in path
        or any("@" in name for name in names)
        # After a : this may still be part of a password.
        or ("@" in query and ":" in authority)
    ):
        raise errors.InvalidRequest(
            "it is not clear where the password ends and the host begins in the URL of the store.",
            hint="Percent-encode what is special in a password: @ as %40, : as %3A, / as %2F, ? as %3F, # as %23.",
        )
