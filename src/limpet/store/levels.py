"""The levels of durability that a store can hold, for whoever names or compares them."""

from __future__ import annotations

from typing import Final

LEVELS: Final = ("none", "process-crash", "power-loss")
"""What survives, the least first."""
