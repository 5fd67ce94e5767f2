"""Resolves the store, session, frame, suspension or tool that the arguments of a command name.

Opens the store; reading a store never creates one. An id may be shortened to a unique prefix, or
replaced by @last or @last~2. An unknown or ambiguous reference raises CommandFailure.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limpet import errors, limits
from limpet.cli import exit_codes, hints, output
from limpet.core.values.validation import checked_id
from limpet.stores import urls

if TYPE_CHECKING:
    from limpet.cli.options import CommonOptions
    from limpet.core.values.frame_state import Frame, Suspension, ToolRun
    from limpet.core.values.validation import Json
    from limpet.sessions.manager import Session
    from limpet.wiring import Limpet


DEFAULT_STORE = "state.db"
NO_STORE_CODE = "no_store"
"""The code of the problem that no store exists at a path or URL."""


def resolve_store(given: str | None) -> str:
    """Return the path or URL of the store: the given one, else LIMPET_URL, else ./state.db if it exists."""
    if given is not None and not given:
        raise exit_codes.usage_failure(
            "the name of the store is empty.",
            "Name a store: --url path/to/state.db",
            "A shell variable in the command may be unset. Nothing was opened.",
            "no_target",
        )
    chosen = given or os.environ.get("LIMPET_URL")
    if chosen:
        return chosen
    if Path(DEFAULT_STORE).exists():
        return DEFAULT_STORE
    raise exit_codes.usage_failure(
        "no store was named.",
        f"Name a store (--url path/to/state.db), or create an example: {_demo_command()}",
        f"LIMPET_URL is not set, and there is no {DEFAULT_STORE} in {Path.cwd()}.",
        "no_target",
    )


def given_store(store: str | None, common: CommonOptions) -> str | None:
    """Return the store from the argument or from --url; raise CommandFailure if both are given and differ."""
    if store is not None and common.url is not None and store != common.url:
        for each in (store, common.url):
            urls.check_path(each)
        named = f"{urls.without_password(store)}, and --url {urls.without_password(common.url)}"
        raise exit_codes.usage_failure(
            f"two stores are named: {named}.", "Name one of them.", "Nothing was opened.", "two_targets"
        )
    return common.url if store is None else store


def store_name(given: str | None) -> str:
    """Return the name of the chosen store for output, without a password."""
    return urls.without_password(resolve_store(given))


@contextlib.contextmanager
def open_store(
    common: CommonOptions,
    store: str | None = None,
    *,
    create: bool = False,
    writes: bool = False,
    opener: Callable[[str], Limpet] | None = None,
) -> Iterator[Limpet]:
    """Open the store of a command. The commands that an error in the body suggests name the same store.

    `create`: create the store if it is named and does not exist. `writes`: the command may change sessions, so their
    files are written. `opener` replaces `connect`.
    """
    name = given_store(store, common)
    # The driver would log a lost connection, which the command reports itself.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    try:
        checked_id("a tenant's name", common.tenant)
        url = resolve_store(name)
        if opener is not None:
            require_store(url)
        tenant = common.tenant
        with opener(url) if opener else connect(url, tenant=tenant, create=create, writes=writes) as lp:
            _warn_of_unknown_tenant(lp, common, create=create)
            yield lp
    except (exit_codes.CommandFailure, errors.Error) as error:
        same = hints.store_options(name, common.tenant)
        raise exit_codes.CommandFailure(exit_codes.problem_of(error)._replace(store_options=same)) from error


def _warn_of_unknown_tenant(lp: Limpet, common: CommonOptions, *, create: bool) -> None:
    """Print a warning if the store has no such tenant: a typo would look like an empty store."""
    if common.tenant == "default" or common.quiet or create:
        return
    heads: Mapping[str, Json] = lp.admin.status().get("heads") or {}
    known = sorted(heads)
    if common.tenant not in known:
        there = f"it has: {', '.join(known[:5])}{' …' if len(known) > 5 else ''}" if known else "it has none yet"
        print(output.escape_line(f"The store has no tenant {common.tenant}; {there}."), file=sys.stderr)


def connect(url: str, *, tenant: str, create: bool = False, writes: bool = False) -> Limpet:
    """Open a store. It must exist unless `create` is set; session files are written only if `writes` is set."""
    from limpet.wiring import store_opener  # noqa: PLC0415 - as below

    path = store_opener.files_folder(url) or store_file(url)
    if not (create and (path is None or (not path.exists() and path.parent.is_dir()))):
        require_store(url)
    from limpet import wiring  # noqa: PLC0415 - the package is loaded by now; this only names it

    return (wiring.connect if writes else wiring.connect_for_reading)(url, tenant=tenant)


def require_store(url: str) -> None:
    """Raise CommandFailure if no store exists at a path or URL. Creates nothing."""
    urls.check_path(url)
    if urls.scheme_of(url) == "volatile":
        raise exit_codes.usage_failure(
            "volatile: is a store in the memory of one process; a command can't read it.",
            "Name a file: --url path/to/state.db",
            "Each process has its own volatile: store, and a new one is empty.",
            "no_target",
        )
    from limpet.wiring import store_opener  # noqa: PLC0415 - only commands that open a store need it

    path = store_opener.files_folder(url) or store_file(url)
    if path is None:
        if store_opener.exists_on_server(url) is False:
            raise _missing_server_store(url)
        return
    if (path.is_file() and path.stat().st_size) or store_opener.is_files_store(path):
        return
    raise _missing_store(path)


def on_server(given: str | None) -> bool:
    """Whether the chosen store is on a server, which may be unavailable for a while."""
    return urls.scheme_of(resolve_store(given)) not in ("", "sqlite", "files", "volatile")


def store_file(url: str) -> Path | None:
    """Return the file that a path or sqlite: URL names; None for other schemes. Raises InvalidRequest for an invalid URL."""
    scheme = urls.scheme_of(url)
    if scheme == "sqlite":
        from limpet.wiring import store_opener  # noqa: PLC0415 - as above

        return store_opener.sqlite_path(url)
    return None if scheme else urls.local_path(url)


def _missing_store(path: Path) -> exit_codes.CommandFailure:
    folder = path.parent
    if path.is_dir():
        why = f"The path is a folder without a journal. Stores in it: {_stores_in_folder(path)}."
    elif path.is_file():
        why = "The file is empty (0 bytes). Nothing was written to it."
    elif Path(f"{path}-anchor").exists():
        why = "Its anchor file still exists: the store was moved or removed."
    elif folder.is_dir():
        why = f"The file does not exist. Stores in {folder.resolve()}: {_stores_in_folder(folder)}."
    elif files := [above for above in path.parents if above.is_file()]:
        why = f"{files[0]} is a file, not a folder."
    else:
        why = f"The folder {folder} does not exist."
    return exit_codes.failure(
        exit_codes.NOT_FOUND,
        NO_STORE_CODE,
        f"there is no store at {path}.",
        why,
        f"Check the path, or create an example store: {_demo_command()}",
    )


def _missing_server_store(url: str) -> exit_codes.CommandFailure:
    return exit_codes.failure(
        exit_codes.NOT_FOUND,
        NO_STORE_CODE,
        f"there is no store at {urls.without_password(url)}.",
        "The server answers, but has no store of that name. Nothing was created.",
        "Check the database, and ?schema= or ?prefix= in the URL. A program that opens the store creates it, and so does: "
        + hints.command_line("migrate", url, named=DEFAULT_STORE),
    )


def _demo_command() -> str:
    return hints.command_line("demo", "--keep", "night")


def free_path_beside(path: Path) -> Path:
    """Return an unused path beside a path; inside it if it is a folder."""
    path = path / "copy" if path.is_dir() else path
    number = 2
    while (free := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    return free


def _stores_in_folder(folder: Path) -> str:
    """List the stores of a folder. Each has an anchor file."""
    try:
        found = sorted(path.name.removesuffix("-anchor") for path in folder.glob("*-anchor"))
    except OSError:
        return "unknown"
    return ", ".join(found[:5]) + (" …" if len(found) > 5 else "") if found else "none"


_LAST_REFERENCE = re.compile(r"@last(?:~(\d{1,9}))?")
_CANDIDATES_SHOWN = 3


def find_session(lp: Limpet, reference: str) -> Session:
    """Return the session that a reference names; raise CommandFailure if it names none or several."""
    last = _LAST_REFERENCE.fullmatch(reference)
    if last:
        return _nth_last_session(lp, int(last[1] or 0), reference)
    try:
        return lp.sessions.get_session(reference)
    except errors.SessionNotFound:
        return lp.sessions.get_session(_session_id_by_prefix(lp, reference))


def find_session_by_exact_id(lp: Limpet, session_id: str) -> Session:
    """Return the session with exactly this id: without confirmation, a prefix could name another session."""
    try:
        return lp.sessions.get_session(session_id)
    except errors.SessionNotFound as error:
        raise _unknown_session(session_id, "With --yes only a whole id is accepted.") from error


def _nth_last_session(lp: Limpet, back: int, reference: str) -> Session:
    rows = lp.sessions.list_sessions(limit=1, offset=back)
    if rows:
        return lp.sessions.get_session(rows[0]["id"])
    held = lp.admin.status().get("holds", {}).get("session", {})
    raise exit_codes.failure(
        exit_codes.NOT_FOUND,
        errors.SessionNotFound.code,
        f"{reference} names no session.",
        f"The store has {sum(held.values()):,} sessions; @last is the newest session of this tenant.",
        "",
        command=("sessions list",),
    )


def _session_id_by_prefix(lp: Limpet, beginning: str) -> str:
    found: list[str] = []
    seen = 0
    for row in session_rows(lp):
        seen += 1
        if str(row["id"]).startswith(beginning):
            found.append(row["id"])
            if len(found) > _CANDIDATES_SHOWN:
                break
    if len(found) == 1:
        return found[0]
    if not found:
        among = output.quantity(seen, "session")
        raise _unknown_session(beginning, f"None of {among} has an id with that prefix.")
    raise _ambiguous_id(f"{beginning!r} is a prefix of more than one id.", found, ("sessions list",))


def session_rows(lp: Limpet, user_id: str | None = None) -> Iterator[dict[str, Json]]:
    """Yield the listing row of every session of the tenant, read page by page."""
    page = lp.sessions.list_sessions(limits.PAGE_SIZE_MAX, user_id=user_id)
    while True:
        yield from page
        if page.next_cursor is None:
            return
        page = lp.sessions.list_sessions(limits.PAGE_SIZE_MAX, user_id=user_id, cursor=page.next_cursor)


def _unknown_session(reference: str, why: str) -> exit_codes.CommandFailure:
    return exit_codes.failure(
        exit_codes.NOT_FOUND,
        errors.SessionNotFound.code,
        f"there is no session {reference!r}.",
        why,
        "",
        facts={"session": reference},
        command=("sessions list",),
    )


def head_position(lp: Limpet, tenant: str) -> int:
    """Return the position of a tenant's last event."""
    heads: Mapping[str, Mapping[str, int]] = lp.admin.status().get("heads", {})
    return heads.get(tenant, {}).get("position", 0)


ALL_ROWS = sys.maxsize
"""The limit that returns every row."""

_SHORT_ID_CHARS = 12
_ID_HEAD_CHARS = _ID_TAIL_CHARS = 4
_ELLIPSIS = re.compile(r"…|\.\.\.")


def short_ids(ids: Iterable[str], cut: str) -> dict[str, str]:
    """Return the short form of each id: of a long id the head, and as much of the tail as makes it unique."""
    known = list(dict.fromkeys(ids))
    return {id_: output.escape_line(_short_id(id_, known, cut)) for id_ in known}


def _short_id(id_: str, known: Sequence[str], cut: str) -> str:
    if len(id_) <= _SHORT_ID_CHARS:
        return id_
    # The id of a child frame is the id of its root and a number; the number alone identifies nothing.
    head, number = id_[:_ID_HEAD_CHARS], len(id_) - len(id_.partition(".")[0])
    for size in range(_ID_TAIL_CHARS + number, len(id_) - _ID_HEAD_CHARS):
        tail = id_[-size:]
        if sum(one.startswith(head) and one.endswith(tail) for one in known) == 1:
            return f"{head}{cut}{tail}"
    return id_


def find_frame(lp: Limpet, reference: str) -> Frame:
    """Return the frame that a reference names, open or closed."""
    if not _LAST_REFERENCE.fullmatch(reference):
        with contextlib.suppress(errors.FrameNotFound):
            return lp.index.get_frame(reference)
    rows = all_frames(lp)
    return lp.index.get_frame(match_id(reference, [row.frame_id for row in rows], "frame"))


def all_frames(lp: Limpet) -> list[Frame]:
    """Return the frames of a tenant, open and closed, newest first."""
    rows = lp.index.list_frames(open_only=False, limit=ALL_ROWS)
    return sorted(rows, key=lambda row: (row.created_us, row.frame_id), reverse=True)


def find_suspension(lp: Limpet, reference: str) -> Suspension:
    """Return the suspension that a reference names, waiting or ended."""
    if not _LAST_REFERENCE.fullmatch(reference):
        with contextlib.suppress(errors.SuspensionNotFound):
            return lp.index.get_suspension(reference)
    rows = lp.index.list_suspensions(waiting=False, limit=ALL_ROWS)
    found = match_id(reference, [row.suspension_id for row in rows], "suspension")
    return lp.index.get_suspension(found)


def find_tool(of: Frame, reference: str) -> ToolRun:
    """Return the tool in progress that a reference names: by its id, or by its name if that is unique in the frame."""
    by_name = [one for one in of.tools if one.name == reference]
    if len(by_name) == 1:
        return by_name[0]
    found = match_id(reference, [one.tool_id for one in of.tools], "tool", of.frame_id)
    return next(one for one in of.tools if one.tool_id == found)


def session_id_or_reference(lp: Limpet, reference: str | None) -> str | None:
    """Return the id of the session that a reference names; the reference itself if the store has no such session."""
    if reference is None:
        return None
    try:
        return find_session(lp, reference).id
    except exit_codes.CommandFailure as failure:
        if failure.problem.exit != exit_codes.NOT_FOUND or _LAST_REFERENCE.fullmatch(reference):
            raise
        return reference


def match_id(reference: str, ids: Sequence[str], noun: str, within: str = "") -> str:
    """Return the id that a reference names; `ids` has the newest first. Raise CommandFailure unless exactly one matches."""
    last = _LAST_REFERENCE.fullmatch(reference)
    if last:
        back = int(last[1] or 0)
        if back < len(ids):
            return ids[back]
        raise _unknown_id(reference, len(ids), noun, within)
    found = [id_ for id_ in ids if _matches_reference(reference, id_)]
    if reference in found:
        return reference
    if len(found) == 1:
        return found[0]
    if not found:
        raise _unknown_id(reference, len(ids), noun, within)
    command = _LIST_COMMANDS.get(noun, ("frames show",))
    raise _ambiguous_id(f"{reference!r} names more than one {noun}.", found, command, within)


def _matches_reference(reference: str, id_: str) -> bool:
    head, *tails = _ELLIPSIS.split(reference, maxsplit=1)
    fits = id_.startswith(head) and len(id_) >= len(head) + sum(map(len, tails))
    return fits and all(id_.endswith(tail) for tail in tails) if tails else id_.startswith(head)


_LIST_COMMANDS = {"frame": ("frames list", "--all"), "suspension": ("suspensions list", "--all")}


def _ambiguous_id(
    what: str, found: Sequence[str], command: Sequence[str], subject: str = ""
) -> exit_codes.CommandFailure:
    more = " and more" if len(found) > _CANDIDATES_SHOWN else ""
    why = f"It could be {', '.join(found[:_CANDIDATES_SHOWN])}{more}."
    then = "Give more of the id, or list them:"
    return exit_codes.failure(exit_codes.USAGE, "ambiguous_id", what, why, then, command=command, subject=subject)


def _unknown_id(reference: str, seen: int, noun: str, within: str) -> exit_codes.CommandFailure:
    kind = {"suspension": errors.SuspensionNotFound, "tool": errors.ToolNotFound}
    where = f" in progress of {within}" if within else ""
    return exit_codes.failure(
        exit_codes.NOT_FOUND,
        kind.get(noun, errors.FrameNotFound).code,
        f"there is no {noun} {reference!r}{where}.",
        f"None of {output.quantity(seen, noun)} has a matching id.",
        "",
        facts={noun: reference},
        command=_LIST_COMMANDS.get(noun, ("frames show",)),
        subject=within,
    )
