"""The store on a server: the verbs of the port over a driver. What it promises is in `store.port`.

Nobody can be kept out of a server. So whoever holds the turn decides on what this store object knows, and each
commit says which head of the tenant's feed that rests on: the server compares, and takes it or leaves it, in one
round trip. As long as nobody else writes to the tenant, nothing is ever asked before it is written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from limpet import errors, limits
from limpet.store import port
from limpet.store.remote.acknowledged import Acknowledged
from limpet.store.remote.committing import Batch
from limpet.store.remote.copying import Giving
from limpet.store.remote.driver import Driver, Moved, Taken, Verdict
from limpet.store.remote.known import Known, Tenant
from limpet.store.remote.sending import Sending
from limpet.store.remote.upkeep import Upkeep, taken
from limpet.store.remote.waiting import News
from limpet.store.salts import Salts
from limpet.store.turning import Turn


class RemoteStore(Upkeep):
    """A store over a driver, for many threads; others may use the same server."""

    def __init__(self, driver: Driver, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._driver = driver
        self._random = Salts(random)
        self._acknowledged = Acknowledged(driver)
        self._known = Known(driver, self._acknowledged)
        self._giving = Giving(driver)
        self._news = News(driver.listen)
        self._lock = threading.RLock()
        self._holder: threading.Thread | None = None
        self._turn = Turn(self.take_turn, self.leave_turn)
        self._closed = False

    @property
    def durability(self) -> str:
        """What the server's settings hold."""
        return self._driver.durability

    def turn(self) -> Turn:
        """Hold the right to decide among the threads of this store object; others are noticed by comparing."""
        return self._turn

    def take_turn(self) -> bool:
        """Take the turn, for `turn`; whatever happens, it is either taken or given back."""
        me = threading.current_thread()
        assert self._holder is not me, "this thread has the turn already"
        try:
            if not self._lock.acquire(timeout=limits.WRITE_LOCK_WAIT_S):
                holder = self._holder.name if self._holder else "unknown"
                raise errors.StoreBusy(
                    f"thread {holder} has held the store's turn for {limits.WRITE_LOCK_WAIT_S:g} s.",
                    hint="Retry, or look at what that thread waits for.",
                    facts={"holder": holder},
                )
            self._check_open()
            self._holder = me
            return self._known.begin(self._news.heard())
        except BaseException:
            self.leave_turn()
            raise

    def leave_turn(self) -> None:
        """Give the turn back if this thread holds it still."""
        if self._lock._is_owned():  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            try:
                if self._holder is not None:
                    self._known.end()
            finally:
                self._holder = None
                self._lock.release()

    @property
    def crowded(self) -> bool:
        """Never: nobody waits for another here."""
        return False

    def hand_over(self, appends: Sequence[port.Append]) -> list[port.Appended | None] | None:  # noqa: ARG002
        """Nobody takes them: each commits for itself."""
        return None

    def served(self) -> list[tuple[str, str]]:
        """Nobody: see above."""
        return []

    def held(self, tenant: str) -> bool:
        """Look whether the tenant's head is the one that this turn rests on."""
        assert self._holder is threading.current_thread(), "held belongs inside turn()"
        return self._known.held(tenant)

    def commit(self, appends: Sequence[port.Append]) -> list[port.Outcome]:
        """Commit appends in one round trip, as one change for each tenant."""
        assert self._holder is threading.current_thread(), "commit belongs inside turn()"
        self._check_open()
        groups: dict[str, list[int]] = {}
        for at, append in enumerate(appends):
            groups.setdefault(append.tenant, []).append(at)
        outcomes: dict[int, port.Outcome] = {}
        try:
            again = self._round(appends, groups, outcomes, careful=False)
            if again and (left := self._round(appends, again, outcomes, careful=True)):
                raise taken(next(iter(left)))
        except BaseException:
            # What became of it is not known.
            self._known.doubt(groups)
            raise
        self._news.tell(groups)
        return [outcomes[at] for at in range(len(appends))]

    def sending(self) -> Sending | None:
        """Return a way to send commits ahead of answers, if the driver has one, and nobody else writes here lately."""
        line = self._driver.line() if not self._known.crowd else None
        if line is None:
            return None
        return Sending(
            self._driver,
            line,
            known=self._known,
            acknowledged=self._acknowledged,
            news=self._news,
            random=self._random,
        )

    def _round(
        self,
        appends: Sequence[port.Append],
        groups: dict[str, list[int]],
        outcomes: dict[int, port.Outcome],
        *,
        careful: bool,
    ) -> dict[str, list[int]]:
        """Commit the appends of tenants, given by their places; return those for which something was taken."""
        batches: dict[str, Batch] = {}
        for tenant, places in groups.items():
            known = self._known.of(tenant)
            batch = batches[tenant] = Batch(
                self._driver, tenant, known, self._random, careful=careful
            )
            if known.moved is None:
                for at in places:
                    outcomes[at] = batch.append(appends[at])
        again: dict[str, list[int]] = {}
        for tenant, verdict in self._verdicts(batches).items():
            if isinstance(verdict, Taken):
                again[tenant] = groups[tenant]
            elif isinstance(verdict, Moved):
                self._known.moved(tenant)
                self._news.attend()
                stale = port.Stale("", verdict.head.position)
                outcomes |= dict.fromkeys(groups[tenant], stale)
            else:
                batches[tenant].committed()
                self._acknowledged.note(tenant, batches[tenant].after)
                if verdict is not None:
                    self._known.wanted(tenant)
                    self._news.attend()
        return again

    def _verdicts(self, batches: dict[str, Batch]) -> dict[str, Verdict]:
        """Apply what was taken. Where nothing was, what it rests on has to be so as well: refusals are answers, too."""
        verdicts: dict[str, Verdict] = {}
        changes = {t: batch.change() for t, batch in batches.items() if not batch.empty}
        if changes:
            applied = self._driver.apply(list(changes.values()))
            verdicts = dict(zip(changes, applied, strict=True))
        for tenant in batches:
            if tenant not in verdicts:
                head = None if self._known.held(tenant) else self._known.of(tenant).moved
                verdicts[tenant] = Moved(head) if head is not None else None
        return verdicts

    def _looked_at(self, tenant: str) -> Tenant | None:
        self._check_open()
        if self._holder is threading.current_thread():
            return self._known.looked_at(tenant)
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise errors.EngineClosed

    def close(self) -> None:
        """Give back every connection. Closing twice is fine."""
        if self._closed:
            return
        # Whoever commits may end.
        waited = self._lock.acquire(timeout=limits.WRITE_LOCK_WAIT_S)
        try:
            self._closed = True
            self._news.close()
            self._driver.close()
        finally:
            if waited:
                self._lock.release()
        self._news.join()


_conforms: type[port.Store] = RemoteStore
