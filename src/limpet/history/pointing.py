"""Which handles a frame has, without looking through thousands of them for one that is not there."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from limpet.core.values.context import ContextHandle, HandlePages, pages_with_handle
from limpet.core.values.frame_state import Frame


class HandleIds:
    """Ids of the handles that frames have. A memory only: what it has not, it makes from the frame.

    An id that it has may be of the frame's next state; one that it has not is not there.
    """

    SIZE: Final = 64

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[HandlePages, set[str]]] = OrderedDict()

    def may_have(self, pages: HandlePages, handle_id: str) -> bool:
        """Whether there can be a handle by that id."""
        found = self._known.get(id(pages))
        if found is None or found[0] is not pages:
            found = self._keep(pages, {handle.handle_id for page in pages for handle in page})
        return handle_id in found[1]

    def grown(self, before: HandlePages, handle: ContextHandle) -> HandlePages:
        """Return handles with one more."""
        after, found = pages_with_handle(before, handle), self._known.pop(id(before), None)
        if found is not None and found[0] is before:
            found[1].add(handle.handle_id)
            self._keep(after, found[1])
        return after

    def _keep(self, pages: HandlePages, known: set[str]) -> tuple[HandlePages, set[str]]:
        made = self._known[id(pages)] = (pages, known)
        while len(self._known) > self.SIZE:
            self._known.popitem(last=False)
        return made


_ids: Final = HandleIds()


def found(frame: Frame, handle_id: str) -> ContextHandle | None:
    """Return the handle of a frame by its id; None if it has none."""
    return frame.handle(handle_id) if _ids.may_have(frame.handle_pages, handle_id) else None


def added(frame: Frame, handle: ContextHandle) -> HandlePages:
    """Return the handles of a frame with one more."""
    return _ids.grown(frame.handle_pages, handle)
