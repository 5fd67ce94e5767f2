"""A line to the server in RAM."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from holdfast.store.remote.driver import Change, Verdict


class RamLine:
    """Applies what is sent at once, and answers when it is asked."""

    def __init__(self, apply: Callable[[Sequence[Change]], list[Verdict]]) -> None:
        self._apply = apply
        self._answers: deque[list[Verdict]] = deque()

    def __enter__(self) -> RamLine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, changes: Sequence[Change]) -> bool:
        self._answers.append(self._apply(changes))
        return True

    def receive(self) -> list[Verdict]:
        return self._answers.popleft()

    def ready(self) -> bool:
        return True

    def fileno(self) -> int:
        raise AssertionError("an answer is always there")
