"""Token counters: exact where a vocabulary is public, a stated estimate elsewhere."""

from limpet.core.tokens.counters import ESTIMATE, Calibration, Counter, for_model, named, names, total

__all__ = ["ESTIMATE", "Calibration", "Counter", "for_model", "named", "names", "total"]
