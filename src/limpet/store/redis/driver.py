"""The driver: changes applied by one script each, notes compared and set, rebuilds put into place at once.

Read `lua/apply.lua` first, then this, then `servers.py`: what is sent where, and what is never sent twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from limpet import errors
from limpet.core.values.json_values import Json
from limpet.store import port
from limpet.store.redis import packing, unpacking
from limpet.store.redis.guards import Guards
from limpet.store.redis.line import RedisLine
from limpet.store.redis.links import Answer, Call
from limpet.store.redis.names import Names
from limpet.store.redis.news import News
from limpet.store.redis.place import Place
from limpet.store.redis.reading import Reading
from limpet.store.redis.rebuilding import Rebuild
from limpet.store.redis.scripts import named
from limpet.store.redis.servers import Servers
from limpet.store.redis.settings import Settings
from limpet.store.redis.todo import Todo
from limpet.store.remote import driver, marks

_LISTED_MAX: Final = 10_000
_FORGOTTEN: Final = 1_000
"""Keys that one script forgets: nobody else is served meanwhile."""


class RedisDriver(Reading):
    """One server or cluster as one store sees it."""

    def __init__(self, place: Place, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._servers = Servers(place)
        self._names = Names(place.prefix, random(8))
        self._listed: set[tuple[bytes, str]] = set()
        self._note_counts: dict[str, int] = {}
        self._settings = Settings(self._servers)
        self._todo = Todo(self._servers, self._names)
        self._guards = Guards(self._servers, self._names, random)
        self._news = News(self._servers, self._names)

    def check(self) -> None:
        """Refuse a server that can't keep a store, or not as durably as the URL asks, and name the fix."""
        self._settings.check()
        self._settings.check_format(self._names.format)

    def exists(self) -> bool:
        """Whether a store was begun here; refuses a server as `check` does, and writes nothing."""
        self._settings.check()
        keys = (self._names.format, self._names.tenants)
        found = self._servers.run([Call(key, (b"EXISTS", key)) for key in keys])
        return any(unpacking.number(count) for count in found)

    @property
    def durability(self) -> str:
        """What survives once `apply` has returned, as the server's settings are now."""
        return self._settings.durability()

    def apply(self, changes: Sequence[driver.Change]) -> list[driver.Verdict]:
        """Apply changes of different tenants, each by itself; None: it was applied."""
        self._announce(changes)
        answers = self._servers.run([self._applied(change) for change in changes])
        self._hold_still()
        return [_outcome(answer) for answer in answers]

    def line(self) -> RedisLine | None:
        """Return a connection for changes that are sent ahead of answers; none to a cluster, or where a sync is waited for."""
        link = self._servers.only()
        if link is None:
            return None
        return RedisLine(
            link, announce=self._announce, call=self._applied, verdict=_outcome, check=self._hold_still
        )  # fmt: skip

    def _announce(self, changes: Sequence[driver.Change]) -> None:
        self._settings.hold()
        for change in changes:
            self._list(self._names.tenants, change.tenant)
            if change.todo is not None:
                self._todo.announce(change.tenant, change.after.position)

    def _hold_still(self) -> None:
        """It may have gone over a new connection: nothing is acknowledged that is held by less than was asked for.

        Nor is it refused: it is there.
        """
        try:
            self._settings.hold()
        except errors.Error as error:
            raise errors.Unavailable(
                f"it may be done, but not as durably as was asked: {error.message}",
                hint=f"{error.hint} Then retry; with the same key it has one effect.".lstrip(),
                facts=error.facts,
            ) from error

    def _applied(self, change: driver.Change) -> Call:
        told = packing.news(change.tenant, change.after.position, self._names.sender)
        words = packing.change(change), self._names.channel, told, self._guards.token
        return Call(self._names.head(change.tenant), words, named("apply"))

    def _list(self, key: bytes, tenant: str) -> None:
        """Have a tenant listed before it has anything, so that none that has something is ever missing.

        Once by each store, whatever the tenant has: a list that was lost comes back with whoever comes new.
        """
        if (key, tenant) not in self._listed:
            self._servers.command(key, b"SADD", key, tenant, write=True)
            if len(self._listed) >= _LISTED_MAX:
                self._listed.clear()
            self._listed.add((key, tenant))

    def forget_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop keys used before that moment; return how many."""
        count = 0
        while some := unpacking.number(self._script("forget_keys", tenant, before_us, _FORGOTTEN)):
            count += some
        return count

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Compare and set. The version is part of the mark, so it is guessed, and guessed again if it was another."""
        if value is None:
            answer = self._script("put_note", tenant, name, expected, "drop")
            return cast("list[bytes]", answer)[0] == b"yes"
        self._settings.hold()
        self._list(self._names.noted, tenant)
        for _ in range(driver.NOTE_TRIES):
            version = self._note_counts.get(tenant, 0) + 1
            mark = marks.note(tenant, name, port.Note(value, version))
            kept = packing.note(version, value, mark)
            answer = self._script("put_note", tenant, name, expected, "put", version, kept)
            word, *count = cast("list[bytes]", answer)
            if word != b"count":
                if word == b"yes":
                    self._count_note(tenant, version)
                return word == b"yes"
            self._count_note(tenant, unpacking.number(count[0]))
        raise driver.outrun()

    def _count_note(self, tenant: str, count: int) -> None:
        if len(self._note_counts) >= _LISTED_MAX:
            self._note_counts.clear()
        self._note_counts[tenant] = count

    def replace(self, before: Mapping[str, driver.Head], derived: Iterable[driver.Change]) -> bool:
        """Put what changes bring in the place of all that is derived; each tenant whole or not at all."""
        for tenant in before:
            # One that has lost its place in the list gets it back.
            self._servers.command(
                self._names.tenants, b"SADD", self._names.tenants, tenant, write=True
            )
        return Rebuild(self._servers, self._names, before).replace(derived)

    def guard(self, tenant: str, timeout_s: float) -> bool:
        """Try to be the only one among all stores that has a tenant's guard."""
        return self._guards.take(tenant, timeout_s)

    def unguard(self, tenant: str) -> None:
        """Give the guard back, if it is had."""
        self._guards.give_back(tenant)

    def pending(self) -> bytes | None:
        """Return what erasures left to do."""
        return self._todo.pending()

    def scrub(self, done: bytes, left: bytes) -> None:
        """Have every server write its files anew; then set what is pending."""
        self._todo.scrub(done, left, self._settings.rewrite)

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield tenant and position whenever a tenant's feed has gone on, by anybody."""
        return self._news.listen()

    def status(self) -> Mapping[str, Json]:
        """Return facts for people."""
        named_ = self.tenants()
        heads = dict(zip(named_, self._heads(named_), strict=True))
        place = self._servers.place
        keys = [self._names.base(tenant) + b"blobs" for tenant in named_]
        blobs = self._servers.run([Call(key, (b"HLEN", key)) for key in keys])
        return {
            "backend": "redis",
            "store": f"{place.shown}?prefix={place.prefix}",
            "server": place.shown,
            "prefix": self._names.prefix,
            **self._settings.facts(),
            "tenants": len(named_),
            "events": sum(head.position for head in heads.values()),
            "blobs": sum(unpacking.number(count) for count in blobs),
            "holds": cast("Json", self._held(named_)),
            "heads": {
                name: {"position": head.position, "link": head.link.hex()}
                for name, head in heads.items()
            },
        }

    def close(self) -> None:
        """Give back every connection. Closing twice is fine."""
        self._news.close()
        self._servers.close()


def _outcome(answer: Answer) -> driver.Verdict:
    word, *rest = cast("list[bytes]", answer)
    if word == b"moved":
        position, link, epoch = rest
        return driver.Moved(driver.Head(int(position), link, int(epoch)))
    if word == b"taken":
        return driver.Taken()
    return driver.Wanted() if word == b"wanted" else None


_: type[driver.Driver] = RedisDriver
