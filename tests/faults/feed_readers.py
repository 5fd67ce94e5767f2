"""Readers that follow the feed while others write: each must get every event once and in order, as it comes.

What a reader has passed by never comes to it any more. So an event that is shown later than one after it
(as where positions are given out before the commit) is one that the reader misses for good.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from limpet import errors
from limpet.stores import port
from limpet.wiring import store_opener
from tests.faults import broken_stores

_WAIT_S = 0.2
_PAGE = 50


@dataclass(slots=True)
class Reader:
    """One who follows one tenant's feed with a store of its own, and what it got."""

    url: str
    tenant: str
    bent: str = ""
    links: list[bytes] = field(default_factory=list[bytes])
    faults: list[str] = field(default_factory=list[str])
    interruptions: int = 0
    last: int = 0

    def follow(self, enough: threading.Event) -> None:
        """Read on and on, until nothing is left once it is enough."""
        with contextlib.closing(store_opener.open_store(self.url)) as opened:
            store = broken_stores.bent(self.bent, opened, 1)
            while True:
                # Asked before the look: what was there by then must be got.
                ending = enough.is_set()
                try:
                    more = self._look(store)
                    if ending and not more:
                        return
                    if not more:
                        store.wait(self.tenant, self.last, _WAIT_S)
                except errors.Unavailable:
                    self.interruptions += 1

    def _look(self, store: port.Store) -> bool:
        events = store.feed(self.tenant, after=self.last, limit=_PAGE)
        for event in events:
            if event.position != self.last + 1:
                self.faults.append(f"after {self.last} came {event.position} of {self.tenant}")
            self.last = event.position
            self.links.append(event.link)
        return bool(events)


class Followers:
    """Several readers, each in a thread, from entering on; leaving waits until they have all of it."""

    def __init__(self, url: str, tenants: Sequence[str], each: int, bent: str = "") -> None:
        self.readers = [Reader(url, tenant, bent) for tenant in tenants for _ in range(each)]
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(reader,)) for reader in self.readers]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _run(self, reader: Reader) -> None:
        try:
            reader.follow(self._enough)
        except Exception as error:
            reader.faults.append(f"{type(error).__name__}: {error}")

    def faults(self, url: str) -> list[str]:
        """Compare what each got with what is there; return what is wrong."""
        wrong = [fault for reader in self.readers for fault in reader.faults[:5]]
        with contextlib.closing(store_opener.open_store(url)) as store:
            for tenant in {reader.tenant for reader in self.readers}:
                there = _links(store, tenant)
                wrong += [
                    f"a reader of {tenant} got {len(reader.links):,} of {len(there):,}, or others"
                    for reader in self.readers
                    if reader.tenant == tenant and reader.links != there
                ]
        return wrong


def _links(store: port.Store, tenant: str) -> list[bytes]:
    links: list[bytes] = []
    while page := store.feed(tenant, after=len(links)):
        links += [event.link for event in page]
    return links
