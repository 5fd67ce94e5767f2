"""Counting tokens: exactly where a vocabulary is public, by a stated estimate elsewhere."""

from holdfast.tokens.calibration import Calibration
from holdfast.tokens.counters import ESTIMATE, for_model, named, names
from holdfast.tokens.port import Counter, total

__all__ = ["ESTIMATE", "Calibration", "Counter", "for_model", "named", "names", "total"]
