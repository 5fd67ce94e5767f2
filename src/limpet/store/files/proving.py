"""Whether the journal is as it was written, and whether its index has the same events: nothing more, nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from limpet import errors
from limpet.store import chain
from limpet.store.files import applying
from limpet.store.files.folder import Folder
from limpet.store.files.journal import START, Journal
from limpet.store.sqlite import checks


class Proof:
    """One look through a journal: first while others write, then the rest of it in a turn."""

    def __init__(self, journal: Journal, folder: Folder) -> None:
        self._journal = journal
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._point = START
        self._heads: dict[int, tuple[int, str]] = {}
        self._blobs: dict[bytes, bool | None] = {}
        self._seen = 0

    def glance(self) -> Iterator[int]:
        """Yield events checked so far, while others write: whatever seems wrong is left to `run`, which begins anew."""
        try:
            yield from self._run()
        except (errors.Corrupt, errors.NotAStore):
            # Whoever erases writes segments anew and removes blobs, so that this need not be damage.
            self._begin()

    def run(self) -> Iterator[int]:
        """Go on up to the end, in a turn; raise Corrupt unless every line and blob is as written."""
        if not self._journal.has(self._point):
            self._begin()
        yield from self._run()

    def _run(self) -> Iterator[int]:
        for step in self._journal.walk(self._point):
            for event in step.change.events:
                row = applying.row_of(event)
                chain.opened(row, event.stream)
                head = (row.place.position, event.link)
                self._heads[event.tenant] = max(self._heads.get(event.tenant, (0, "")), head)
            for blob in step.change.blobs:
                inline = blob.content.bytes if blob.content else None
                hash_ = bytes.fromhex(blob.sha256)
                self._blobs[hash_] = None if inline is None else chain.is_blob(hash_, inline)
            for _, gone in step.change.dropped_blobs:
                self._blobs.pop(bytes.fromhex(gone), None)
            self._seen += len(step.change.events)
            self._point = step.end
            yield self._seen
        # Of a blob that was brought again the last content counts. Whoever goes on reads those of later lines only.
        blobs, self._blobs = self._blobs, {}
        for hash_, sound in blobs.items():
            if sound is None:
                self._folder.blob(hash_.hex())
            elif not sound:
                raise chain.damaged_blob(hash_)

    def differences(self, connection: apsw.Connection) -> Iterator[str]:
        """Yield in what the index differs from the journal. Both at rest."""
        names = checks.tenants(connection)
        for tenant in sorted(names.keys() | self._heads.keys()):
            head = checks.head(connection, tenant)
            said = self._heads.get(tenant, (0, ""))
            if (head.position, head.link.hex() if head.position else "") != said:
                yield (
                    f"the index ends at position {head.position:,} of {names.get(tenant, 'a tenant')},"
                    f" and the journal at {said[0]:,}, or otherwise."
                )
