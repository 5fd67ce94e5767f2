"""A store that fails on demand: for tests of code that must retry without losing or doubling.

Failing before the effect and failing after it look the same to a caller, as they do with a real
disk or network; code that is right about one and wrong about the other is wrong.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from limpet import errors
from limpet.stores.port import Rebuilt, Store, StreamDeriver

MUTATING_CALLS: Final = frozenset(
    {"commit", "hand_off", "delete_keys", "put_note", "rebuild", "erase", "scrub", "paste"}
)

# The verbs that this class does not define are those of the wrapped store, which `__getattr__` finds.
if TYPE_CHECKING:
    _Verbs = Any
else:
    _Verbs = object


class FaultyStore(_Verbs):
    """Another store, whose N-th mutating call raises Unavailable, before its effect or after it.

    `MUTATING_CALLS` are counted from 1; `calls` tells how many there were and `failed` whether the fault has
    happened. All calls but that one pass through.
    """

    def __init__(self, store: Store, *, fail_at: int, before: bool = True) -> None:
        assert fail_at >= 1, "calls are counted from 1"
        self.fail_at = fail_at
        self.before = before
        self.calls = 0
        self._store = store
        self._lock = threading.Lock()

    @property
    def failed(self) -> bool:
        """Whether the fault has happened."""
        return self.calls >= self.fail_at

    def open_pipeline(self) -> None:
        """Return None: without a pipeline every commit is a call that can fail."""

    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        """Rebuild, or fail if this is the call that fails. It is counted at the first step."""
        fails = self._counted()
        self._fail(fails and self.before)
        yield from self._store.rebuild(derive)
        self._fail(fails)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._failing(found) if name in MUTATING_CALLS else found

    def _failing(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def _call(*args: Any, **options: Any) -> Any:
            fails = self._counted()
            self._fail(fails and self.before)
            outcome = verb(*args, **options)
            self._fail(fails)
            return outcome

        return _call

    def _counted(self) -> bool:
        with self._lock:
            self.calls += 1
            return self.calls == self.fail_at

    def _fail(self, now: bool) -> None:
        if now:
            raise errors.Unavailable(
                f"mutating call {self.fail_at:,} failed, as it was told to.", facts={"call": self.fail_at}
            )


def seeded(store: Store, *, seed: int, within: int) -> FaultyStore:
    """Return a store that fails once, at a random one of its first mutating calls. The seed decides which."""
    dice = random.Random(seed)
    return FaultyStore(store, fail_at=dice.randint(1, within), before=dice.random() < 0.5)
