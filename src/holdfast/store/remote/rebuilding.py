"""The log is the truth: everything that is derived from it, made again and put into place at once.

First the log is proved, then every stream is derived from, page by page; what comes of it waits in a file of no
name, so that nothing is held in memory and nothing is changed before all of it is there.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Generator, Iterator
from typing import IO

import msgspec

from holdfast import errors
from holdfast.store import chain, port
from holdfast.store.erasure import is_erased
from holdfast.store.remote import reading
from holdfast.store.remote.deriving import Deriving, Spread
from holdfast.store.remote.driver import Change, Driver, Head, Stream
from holdfast.store.remote.proving import Proof

TRIES = 5
"""How often it is begun anew because others have written meanwhile."""

ROWS = 500
"""Rows of one piece of what was derived."""

SPOOL_BYTES = 16 * 1024 * 1024
"""What waits in memory before it goes to the file."""

_LENGTH = 8

_decoder = msgspec.msgpack.Decoder(tuple[str, Spread])


def spool() -> IO[bytes]:
    """Return where what was derived waits until all of it is there."""
    return tempfile.SpooledTemporaryFile(SPOOL_BYTES)


class Rebuilding:
    """One rebuild of all tenants, made for the heads that they have now."""

    def __init__(self, driver: Driver, derive: port.Derive, spool: IO[bytes]) -> None:
        self._driver = driver
        self._derive = derive
        self.heads: dict[str, Head] = {}
        self.made = port.Rebuilt()
        self._spool = spool

    def steps(self) -> Generator[int]:
        """Prove and derive; yield events gone through so far. Raises Corrupt if the log is not as it was written."""
        done = 0
        proofs: dict[str, Proof] = {}
        for tenant in self._driver.tenants():
            proof = proofs[tenant] = Proof(self._driver, tenant)
            self.heads[tenant] = proof.head
            for count in proof.log():
                done += count
                yield done
            refuse(proof.faults)
        for tenant, proof in proofs.items():
            piece = Spread([], [], [])
            for stream in proof.streams():
                piece.take(self._derived(tenant, stream, proof.hashes))
                if len(piece) >= ROWS:
                    self._put(tenant, piece)
                    piece = Spread([], [], [])
                done += stream.version - stream.first + 1
                yield done
            self._put(tenant, piece)
            self._count(tenants=1)

    def finish(self) -> bool:
        """Put it all into place; False if others have written meanwhile."""
        return not self.heads or self._driver.replace(self.heads, self._pieces())

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

    def _put(self, tenant: str, piece: Spread) -> None:
        if len(piece):
            data = msgspec.msgpack.encode((tenant, piece))
            self._spool.write(len(data).to_bytes(_LENGTH, "big") + data)

    def _pieces(self) -> Iterator[Change]:
        self._spool.seek(0)
        while length := self._spool.read(_LENGTH):
            tenant, piece = _decoder.decode(self._spool.read(int.from_bytes(length, "big")))
            head = self.heads[tenant]
            yield Change(
                tenant=tenant,
                before=head,
                after=head,
                claims=tuple(piece.claims),
                uses=tuple(piece.uses),
                projections=tuple(piece.projections),
            )


def refuse(faults: list[str]) -> None:
    """Raise Corrupt if there are faults."""
    if faults:
        raise errors.Corrupt(
            f"the store is damaged: {faults[0]}",
            hint="Nothing was changed. `holdfast verify` lists all damage; a backup can replace it.",
            facts={"faults": len(faults)},
        )
