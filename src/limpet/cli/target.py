"""Which store, session, frame, suspension or tool the arguments of a command name.

Opens the store; reading a store never creates one. An id may be shortened to a unique prefix, or
replaced by @last or @last~2. An unknown or ambiguous reference raises CommandFailure.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limpet import errors
from limpet.cli import again, exits, visible
from limpet.core.values.messages import checked_id
from limpet.stores import urls

if TYPE_CHECKING:
    from limpet.cli.options import Common
    from limpet.wiring import Limpet

DEFAULT = "state.db"
NO_STORE = "no_store"
"""The code of a problem: there is none where it was looked for."""


def choose(given: str | None) -> str:
    """Return the store's path or URL: as given, else LIMPET_URL, else ./state.db if it is there."""
    if given is not None and not given:
        raise exits.Failure(
            exits.Problem(
                exits.USAGE,
                "no_target",
                "the store that was named has an empty name.",
                "A variable may be unset where it is used. Nothing was opened.",
                "Name one: --url path/to/state.db",
            )
        )
    chosen = given or os.environ.get("LIMPET_URL")
    if chosen:
        return chosen
    if Path(DEFAULT).exists():
        return DEFAULT
    raise exits.Failure(
        exits.Problem(
            exits.USAGE,
            "no_target",
            "no store was named.",
            f"LIMPET_URL is not set, and there is no {DEFAULT} in {Path.cwd()}.",
            f"Name one (--url path/to/state.db), or make one to look at: {_demo()}",
        )
    )


def given(store: str | None, common: Common) -> str | None:
    """Return the store that a command was given, before its options or among them; raise Failure for two."""
    if store is not None and common.url is not None and store != common.url:
        for each in (store, common.url):
            urls.check_path(each)
        raise exits.Failure(
            exits.Problem(
                exits.USAGE,
                "two_targets",
                f"two stores are named: {urls.without_password(store)}, and --url {urls.without_password(common.url)}.",
                "Nothing was opened.",
                "Name one of them.",
            )
        )
    return common.url if store is None else store


def named(given: str | None) -> str:
    """Return what people are told of the store that is chosen: never a password."""
    return urls.without_password(choose(given))


@contextlib.contextmanager
def opened(
    common: Common,
    store: str | None = None,
    *,
    create: bool = False,
    writes: bool = False,
    opener: Callable[[str], Limpet] | None = None,
) -> Iterator[Limpet]:
    """Yield the store that a command names; errors then know how to lead back to it.

    `create`: one that was named and is not there is made. `writes`: sessions may change, so their files are written.
    `opener`: whoever opens it otherwise than all others do.
    """
    name = given(store, common)
    on = again.on(name, common.tenant)
    # What it says of a connection that was lost we say ourselves.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    try:
        checked_id("a tenant's name", common.tenant)
        url = choose(name)
        if opener is not None:
            must_exist(url)
        tenant = common.tenant
        with (
            opener(url)
            if opener
            else connect(url, tenant=tenant, create=create, writes=writes) as lp
        ):
            _tell_of_tenants(lp, common, create=create)
            yield lp
    except exits.Failure as failure:
        raise exits.Failure(failure.problem._replace(on=on)) from failure
    except errors.Error as error:
        raise exits.Failure(exits.of_error(error)._replace(on=on)) from error


def _tell_of_tenants(lp: Limpet, common: Common, *, create: bool) -> None:
    """Say on stderr that a tenant that was named is not there: a slip looks like an empty store otherwise."""
    if common.tenant == "default" or common.quiet or create:
        return
    known = sorted(tenants(lp))
    if common.tenant not in known:
        there = (
            f"there are: {', '.join(known[:5])}{' …' if len(known) > 5 else ''}"
            if known
            else "there is none yet"
        )
        print(
            visible.line(f"There is no tenant {common.tenant} in this store; {there}."),
            file=sys.stderr,
        )


def tenants(lp: Limpet) -> Sequence[str]:
    """Return the tenants of a store that have events."""
    return list(lp.admin.status().get("heads") or ())


def connect(url: str, *, tenant: str, create: bool = False, writes: bool = False) -> Limpet:
    """Open the store, which must exist already unless it may be created. Files of sessions are left unless it `writes`."""
    from limpet.wiring import store_schemes  # noqa: PLC0415 - as below

    path = store_schemes.files_folder(url) or file_of(url)
    if not (create and (path is None or (not path.exists() and path.parent.is_dir()))):
        must_exist(url)
    from limpet import wiring  # noqa: PLC0415 - the package is loaded by now; this only names it

    return (wiring.connect if writes else wiring.connect_for_reading)(url, tenant=tenant)


def must_exist(url: str) -> None:
    """Raise Failure if there is no store where a path or a URL says. Looking makes none."""
    urls.check_path(url)
    if urls.scheme_of(url) == "volatile":
        raise exits.Failure(
            exits.Problem(
                exits.USAGE,
                "no_target",
                "volatile: names a store in the memory of one process; there is nothing to look at.",
                "Another process can't reach it, and a new one would be empty.",
                "Name a file: --url path/to/state.db",
            )
        )
    from limpet.wiring import store_schemes  # noqa: PLC0415 - only who opens a store pays for it

    path = store_schemes.files_folder(url) or file_of(url)
    if path is None:
        if store_schemes.exists_on_server(url) is False:
            raise exits.Failure(_nowhere(url))
        return
    if (path.is_file() and path.stat().st_size) or store_schemes.is_files_store(path):
        return
    raise exits.Failure(_missing(path))


def is_server(given: str | None) -> bool:
    """Whether the store that is chosen is on a server, which may go and come back."""
    return urls.scheme_of(choose(given)) not in ("", "sqlite", "files", "volatile")


def file_of(url: str) -> Path | None:
    """Return the file that a path or sqlite: URL names; None for other schemes. Raises InvalidRequest for a slip."""
    scheme = urls.scheme_of(url)
    if scheme == "sqlite":
        from limpet.wiring import store_schemes  # noqa: PLC0415 - as above

        return store_schemes.sqlite_path(url)
    return None if scheme else urls.local_path(url)


def _missing(path: Path) -> exits.Problem:
    folder = path.parent
    if path.is_dir():
        why = f"It is a folder without a journal. Stores in it: {_stores(path)}."
    elif path.is_file():
        why = "The file is empty (0 bytes). Nothing was written to it."
    elif Path(f"{path}-anchor").exists():
        why = "Its anchor is still there: the store itself was moved or removed."
    elif folder.is_dir():
        why = f"There is no such file. Stores in {folder.resolve()}: {_stores(folder)}."
    elif files := [above for above in path.parents if above.is_file()]:
        why = f"{files[0]} is a file, and no folder."
    else:
        why = f"There is no folder {folder}."
    return exits.Problem(
        exits.NOT_FOUND,
        NO_STORE,
        f"there is no store at {path}.",
        why,
        f"Check the path, or make a store to look at: {_demo()}",
    )


def _nowhere(url: str) -> exits.Problem:
    return exits.Problem(
        exits.NOT_FOUND,
        NO_STORE,
        f"there is no store at {urls.without_password(url)}.",
        "The server answers, but has no store by that name. Nothing was made.",
        "Check the database, and ?schema= or ?prefix= in the URL. One is made by a program that opens it, or by: "
        + again.command("migrate", url, named=DEFAULT),
    )


def _demo() -> str:
    return again.command("demo", "--keep", "night")


def beside(path: Path) -> Path:
    """Return a name beside a path that nothing has yet; within it, if it is a folder."""
    path = path / "copy" if path.is_dir() else path
    number = 2
    while (free := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    return free


def _stores(folder: Path) -> str:
    """Name the stores of a folder, known by their anchors."""
    try:
        found = sorted(path.name.removesuffix("-anchor") for path in folder.glob("*-anchor"))
    except OSError:
        return "unknown"
    return ", ".join(found[:5]) + (" …" if len(found) > 5 else "") if found else "none"
