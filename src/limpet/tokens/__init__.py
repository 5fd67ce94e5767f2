"""Counting tokens: exactly where a vocabulary is public, by a stated estimate elsewhere."""

from limpet.tokens.calibration import Calibration
from limpet.tokens.counters import ESTIMATE, for_model, named, names
from limpet.tokens.port import Counter, total

__all__ = ["ESTIMATE", "Calibration", "Counter", "for_model", "named", "names", "total"]
