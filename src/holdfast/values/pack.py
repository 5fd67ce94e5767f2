"""The context that was assembled for a frame, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.values.context import CompactionLevel
from holdfast.values.frozen import Json


class PackSelection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pack was made of, so that it can be made again without deciding anything anew.

    Each part names what it holds: a hash of a text that is kept beside the log, or messages of a session
    by their numbers. `digest` is that of the whole pack.
    """

    digest: str
    budget: int
    used: int
    counter: str
    exact: bool = True
    level: CompactionLevel = CompactionLevel.NONE
    role: str = ""
    parts: tuple[Mapping[str, Json], ...] = ()

    @property
    def hashes(self) -> tuple[str, ...]:
        """The hashes of the texts that it refers to."""
        return tuple(str(part["hash"]) for part in self.parts if "hash" in part)
