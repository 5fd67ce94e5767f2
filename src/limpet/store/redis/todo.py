"""What erasures left to do: kept with the tenant in one step with the erasure, then gathered for the whole store.

A tenant's keys may lie on another server than the store's list. So an erasure is announced first, and whoever asks
what is pending gathers from the tenants that were announced. What is gathered twice is done twice, which is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from limpet.store.redis import packing, rebuilding, unpacking
from limpet.store.redis.links import Call
from limpet.store.redis.names import Names
from limpet.store.redis.servers import Servers


class Todo:
    """The list of what is pending."""

    def __init__(self, servers: Servers, names: Names) -> None:
        self._servers = servers
        self._names = names

    def announce(self, tenant: str, position: int) -> None:
        """Say that an erasure will be at a position of a tenant, before it is."""
        key = self._names.erasing
        self._servers.command(key, b"SADD", key, _announced(tenant, position), write=True)

    def pending(self) -> bytes | None:
        """Return what erasures left to do, one after the other; None: nothing."""
        entries = self._gathered()
        return b"".join(_todo(entry) for entry in entries) if entries else None

    def _gathered(self) -> list[bytes]:
        announced, key = self._names.erasing, self._names.pending
        look = Call(key, (b"LRANGE", key, 0, -1))
        calls = [Call(announced, (b"SMEMBERS", announced)), look]
        members, entries = cast("list[list[bytes]]", self._servers.run(calls))
        if not members:
            return entries
        for member in sorted(members, key=_order):
            self._gather(member)
        return cast("list[bytes]", self._servers.run([look])[0])

    def _gather(self, member: bytes) -> None:
        position, _, name = member.partition(b" ")
        tenant = unpacking.text(name)
        head, todo = self._names.head(tenant), self._names.base(tenant) + b"todo"
        word, *found = cast("list[bytes]", self._servers.script("take_todo", head, position))
        if word == b"wait":
            return
        if found:
            id_ = position + b"/" + self._names.base(tenant)
            self._servers.script("add_pending", self._names.pending, id_, id_ + b" " + found[0])
            self._servers.command(todo, b"HDEL", todo, position, write=True)
        self._servers.command(self._names.erasing, b"SREM", self._names.erasing, member, write=True)

    def scrub(self, done: bytes, left: bytes, rewrite: Callable[[], None]) -> None:
        """Have files rewritten, then take what was done off the list, but for what is left; what came since stays."""
        before = self._gathered()
        if not before:
            self._set([], [b"left " + left] if left else [])
            return
        # Until it is through, an empty line more is pending.
        begun = [b"scrub \n", *(entry for entry in before if entry != b"scrub \n")]
        self._set(before, begun)
        for head in {head: None for entry in before if (head := _head(entry))}:
            # It may have rows from before the erasure, and is not where that looks.
            rebuilding.clean_every(self._servers, head)
        rewrite()
        # What was done may have been looked at before or after another one was broken off, which left the line.
        pending = b"".join(map(_todo, before)).removeprefix(b"\n")
        rest = left + pending.removeprefix(done.removeprefix(b"\n"))
        self._set(begun, [b"left " + rest] if rest else [])

    def _set(self, before: list[bytes], after: list[bytes]) -> None:
        # If somebody else has set it meanwhile, what they left is right.
        seen, rest = ([packing.raw(each) for each in some] for some in (before, after))
        self._servers.script("set_pending", self._names.pending, packing.pack(seen), packing.pack(rest))  # fmt: skip


def _announced(tenant: str, position: int) -> bytes:
    return b"%d " % position + tenant.encode()


def _order(member: bytes) -> tuple[bytes, int]:
    position, _, tenant = member.partition(b" ")
    return tenant, int(position)


def _head(entry: bytes) -> bytes:
    """Return the key of the head of the tenant that an entry came from; empty if it is of no one tenant."""
    base = entry.partition(b" ")[0].partition(b"/")[2]
    return base + b"head" if base else b""


def _todo(entry: bytes) -> bytes:
    return entry.partition(b" ")[2]
