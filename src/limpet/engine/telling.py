"""Telling whoever keeps something beside the store what was erased: first what is here, then engines elsewhere.

One that fails hinders no other. What it was to be told is left, and is told again by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from limpet import errors
from limpet.core.values.memory_records import Who
from limpet.engine.attempts import Failed, attempt
from limpet.engine.pending import Todo

Hook = Callable[[Who, str | None, int | None], int]
"""Drops what is kept beside the store of a user, a session of theirs, or the message at a position; says how much.

Without a user and a session: whatever is kept of a tenant, or what is there no more.
"""


class Elsewhere(Protocol):
    """Engines of memory that are not kept here."""

    def any(self, tenant: str) -> bool:
        """Whether any of them may have something of a tenant's."""
        ...

    def tell(self, who: Who, session_id: str | None, position: int | None) -> int:
        """Do as a Hook does, with all of them. Raises anything."""
        ...


class Heard(msgspec.Struct):
    """What came of telling: how much was dropped, what is left to be told, and the first failure."""

    dropped: int = 0
    left: list[Todo] = msgspec.field(default_factory=list[Todo])
    failed: Failed | None = None

    def result(self) -> int:
        """Return how much was dropped; raise what has failed."""
        if self.failed is None:
            return self.dropped
        error = self.failed.error
        if isinstance(error, errors.Error):
            raise error
        raise errors.Unavailable(
            f"an engine was not able to forget: {self.failed.code}.", hint="Here it is gone."
        ) from error


class Telling:
    """Tells for one tenant. Engines elsewhere are told what is this tenant's: others' is for those who work for them."""

    def __init__(
        self,
        tenant: str,
        hooks: Sequence[Hook],
        elsewhere: Elsewhere | None,
        words: Sequence[Hook] = (),
    ) -> None:
        self._tenant = tenant
        self._hooks = hooks
        self._elsewhere = elsewhere
        self._words = words

    def told(self, every: Iterable[Todo], *, ask: bool) -> Heard:
        """Tell all of it; unless engines elsewhere are to be asked, what is for them is left."""
        told = Heard()
        for todo in every:
            hooks = self._words if todo.learnt else self._hooks
            here = todo.here or self._heard(todo, hooks, told)
            told.left.append(msgspec.structs.replace(todo, here=here))
        told.left = [each for each in told.left if not self._known_there(each, told, ask=ask)]
        return told

    def _known_there(self, todo: Todo, told: Heard, *, ask: bool) -> bool:
        there = self._elsewhere
        if not todo.here or there is None or todo.learnt:
            return todo.here
        # If nobody can say, somebody may.
        if attempt(lambda: there.any(todo.tenant)) is False:
            return True
        return ask and todo.tenant == self._tenant and self._heard(todo, (there.tell,), told)

    def _heard(self, todo: Todo, hooks: Sequence[Hook], told: Heard) -> bool:
        who, heard = Who(todo.tenant, todo.user_id), True
        for hook in hooks:
            outcome = attempt(lambda hook=hook: hook(who, todo.session_id, todo.position))
            if not isinstance(outcome, Failed):
                told.dropped += outcome
                continue
            heard = False
            if todo.tenant == self._tenant and told.failed is None:
                told.failed = outcome
        return heard
