"""A rebuild: what is derived anew lies beside what is there until all is made, and is put into its place at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast

import msgspec

from limpet import errors
from limpet.store.redis import packing, unpacking
from limpet.store.redis.links import Call
from limpet.store.redis.names import Names
from limpet.store.redis.scripts import named
from limpet.store.redis.servers import Servers
from limpet.store.remote import driver

_PART: Final = 500
"""Rows that one script writes or cleans away: nobody else is served meanwhile."""

_DEAD_S: Final = 600
"""A rebuild that was not heard of for so long was left by a process that died; the next one cleans it away."""


class Rebuild:
    """One rebuild of some tenants, each under a number of its own."""

    def __init__(self, servers: Servers, names: Names, before: Mapping[str, driver.Head]) -> None:
        self._servers = servers
        self._names = names
        self._before = before
        self._numbers: dict[str, int] = {}

    def replace(self, derived: Iterable[driver.Change]) -> bool:
        """Make it, and put it into place if no tenant has gone on; False, and nothing is changed, otherwise."""
        try:
            for tenant, head in self._before.items():
                self._clean_leftovers(tenant)
                words = head.position, head.link, head.epoch
                number = unpacking.number(self._script("build_begin", tenant, *words))
                if not number:
                    return False
                self._numbers[tenant] = number
            for change in derived:
                for part in _parts(change):
                    words = self._numbers[change.tenant], packing.part(part)
                    if not self._script("build", change.tenant, *words):
                        return False
            return self._current() and self._swap()
        finally:
            # What was replaced is cleaned away, and so is what was not put into place.
            for tenant, number in self._numbers.items():
                self._clean(tenant, number)

    def _script(self, name: str, tenant: str, *words: bytes | str | int) -> object:
        return self._servers.script(name, self._names.head(tenant), *words)

    def _current(self) -> bool:
        keys = [self._names.head(tenant) for tenant in self._before]
        calls = [Call(key, (b"HMGET", key, b"p", b"l", b"e")) for key in keys]
        heads = [unpacking.head(answer) for answer in self._servers.run(calls)]
        return heads == list(self._before.values())

    def _swap(self) -> bool:
        calls = [self._swapped(tenant, head) for tenant, head in self._before.items()]
        answers = self._servers.run(calls)
        done = [tenant for tenant, answer in zip(self._before, answers, strict=True) if answer]
        for tenant in done:
            del self._numbers[tenant]
            with contextlib.suppress(errors.Unavailable):
                # What is not cleaned away now is by the next rebuild, or the next erasure.
                self._clean_leftovers(tenant)
        return len(done) == len(answers)

    def _swapped(self, tenant: str, head: driver.Head) -> Call:
        words = (
            self._numbers[tenant], head.position, head.link, head.epoch,
            self._names.channel, packing.news(tenant, head.position, self._names.sender),
        )  # fmt: skip
        return Call(self._names.head(tenant), words, named("swap"))

    def _clean_leftovers(self, tenant: str) -> None:
        found = self._script("leftovers", tenant, _DEAD_S)
        for number in cast("list[bytes]", found):
            self._clean(tenant, int(number))

    def _clean(self, tenant: str, number: int) -> None:
        with contextlib.suppress(errors.Unavailable):
            _clean(self._servers, self._names.head(tenant), number)


def clean_every(servers: Servers, head: bytes) -> None:
    """Clean away whatever rebuilds of a tenant, by its head's key, have left or are still making: those stop."""
    builds = head.removesuffix(b"head") + b"builds"
    for number in cast("list[bytes]", servers.command(builds, b"ZRANGE", builds, 0, -1)):
        _clean(servers, head, int(number))


def _clean(servers: Servers, head: bytes, number: int) -> None:
    while servers.script("clean", head, number, _PART):
        pass


def _parts(change: driver.Change) -> Iterator[driver.Change]:
    """Yield what is derived of a change in parts that do not keep others waiting."""
    size = _PART
    fields = ("claims", "uses", "projections", "snapshots")
    longest = max(len(getattr(change, name)) for name in fields)
    for first in range(0, longest, size):
        some = {name: getattr(change, name)[first : first + size] for name in fields}
        yield msgspec.structs.replace(change, **some)
