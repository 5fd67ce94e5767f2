"""Erasure hooks: callbacks that erase copies outside the log, and the queue of calls to repeat.

Local hooks run first, then external memory engines. A failed call does not stop the others; it
stays in the queue and is repeated later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from limpet import errors
from limpet.core.values.memory_records import Who
from limpet.jobs.tasks import AttemptFailure, attempt


class HookCall(msgspec.Struct, frozen=True):
    """What the hooks have to be told of one erasure. It is kept until they were.

    Without a user and a session it is about whatever is kept of the tenant: nobody can say any more of whom.
    """

    tenant: str
    user_id: str
    session_id: str | None = None
    position: int | None = None
    here: bool = False
    """Nothing of it is here any more: only engines elsewhere are still to be told."""
    learnt: bool = False
    """Only what was said goes: long-term memory keeps what it has learnt from it."""


def encode_hook_calls(every: Iterable[HookCall]) -> bytes:
    """Return lines, one for each."""
    return b"".join(msgspec.json.encode(each) + b"\n" for each in every)


def decode_hook_calls(lines: bytes) -> Iterator[HookCall]:
    """Yield what lines say; raise Corrupt if one can't be read."""
    try:
        yield from (msgspec.json.decode(line, type=HookCall) for line in lines.splitlines() if line)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("what is left to do of an erasure can't be read.") from error


def has_local_work(lines: bytes | None) -> bool:
    """Whether something of what is pending is to be done here: to be dropped, or to be scrubbed."""
    if not lines:
        return lines is not None
    return b"" in lines.splitlines() or not all(each.here for each in decode_hook_calls(lines))


ErasureHook = Callable[[Who, str | None, int | None], int]
"""Drops what is kept beside the store of a user, a session of theirs, or the message at a position; says how much.

Without a user and a session: whatever is kept of a tenant, or what is there no more.
"""


class ExternalEngines(Protocol):
    """Engines of memory that are not kept here."""

    def has_external(self, tenant: str) -> bool:
        """Whether any of them may have something of a tenant's."""
        ...

    def forget_external(self, who: Who, session_id: str | None, position: int | None) -> int:
        """Do as a Hook does, with all of them. Raises anything."""
        ...


class HookResults(msgspec.Struct):
    """What came of telling: how much was dropped, what is left to be told, and the first failure."""

    dropped: int = 0
    left: list[HookCall] = msgspec.field(default_factory=list[HookCall])
    failed: AttemptFailure | None = None

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


class HookRunner:
    """Tells for one tenant. Engines elsewhere are told what is this tenant's: others' is for those who work for them."""

    def __init__(
        self,
        tenant: str,
        hooks: Sequence[ErasureHook],
        elsewhere: ExternalEngines | None,
        words: Sequence[ErasureHook] = (),
    ) -> None:
        self._tenant = tenant
        self._hooks = hooks
        self._external = elsewhere
        self._text_hooks = words

    def run(self, every: Iterable[HookCall], *, ask: bool) -> HookResults:
        """Tell all of it; unless engines elsewhere are to be asked, what is for them is left."""
        told = HookResults()
        for todo in every:
            hooks = self._text_hooks if todo.learnt else self._hooks
            here = todo.here or self._call_hooks(todo, hooks, told)
            told.left.append(msgspec.structs.replace(todo, here=here))
        told.left = [
            each for each in told.left if not self._is_done_externally(each, told, ask=ask)
        ]
        return told

    def _is_done_externally(self, todo: HookCall, told: HookResults, *, ask: bool) -> bool:
        there = self._external
        if not todo.here or there is None or todo.learnt:
            return todo.here
        # If nobody can say, somebody may.
        if attempt(lambda: there.has_external(todo.tenant)) is False:
            return True
        return (
            ask
            and todo.tenant == self._tenant
            and self._call_hooks(todo, (there.forget_external,), told)
        )

    def _call_hooks(self, todo: HookCall, hooks: Sequence[ErasureHook], told: HookResults) -> bool:
        who, heard = Who(todo.tenant, todo.user_id), True
        for hook in hooks:
            outcome = attempt(lambda hook=hook: hook(who, todo.session_id, todo.position))
            if not isinstance(outcome, AttemptFailure):
                told.dropped += outcome
                continue
            heard = False
            if todo.tenant == self._tenant and told.failed is None:
                told.failed = outcome
        return heard
