"""Crash images: what the disk may hold if the power fails after an operation.

The model of the disk is strict. A file's synced bytes are there. Of what was written since its
last sync, any subset of sectors may be there, in any order, each file for itself. A new name, a
rename or a deletion is sure only once its directory has been synced; directory operations keep
their order, as every journalling file system does. Directories themselves are there from the start.

An image is named by a `Cut`: after which operation, and a seed that decides what survived. The
same log, operation and seed always give the same bytes.
"""

from __future__ import annotations

import hashlib
import posixpath
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.faults.oplog import Kind, Op

SECTOR = 512
Image = Mapping[str, bytes]


@dataclass(slots=True)
class _File:
    """One inode: what a sync has made sure, and what came after."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Op] = field(default_factory=list)

    def sync(self) -> None:
        for op in self.pending:
            _apply(self.durable, op)
        self.pending.clear()


@dataclass(slots=True)
class Disk:
    """Directories on a disk with a volatile cache, fed with operations in order."""

    files: dict[int, _File] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    renames: list[tuple[str | None, str | None, int]] = field(default_factory=list)

    def feed(self, op: Op) -> None:
        """Take one operation."""
        match op.kind:
            case Kind.CREATE:
                self._create(op)
            case Kind.WRITE | Kind.TRUNCATE:
                self.files[op.inode].pending.append(op)
            case Kind.SYNC:
                self.files[op.inode].sync()
            case Kind.DELETE:
                self.renames.append((op.data.decode(), None, 0))
            case Kind.RENAME:
                old, new = op.data.decode().split("\0")
                self.renames.append((old, new, 0))
            case Kind.DIRSYNC | Kind.NOTE:
                pass
        if op.kind is Kind.DIRSYNC or op.flag:
            self._sync_folder(self._folder(op))

    def _folder(self, op: Op) -> str:
        """The folder that an operation has brought to the disk."""
        if op.kind is Kind.DIRSYNC:
            return op.data.decode()
        if op.kind is Kind.DELETE:
            return posixpath.dirname(op.data.decode())
        names = {inode: name for name, inode in self._names(len(self.renames)).items()}
        return posixpath.dirname(names.get(op.inode, ""))

    def _sync_folder(self, folder: str) -> None:
        """Make sure what happened to names in one folder; no name goes from one to another."""
        waiting = self.renames
        self.renames = [each for each in waiting if _folder_of(each) == folder]
        self.names = self._names(len(self.renames))
        self.renames = [each for each in waiting if _folder_of(each) != folder]

    def _create(self, op: Op) -> None:
        name = op.data.decode()
        if self._names(len(self.renames)).get(name) == op.inode:
            return  # two processes that opened it at once both say they made it
        self.files[op.inode] = _File()
        self.renames.append((None, name, op.inode))

    def _names(self, count: int) -> dict[str, int]:
        names = dict(self.names)
        for old, new, inode in self.renames[:count]:
            target = inode if old is None else names.pop(old, 0)
            if new is not None and target:
                names[new] = target
        return names

    def image(self, cut: Cut) -> Image:
        """One possible content of the directory after a power cut now."""
        rng = random.Random(cut.seed)
        count = {"none": 0, "all": len(self.renames)}.get(cut.style, rng.randint(0, len(self.renames)))
        return {
            name: _survivor(self.files[inode], _style(cut.style, rng), rng)
            for name, inode in sorted(self._names(count).items())
        }


def _folder_of(rename: tuple[str | None, str | None, int]) -> str:
    return posixpath.dirname(rename[0] or rename[1] or "")


def _apply(content: bytearray, op: Op) -> None:
    if op.kind is Kind.TRUNCATE:
        _resize(content, op.offset)
        return
    _resize(content, max(len(content), op.offset))
    content[op.offset : op.offset + len(op.data)] = op.data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _tear(op: Op, rng: random.Random) -> Iterator[Op]:
    """Some of the sectors of a write."""
    if op.kind is Kind.TRUNCATE:
        return
    edge = op.offset - op.offset % SECTOR
    keep = rng.random()
    for start in range(edge, op.offset + len(op.data), SECTOR):
        if rng.random() < keep:
            low = max(start, op.offset)
            data = op.data[low - op.offset : start + SECTOR - op.offset]
            yield Op(Kind.WRITE, op.inode, low, data=data)


def _survivor(file: _File, style: str, rng: random.Random) -> bytes:
    content = bytearray(file.durable)
    for op in _surviving(file.pending, style, rng):
        _apply(content, op)
    if style == "hole":
        size = max((op.offset + len(op.data) for op in file.pending), default=0)
        _resize(content, max(len(content), size))
    return bytes(content)


def _point(pending: Sequence[Op], rng: random.Random) -> int:
    """Where a prefix ends: anywhere, but half the time near the end, where the newest writes are."""
    low = max(0, len(pending) - 8) if rng.random() < 0.5 else 0
    return rng.randint(low, len(pending))


def _surviving(pending: Sequence[Op], style: str, rng: random.Random) -> list[Op]:
    match style:
        case "none" | "hole":
            return []
        case "all":
            return list(pending)
        case "prefix":
            return list(pending[: _point(pending, rng)])
        case "torn":
            at = _point(pending, rng)
            return [*pending[:at], *(part for op in pending[at : at + 1] for part in _tear(op, rng))]
        case "subset":
            keep = rng.random()
            return [op for op in pending if rng.random() < keep]
        case _:
            return [part for op in pending for part in _tear(op, rng)]


def _style(style: str, rng: random.Random) -> str:
    return rng.choice(_FILE_STYLES) if style == "mixed" else style


# What may have become of the unsynced writes of a file: nothing arrived; everything; the first
# few; the first few and some sectors of the next; any of them; any sectors of any of them; the
# file's new size and zeros.
_FILE_STYLES = ("none", "all", "prefix", "torn", "subset", "sectors", "hole")


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut: after how many operations, and which of the possible outcomes.

    `style` is one for all files, or `mixed`: each file has its own, which is where writes to
    different files change their order.
    """

    ops: int
    seed: int
    style: str = "mixed"


@dataclass(slots=True)
class Planned:
    """A distinct image, and the first and last cut that can leave it.

    What is there must have been submitted before the first; what was acknowledged before the
    last must be there.
    """

    cut: Cut
    first: int
    last: int


def digest(image: Image) -> bytes:
    """A hash of names and contents."""
    whole = hashlib.blake2b(digest_size=16)
    for name, content in image.items():
        whole.update(f"{name}\0{len(content)}\0".encode())
        whole.update(content)
    return whole.digest()


def render(ops: Sequence[Op], cuts: Sequence[Cut]) -> Iterator[tuple[Cut, Image]]:
    """The images of cuts that are sorted by operation, built in one walk over the log."""
    disk, fed = Disk(), 0
    for cut in cuts:
        for op in ops[fed : cut.ops]:
            disk.feed(op)
        fed = cut.ops
        yield cut, disk.image(cut)


def plan(ops: Sequence[Op], wanted: int, seed: int, *, rounds: int = 64) -> list[Planned]:
    """As many distinct images as wanted, spread over all operations; fewer if there are no more.

    Every round cuts after every operation once, so that no moment is left out, and draws what has
    become of the unsynced writes: mostly `mixed`, else all or none of them everywhere.
    """
    found: dict[bytes, Planned] = {}
    for number in range(rounds):
        if len(found) >= wanted:
            break
        cuts = [_cut(seed, at, number) for at in range(len(ops) + 1)]
        for cut, image in render(ops, cuts):
            known = found.setdefault(digest(image), Planned(cut, cut.ops, cut.ops))
            known.first = min(known.first, cut.ops)
            known.last = max(known.last, cut.ops)
    chosen = random.Random(seed).sample(list(found.values()), min(wanted, len(found)))
    return sorted(chosen, key=lambda planned: planned.cut.ops)


def _cut(seed: int, at: int, number: int) -> Cut:
    text = f"{seed},{at},{number}".encode()
    drawn = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
    return Cut(at, drawn, ("all", "none", "mixed", "mixed", "mixed")[drawn % 5])
