"""The log is the truth: everything that is derived from it, made again and put into place, for each tenant at once.

First a log is proved, then every stream is derived from, page by page; what comes of it waits in a file of no
name, so that nothing is held in memory and nothing is changed before all tenants' is there.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import IO

import msgspec

from limpet import errors
from limpet.store import chain, port
from limpet.store.erasure import is_erased
from limpet.store.remote import reading
from limpet.store.remote.deriving import Deriving, Spread
from limpet.store.remote.driver import Change, Driver, Head, Stream
from limpet.store.remote.proving import Proof

TRIES = 5
"""How often a tenant is begun anew because others have written to it meanwhile."""

ROWS = 500
"""Rows of one piece of what was derived."""

SPOOL_BYTES = 16 * 1024 * 1024
"""What waits in memory before it goes to the file."""

_LENGTH = 8

_decoder = msgspec.msgpack.Decoder(Spread)


def spool() -> IO[bytes]:
    """Return where what was derived waits until all of it is there."""
    return tempfile.SpooledTemporaryFile(SPOOL_BYTES)


class Rebuilding:
    """One rebuild of one tenant, made for the head that it has now. What comes of it waits at the end of the spool."""

    def __init__(self, driver: Driver, tenant: str, derive: port.Derive, spool: IO[bytes]) -> None:
        self._driver = driver
        self._derive = derive
        self.tenant = tenant
        self.made = port.Rebuilt()
        self._head = Head()
        self._spool = spool
        self._begin = self._end = 0
        self.done = False

    def steps(self) -> Generator[int]:
        """Prove and derive; yield events gone through at a time. Raises Corrupt if the log is not as it was written."""
        for left in reversed(range(TRIES)):
            try:
                yield from self._steps()
            except errors.Corrupt:
                # What others have erased in the middle of it is no damage.
                if not left or self._driver.head(self.tenant) == self._head:
                    raise
            else:
                return

    def _steps(self) -> Generator[int]:
        proof = Proof(self._driver, self.tenant)
        self._head, self.made = proof.head, port.Rebuilt()
        self._begin = self._spool.seek(0, os.SEEK_END)
        yield from proof.log()
        refuse(proof.faults)
        piece = Spread([], [], [])
        for stream in proof.streams():
            piece.take(self._derived(self.tenant, stream, proof.hashes))
            if len(piece) >= ROWS:
                self._put(piece)
                piece = Spread([], [], [])
            yield stream.version - stream.first + 1
        self._put(piece)
        self._count(tenants=1)
        self._end = self._spool.tell()

    def finish(
        self, turn: Callable[[], AbstractContextManager[bool]], doubt: Callable[[list[str]], None]
    ) -> Generator[int]:
        """Put it all into place, then it is `done`. If others have written meanwhile, it is begun anew: yields as `steps`.

        In a turn, in which all that is known is doubted; where it was outrun every time, the last proof is in one, too.
        """
        for left in reversed(range(TRIES)):
            with turn():
                if not left:
                    yield from self.steps()
                # Told to nobody here: the next turn has to hear of it.
                doubt([self.tenant])
                self.done = self._driver.replace({self.tenant: self._head}, self._pieces())
            if self.done:
                return
            if left > 1:
                yield from self.steps()

    def _derived(self, tenant: str, stream: Stream, hashes: set[bytes]) -> Spread:
        events, spread = stream.version - stream.first + 1, Spread([], [], [])
        if not is_erased(stream.name):
            deriving = Deriving(self._driver, tenant, stream, stream.name)
            blobs = functools.partial(reading.blobs, self._driver, tenant)
            spread = deriving.spread(self._derive(stream.name, deriving.events(), blobs))
        refuse([chain.missing_blob(h, at) for at, h in spread.uses if h not in hashes])
        self._count(
            events=events, streams=1, claims=len(spread.claims), projections=len(spread.projections)
        )
        return spread

    def _count(self, **more: int) -> None:
        made = {name: getattr(self.made, name) + count for name, count in more.items()}
        self.made = msgspec.structs.replace(self.made, **made)

    def _put(self, piece: Spread) -> None:
        if len(piece):
            data = msgspec.msgpack.encode(piece)
            self._spool.write(len(data).to_bytes(_LENGTH, "big") + data)

    def _pieces(self) -> Iterator[Change]:
        self._spool.seek(self._begin)
        while self._spool.tell() < self._end:
            length = int.from_bytes(self._spool.read(_LENGTH), "big")
            piece = _decoder.decode(self._spool.read(length))
            yield Change(
                tenant=self.tenant,
                before=self._head,
                after=self._head,
                claims=tuple(piece.claims),
                uses=tuple(piece.uses),
                projections=tuple(piece.projections),
            )


def together(one: port.Rebuilt, other: port.Rebuilt) -> port.Rebuilt:
    """Return what two rebuilds made."""
    fields = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return port.Rebuilt(*map(sum, fields))


def refuse(faults: list[str]) -> None:
    """Raise Corrupt if there are faults."""
    if faults:
        raise errors.Corrupt(
            f"the store is damaged: {faults[0]}",
            hint="Nothing was changed. `limpet verify` lists all damage; a backup can replace it.",
            facts={"faults": len(faults)},
        )
