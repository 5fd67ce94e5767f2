"""Restores a backup into an empty store of any backend."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from limpet import errors
from limpet.admin import migrate
from limpet.admin.log import Progress
from limpet.admin.migrate import Migrated
from limpet.memory import index_store
from limpet.stores import store_copy, urls
from limpet.stores.port import Store
from limpet.wiring.store_opener import open_store, sqlite_path


def restore(backup: str | Path, target: str | Path, progress: Progress, *, verify: bool = True) -> Migrated:
    """Put what a backup holds into a store that is empty, or not there yet; return what came.

    Onto a file of SQLite the backup is copied as it is, and what the list of erasures beside the target names is erased
    again; it is there only when all of that is done and checked. Into any other store its log is copied. Broken off,
    repeat it. Raises InvalidRequest if something is there.
    """
    path = sqlite_path(target)
    with closing(open_store(backup)) as source:
        if path is not None and (put := _restore_file(source, path, progress, verify=verify)) is not None:
            return put
        with closing(open_store(target)) as store:
            _check_empty(source, store, urls.without_password(backup), urls.without_password(target))
            return migrate.migrate(source, store, progress, verify=verify, follow=False)


def abandon_copy(target: str | Path, tenants: Sequence[str], progress: Progress) -> list[str]:
    """Open what came of a copy that nobody will go on with: see `migrating.give_up`."""
    with closing(open_store(target)) as store:
        return migrate.abandon_copy(store, tenants, progress)


def _check_empty(source: Store, store: Store, backup: str, shown: str) -> None:
    """Raise InvalidRequest unless a store has nothing, or what an earlier try has brought.

    One that was broken off near its end may have opened some tenants already: whether these are still the backup's, the copy finds out.
    """
    there = store.tenants()
    begun = any(store_copy.is_copy_incomplete(store, tenant) for tenant in there)
    if there and (not begun or set(there) - set(source.tenants())):
        raise errors.InvalidRequest(
            f"{shown} is not empty.",
            hint=f"Restore into a new store.{'' if begun else _merge_hint(source, store, backup, shown)}",
            facts={"exists": shown},
        )


def _merge_hint(source: Store, store: Store, backup: str, shown: str) -> str:
    """Return how what a backup holds comes into a store beside what is there: as it is, or its sessions."""
    tenants = source.tenants()
    if not set(tenants) & set(store.tenants()):
        return f" Its tenants are not there yet, and can be added: {shlex.join(['limpet', 'migrate', backup, shown])}"
    out = shlex.join(["limpet", "export", "-o", "sessions.jsonl", "--url", backup])
    into = shlex.join(["limpet", "import", "sessions.jsonl", "--url", shown])
    each = " (for each tenant, with --tenant)" if list(tenants) != ["default"] else ""
    return f" To bring its sessions in beside those that are there{each}: {out} && {into}"


def _restore_file(source: Store, path: Path, progress: Progress, *, verify: bool) -> Migrated | None:
    """Copy a backup's file, see to it beside its place that it can be used, then put it there; None if it has no file."""
    from limpet.stores.sqlite import maintenance  # noqa: PLC0415 - only whoever uses SQLite pays for it

    if maintenance.files_of_store(path) and not migrate.copy_store_file(source, path, progress):
        # It may be a log that is on its way there; whoever has a file has refused by now.
        return None
    with store_copy.locked_staging_folder(path) as folder:
        made = maintenance.clear_restore_folder(folder)
        if not migrate.copy_store_file(source, made, progress):
            return None
        maintenance.copy_erased_list(path, made)
        came = _check_restored(made, progress, verify=verify)
        maintenance.place_store(made, path)
    return came


def _check_restored(path: Path, progress: Progress, *, verify: bool) -> Migrated:
    with closing(open_store(path)) as store:
        if verify:
            migrate.verify_copy(store, progress)
        # What memory knew then may have been forgotten since, and be in no list, if no session was left of it.
        index_store.unpair(store)
        ends = {tenant: store.head(tenant) for tenant in store.tenants()}
        heads = {tenant: migrate.link_at(store, tenant, end).hex() for tenant, end in ends.items()}
        events = sum(ends.values())
        return Migrated(
            tenants=len(ends), events=events, copied=events, keys=0, notes=0, passes=0,
            verified=verify, heads=heads, behind={},
        )  # fmt: skip
