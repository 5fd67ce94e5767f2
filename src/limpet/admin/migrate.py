"""Migration and backup: copies the log of a store into another store and derives its other rows again.

Positions and chain links are kept. The target's head tells how far a copy has come, so an
interrupted copy is continued. A note in the target marks a tenant as unusable until its copy is
complete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from limpet import errors, limits
from limpet.admin.erasure import decode_hook_calls, encode_hook_calls
from limpet.jobs import tasks, worker
from limpet.runtime import state_cache
from limpet.stores import chain, store_copy
from limpet.stores.chain import is_notice
from limpet.stores.port import RawEvent, Report, Store

if TYPE_CHECKING:
    from limpet.admin.log import Progress

_REBUILD_PASSES: Final = 2
"""How often a rebuild reads each event."""


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a migration: `events` counts the target's events, `copied` those of this run.

    `heads` has the last link of each tenant's log. `behind` counts the source's newer events by tenant:
    stop its writers, and migrate again.
    """

    tenants: int
    events: int
    copied: int
    keys: int
    notes: int
    passes: int
    verified: bool
    heads: Mapping[str, str]
    behind: Mapping[str, int]


def migrate(source: Store, target: Store, progress: Progress, *, verify: bool = True, follow: bool = True) -> Migrated:
    """Copy every tenant of a store into another; return the counts.

    With `follow` events that are written meanwhile are copied, too. Raises Conflict, before anything is written, if
    the target has other events of a tenant; Conflict if another process writes to the target; Corrupt if the source
    is damaged.
    """
    tenants = source.tenants()
    for tenant in tenants:
        store_copy.refuse_incomplete_copy(source, tenant)
        _check_same_log(source, target, tenant)
    moving = _Migration(source, target, progress, verify=verify)
    try:
        passes = moving.run(follow=follow)
        heads = {tenant: _verified_head(source, target, tenant) for tenant in moving.logs}
    except errors.Conflict:
        moving.roll_back()
        raise
    if verify:
        moving.verify()
    # Read while the marks still keep writers out: the target has the copied events, and no others.
    ends = {tenant: target.head(tenant) for tenant in moving.logs}
    late = {tenant: source.head(tenant) - ends.get(tenant, 0) for tenant in source.tenants()}
    moving.marks.unmark_all()
    return Migrated(
        tenants=len(ends), events=sum(ends.values()), copied=moving.copied, keys=moving.keys,
        notes=moving.notes, passes=passes, verified=verify, heads=heads,
        behind={tenant: count for tenant, count in late.items() if count > 0 and follow},
    )  # fmt: skip


def backup(source: Store, target: Path, opener: Callable[[str | Path], Store], progress: Progress) -> None:
    """Copy a store to a new file. A store that is not a file is migrated into a SQLite store beside it first.

    An interrupted backup leaves a folder beside the file, and the next backup to the same file continues it.
    """
    if copy_store_file(source, target, progress):
        return
    if target.exists():
        raise errors.InvalidRequest(
            f"{target} exists already.",
            hint="Name a new file; nothing is ever overwritten.",
            facts={"exists": str(target)},
        )
    with store_copy.locked_staging_folder(target) as part, closing(opener(part / "state.db")) as made:
        _check_same_store(source, made, part)
        migrate(source, made, progress, verify=False, follow=False)
        for done, total in made.backup(str(target)):
            progress(done, total)


def _check_same_store(source: Store, made: Store, part: Path) -> None:
    for tenant in made.tenants():
        if not _has_same_log(source, made, tenant):
            raise errors.Conflict(
                f"{part} has an interrupted backup of another store.",
                hint=f"Name another file; or remove {part}, if that backup is not to be continued.",
                facts={"tenant": tenant, "path": str(part)},
            )


def copy_store_file(source: Store, target: Path, progress: Progress) -> bool:
    """Copy a store's own file; return False, and write nothing, if the store is not a file."""
    try:
        for done, total in source.backup(str(target)):
            progress(done, total)
    except errors.NoBackup:
        return False
    return True


def _check_same_log(source: Store, target: Store, tenant: str) -> None:
    if not _has_same_log(source, target, tenant):
        raise errors.Conflict(
            f"the target has other events of tenant {tenant!r}.",
            hint="Name a target that has none of this tenant, or only a part of the same log.",
            facts={"tenant": tenant, "events": target.head(tenant)},
        )


def _has_same_log(source: Store, copy: Store, tenant: str) -> bool:
    """Whether a copy has nothing but the beginning of the source's log."""
    head = copy.head(tenant)
    return link_at(source, tenant, head) == link_at(copy, tenant, head)


def link_at(store: Store, tenant: str, position: int) -> bytes:
    """Return the link of the event at a position; empty without one."""
    found = store.copy_events(tenant, after=position - 1, limit=1) if position else []
    return found[0].link if found else b""


def _verified_head(source: Store, target: Store, tenant: str) -> str:
    head = target.head(tenant)
    last = link_at(target, tenant, head)
    if head and last != link_at(source, tenant, head):
        # Each page was compared when it was pasted, so another process has written since.
        raise _in_use_error(tenant)
    return last.hex()


def _in_use_error(tenant: str) -> errors.Conflict:
    return errors.Conflict(
        f"another process writes to tenant {tenant!r} of the target.",
        hint="Stop it. Its events stay in the target: then migrate into a store that has none of this tenant.",
        facts={"tenant": tenant},
    )


def abandon_copy(target: Store, tenants: Iterable[str], progress: Progress) -> list[str]:
    """Make the tenants of an abandoned copy usable; return those that were marked as incomplete.

    They have the beginning of the source's log, which is rebuilt and verified first. Raises Corrupt, and the marks
    stay, if the copy ended within an erasure. No copy may be running.
    """
    every = dict.fromkeys((*target.tenants(), *tenants))
    closed = [tenant for tenant in every if store_copy.is_copy_incomplete(target, tenant)]
    if closed:
        state_cache.rebuild_store(target, lambda done: progress(done, done))
        if (pending := target.pending_erasures()) is not None:
            target.scrub(pending, encode_hook_calls(decode_hook_calls(pending)))
        verify_copy(target, progress)
        for tenant in closed:
            store_copy.set_note(target, tenant, store_copy.COPY_NOTE, None)
    return closed


class _Migration:
    """One running migration, of all tenants."""

    def __init__(self, source: Store, target: Store, progress: Progress, *, verify: bool) -> None:
        self._source, self._target = source, target
        self._progress = progress
        self._steps = 1 + _REBUILD_PASSES + verify
        self._done = self._events = 0
        self.logs: dict[str, _TenantLogCopy] = {}
        self.marks = store_copy.CopyMarks(source, target)
        self.copied = self.keys = self.notes = 0

    def run(self, *, follow: bool) -> int:
        """Copy and rebuild until the source has no newer events, or a limit is reached; return the number of rebuilds."""
        rounds, passes = 0, 0
        for tenant in self._source.tenants():
            self.marks.mark(tenant)
        while True:
            self._round()
            rounds += 1
            more = follow and rounds < limits.MIGRATE_ROUNDS_MAX
            if more and self._source_has_grown():
                continue
            # The rebuild takes a while, in which the source may grow again.
            self._rebuild()
            passes += 1
            if not more or not self._source_has_grown():
                return passes

    def _source_has_grown(self) -> bool:
        source, target = self._source, self._target
        return any(source.head(tenant) > target.head(tenant) for tenant in source.tenants())

    def roll_back(self) -> None:
        """Remove the "copy incomplete" marks of tenants that were usable before, and got no events."""
        self.marks.unmark_unchanged(tenant for tenant, log in self.logs.items() if log.has_copied())

    def _round(self) -> None:
        source, target, logs = self._source, self._target, self.logs
        for tenant in source.tenants():
            if tenant not in logs:
                self.marks.mark(tenant)
                _check_same_log(source, target, tenant)
                logs[tenant] = _TenantLogCopy(source, target, tenant)
        self._events = sum(map(source.head, logs))
        before = sum(map(target.head, logs))
        for tenant, log in logs.items():
            # Read before the log's end is looked up: then no note is about an event that is not copied.
            notes = dict(_notes_to_copy(source, tenant))
            for count in log.copy(source.head(tenant)):
                self.copied += count
                self._report(before + self.copied)
            self.notes += self._put_notes(tenant, notes)
            self.keys += self._copy_keys(tenant)

    def _report(self, done: int) -> None:
        self._done = max(self._done, done)
        self._progress(self._done, max(self._done, self._events * self._steps))

    def _put_notes(self, tenant: str, notes: Mapping[str, bytes]) -> int:
        gone = dict.fromkeys(name for name, _ in _notes_to_copy(self._target, tenant) if name not in notes)
        every = {**notes, **gone}
        put = store_copy.set_note
        return sum(put(self._target, tenant, name, value) for name, value in every.items())

    def _copy_keys(self, tenant: str) -> int:
        target, after, copied = self._target, "", 0
        end = target.head(tenant)
        while page := self._source.copy_keys(tenant, after=after, limit=limits.IMPORT_STEP_EVENTS):
            after = page[-1].key
            # A key of later events is copied with them.
            keys = [key for key in page if key.last <= end]
            target.paste(tenant, [], keys=keys)
            copied += len(keys)
        return copied

    def _rebuild(self) -> None:
        before = self._done
        state_cache.rebuild_store(self._target, lambda done: self._report(before + done))
        self._scrub()

    def _scrub(self) -> None:
        """Scrub the target's files, and copy the source's pending hook calls."""
        target, moved = self._target, self.logs
        pending = target.pending_erasures()
        own = (each for each in decode_hook_calls(pending or b"") if each.tenant not in moved)
        # Read after the log: the hooks of an erasure that was copied have run, or are among these calls.
        # The target's own local hooks have not run: here=False.
        came = (each for each in decode_hook_calls(self._source.pending_erasures() or b"") if each.tenant in moved)
        left = encode_hook_calls([*own, *(msgspec.structs.replace(each, here=False) for each in came)])
        if pending is not None or left:
            target.scrub(pending or b"", left)

    def verify(self) -> None:
        before = self._done
        verify_copy(self._target, lambda done, _: self._report(before + done))


def verify_copy(store: Store, progress: Progress) -> None:
    for step in store.verify():
        if not isinstance(step, Report):
            progress(step, step)
        elif not step.ok:
            raise errors.Corrupt(
                f"the copy is damaged: {step.faults[0]}",
                hint="Do not use it. `limpet verify` lists all damage; start again with an empty store.",
                facts={"faults": len(step.faults)},
            )


def _notes_to_copy(store: Store, tenant: str) -> Iterator[tuple[str, bytes]]:
    """Yield the notes of a tenant, without leases and marks, which concern one store only."""
    for name, note in tasks.iter_notes(store, tenant, page_size=limits.IMPORT_STEP_EVENTS):
        if name != store_copy.COPY_NOTE and not name.startswith(worker.LEASE_PREFIX):
            yield name, note.value


class _TenantLogCopy:
    """The running copy of one tenant's log. Erasures of the source since then are repeated in the target."""

    def __init__(self, source: Store, target: Store, tenant: str) -> None:
        self._source, self._target, self._tenant = source, target, tenant
        self._target_head_before = target.head(tenant)
        """The end of an earlier copy, whose events may have been erased in the source since."""
        self._source_head_before = source.head(tenant)
        """The end of the log when this copy began. Events that were erased before come without content."""
        self._last_notice = 0
        """The last notice that a copied, erased event refers to."""
        self._has_pasted = False

    def copy(self, until: int) -> Iterator[int]:
        """Copy events up to a position, or to the end of an erasure behind it; yield the counts of the parts.

        An event that is erased meanwhile comes without content, which is damage unless its notice comes, too.
        """
        source, target, tenant = self._source, self._target, self._tenant
        while (head := target.head(tenant)) < until:
            limit = min(limits.IMPORT_STEP_EVENTS, until - head)
            page = source.copy_events(tenant, after=head, limit=limit)
            if not page:
                raise errors.Corrupt(
                    f"the source lacks the event at position {head + 1:,} of tenant {tenant!r}.",
                    facts={"tenant": tenant, "position": head + 1},
                )
            for part in self._chunks(self._erased_before(page, head)):
                self._paste(*part)
            for part in self._chunks(page):
                self._paste(*part)
                yield len(part[0])
            if self._last_notice > until:
                # An erasure has a notice for each stream: copy all of them, or verify reports damage.
                until = source.head(tenant)

    def has_copied(self) -> bool:
        """Whether events were copied since this copy began, by it or by another copy of the same source."""
        source, target, tenant = self._source, self._target, self._tenant
        has_grown = target.head(tenant) > self._target_head_before
        return self._has_pasted or (has_grown and _has_same_log(source, target, tenant))

    def _paste(self, events: Sequence[RawEvent], blobs: Mapping[bytes, bytes]) -> None:
        try:
            self._target.paste(self._tenant, events, blobs=blobs)
        except errors.Conflict as error:
            raise _in_use_error(self._tenant) from error
        self._has_pasted = True

    def _chunks(self, events: Sequence[RawEvent]) -> Iterator[tuple[list[RawEvent], dict[bytes, bytes]]]:
        part: list[RawEvent] = []
        blobs: dict[bytes, bytes] = {}
        size = 0
        for known in events:
            raw, came = self._with_blobs(known, blobs)
            size += sum(map(len, came.values()))
            blobs |= came
            part.append(raw)
            if raw.erased is not None:
                self._last_notice = max(self._last_notice, raw.erased[0])
            if size >= limits.IMPORT_STEP_BYTES or len(part) >= limits.IMPORT_STEP_EVENTS:
                yield part, blobs
                part, blobs, size = [], {}, 0
        if part:
            yield part, blobs

    def _with_blobs(self, raw: RawEvent, present: Mapping[bytes, bytes]) -> tuple[RawEvent, dict[bytes, bytes]]:
        """Return an event with the blobs that `present` lacks; the erased event, if it was erased since it was read."""
        came: dict[bytes, bytes] = {}
        for _ in range(limits.RETRIES_MAX):
            wanted = [hash_ for hash_ in raw.blobs if hash_ not in present]
            came = self._source.blobs(self._tenant, wanted) if wanted else {}
            if len(came) == len(wanted):
                break
            (now,) = self._source.copy_events(self._tenant, after=raw.position - 1, limit=1)
            if now == raw:
                break
            raw = now
        return raw, came

    def _erased_before(self, page: Sequence[RawEvent], head: int) -> list[RawEvent]:
        """Return the events of the target that the notices of a page erase or redact."""
        notices = [raw for raw in page if is_notice(chain.kind_and_ordinal(raw.header)[0])]
        if any(raw.position > self._source_head_before for raw in notices):
            gone = self._erased_events(head)
        else:
            gone = self._erased_of_old if notices and self._target_head_before else {}
        streams = {raw.number for raw in notices}
        return [raw for number in streams for raw in gone.get(number, ())]

    @functools.cached_property
    def _erased_of_old(self) -> dict[int, list[RawEvent]]:
        return self._erased_events(self._target_head_before)

    def _erased_events(self, until: int) -> dict[int, list[RawEvent]]:
        found: dict[int, list[RawEvent]] = {}
        after = 0
        while after < until:
            limit = min(limits.IMPORT_STEP_EVENTS, until - after)
            events = self._source.copy_events(self._tenant, after=after, limit=limit)
            for raw in events:
                if raw.erased:
                    found.setdefault(raw.number, []).append(raw)
            after += len(events) or until
        return found
