"""Commits that are sent before the server has answered those before: it works on one while the next is decided.

Each names the head that the one before it leads to. So a commit that the server does not take takes all behind it
along: they were made for a head that never came to be, and the server says so of each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from limpet.store import port
from limpet.store.remote.acknowledged import Acknowledged
from limpet.store.remote.committing import Batch
from limpet.store.remote.driver import Driver, Line, Moved, Taken
from limpet.store.remote.known import Known
from limpet.store.remote.waiting import News


class Commit:
    """One commit on its way: what its appends come to if it is taken, and what each tenant brings to it."""

    __slots__ = ("batches", "outcomes", "places")

    def __init__(self) -> None:
        self.batches: dict[str, Batch] = {}
        self.places: dict[str, list[int]] = {}
        self.outcomes: list[port.Outcome] = []


class Sending:
    """Commits of one turn on their way over one line."""

    def __init__(
        self,
        driver: Driver,
        line: Line,
        *,
        known: Known,
        acknowledged: Acknowledged,
        news: News,
        random: Callable[[int], bytes],
    ) -> None:
        self._driver = driver
        self._line = line
        self._known = known
        self._acknowledged = acknowledged
        self._news = news
        self._random = random
        self._out: deque[Commit] = deque()
        self._fallen: set[str] = set()
        """Tenants of which a commit was not taken: neither are those behind it, and nobody else is to blame for that."""

    def __enter__(self) -> Sending:
        """Take the line."""
        self._line.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the line back. What is still on its way may be there or not."""
        try:
            for commit in self._out:
                self._known.doubt(commit.batches)
        finally:
            self._line.__exit__(kind, error, trace)

    def send(self, appends: Sequence[port.Append]) -> bool:
        """Send appends, if all that is known lets each of them be appended, and nobody else writes to their tenants."""
        commit = Commit()
        for at, append in enumerate(appends):
            tenant = append.tenant
            batch = commit.batches.get(tenant)
            if batch is None:
                if self._known.crowd or tenant in self._fallen:
                    return False
                known = self._known.of(tenant)
                if known.moved is not None:
                    return False
                batch = Batch(self._driver, tenant, known, self._random, careful=False)
                commit.batches[tenant], commit.places[tenant] = batch, []
            outcome = batch.append(append)
            if not isinstance(outcome, port.Appended):
                return False
            commit.outcomes.append(outcome)
            commit.places[tenant].append(at)
        # From here on it may be there, whatever happens.
        self._out.append(commit)
        if not self._line.send([batch.change() for batch in commit.batches.values()]):
            self._out.pop()
            return False
        for batch in commit.batches.values():
            # What is known may be wrong: the server compares.
            batch.committed()
        return True

    def receive(self) -> list[port.Outcome]:
        """Return the outcomes of the first commit."""
        verdicts = self._line.receive()
        commit = self._out.popleft()
        for (tenant, batch), verdict in zip(commit.batches.items(), verdicts, strict=True):
            if isinstance(verdict, Moved | Taken):
                if isinstance(verdict, Moved) and tenant not in self._fallen:
                    self._known.moved(tenant)
                    self._news.attend()
                else:
                    self._known.doubt((tenant,))
                self._fallen.add(tenant)
                for at in commit.places[tenant]:
                    commit.outcomes[at] = port.Stale("", batch.before.position)
                continue
            self._acknowledged.note(tenant, batch.after)
            if verdict is not None:
                self._known.wanted(tenant)
                self._news.attend()
        self._news.tell(commit.batches)
        return commit.outcomes

    def ready(self) -> bool:
        """Whether something of an answer is there."""
        return self._line.ready()

    def fileno(self) -> int:
        """Return what can be polled for an answer."""
        return self._line.fileno()


_conforms: type[port.Sending] = Sending
