"""The verbs of the port for the store as a whole: verify, rebuild, erase and scrub, status, backup."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from limpet import errors
from limpet.core.values.json_values import Json
from limpet.store import port, portable
from limpet.store.erasure import Erased, Erasure
from limpet.store.remote import copying, erasing, marks, proving, rebuilding
from limpet.store.remote.driver import Change, Moved, Taken, outrun
from limpet.store.remote.known import Known
from limpet.store.remote.looking import Looking
from limpet.store.remote.reading import LATEST

TRIES = 8
"""How often an erasure is made anew because others have written meanwhile."""


class Upkeep(Looking):
    """What is done to a store as a whole."""

    _giving: copying.Giving
    _known: Known
    _random: Callable[[int], bytes]

    @abstractmethod
    def turn(self) -> AbstractContextManager[bool]: ...
    @property
    @abstractmethod
    def durability(self) -> str: ...

    def verify(self) -> Iterator[int | port.Report]:
        """Check every event, blob, note and derived row; yield events checked so far, the report last."""
        self._check_open()
        yield from proving.verify(self._driver)

    def rebuild(self, derive: port.Derive) -> Generator[int | port.Rebuilt]:
        """Prove all logs and derive from them, then put into place what is derived, tenant by tenant.

        Who writes is held up while it is put into place, and for the last proof of a tenant that was written to every time.
        """
        self._check_open()
        done, made = 0, port.Rebuilt()
        moved: list[str] = []
        with rebuilding.spool() as spool:
            every: list[rebuilding.Rebuilding] = []
            for tenant in sorted({*self._driver.tenants(), *self._driver.adrift()}):
                every.append(rebuilding.Rebuilding(self._driver, tenant, derive, spool))
                for count in every[-1].steps():
                    done += count
                    yield done
            for going in every:
                for _ in going.finish(self.turn, self._known.doubt):
                    yield done
                made = rebuilding.together(made, going.made)
                moved += [] if going.done else [going.tenant]
        if moved:
            raise errors.Conflict(
                f"others wrote to {len(moved):,} tenant(s) every time while they were rebuilt; they are as they were.",
                hint="Retry when fewer write.",
                facts={"tenant": moved[0]},
            )
        yield made

    def erase(self, erasure: Erasure, derive: port.Derive) -> Erased | port.Stale:
        """Take payloads out of the log in one change."""
        with self.turn():
            # Told to nobody here: the next turn has to hear of it.
            self._known.doubt((erasure.tenant,))
            for _ in range(TRIES):
                going = erasing.Going(self._driver, erasure, derive, self._random)
                if (stale := going.stale()) is not None:
                    return stale
                change, gone = going.change()
                if self._applied(change):
                    return gone
            return port.Stale("", self._driver.head(erasure.tenant).position)

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """See to it that the server's files have nothing of what was erased; then nothing is pending.

        It may wait for long, for readers, and rests on nothing that a commit changes: so the turn is not held.
        """
        self._check_open()
        self._driver.scrub(done, left)

    def forget_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop idempotency keys used before that moment; return how many."""
        with self.turn():
            return self._driver.forget_keys(tenant, before_us=before_us)

    def copy(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.Raw]:
        """Return the tenant's events with position > after as they are kept; each is checked."""
        self._check_open()
        if not 0 <= after < LATEST or limit <= 0:
            return []
        return self._giving.page(tenant, after, limit)

    def keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[port.RawKey]:
        """Return the tenant's idempotency keys after one, by their text."""
        self._check_open()
        page = self._driver.keys(tenant, after=after, limit=limit)
        return [marks.checked_key(tenant, kept) for kept in page]

    def paste(
        self,
        tenant: str,
        events: Sequence[port.Raw],
        *,
        blobs: Mapping[bytes, bytes] = {},
        keys: Sequence[port.RawKey] = (),
    ) -> None:
        """Keep events exactly as they are in one change."""
        with self.turn():
            self._known.doubt((tenant,))
            for _ in range(TRIES):
                pasting = copying.Pasting(self._driver, tenant, keys)
                fit = portable.fit(pasting, events, blobs, keys)
                if not fit or self._applied(pasting.change(fit)):
                    return
            raise outrun()

    def _applied(self, change: Change) -> bool:
        """Apply a change; False if others were faster."""
        (verdict,) = self._driver.apply([change])
        if isinstance(verdict, Taken):
            raise taken(change.tenant)
        if isinstance(verdict, Moved):
            return False
        self._acknowledged.note(change.tenant, change.after)
        self._news.tell((change.tenant,))
        return True

    def status(self) -> Mapping[str, Json]:
        """Return facts for people: backend, server, versions, durability, counts."""
        self._check_open()
        return {**self._driver.status(), "durability": self.durability}

    def backup(self, target: str) -> Iterator[tuple[int, int]]:  # noqa: ARG002 - the port's parameter
        """Refuse: there is no file here that could be copied."""
        self._check_open()
        raise errors.NoBackup(
            "a store on a server has no file to copy.",
            hint="`limpet backup` copies its log into a new SQLite file.",
        )


def taken(tenant: str) -> errors.Corrupt:
    """Return the error for a server that has something beyond what its head says."""
    return errors.Corrupt(
        "something that a commit adds is there already, though nothing that is known of the log says so.",
        hint="Nothing was changed. `limpet verify` lists all damage.",
        facts={"tenant": tenant},
    )
