"""Token counters: exact where a vocabulary is public, a stated estimate elsewhere."""

from limpet.core.tokens.counter import Calibration, Counter, total
from limpet.core.tokens.registry import ESTIMATE, for_model, named, names

__all__ = ["ESTIMATE", "Calibration", "Counter", "for_model", "named", "names", "total"]
