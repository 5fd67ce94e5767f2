"""A counter corrected by the usage that a provider reported."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast import errors, limits
from holdfast.tokens.port import Counter, Scaled

_NAME: Final = re.compile(r"(.+)\*(\d\.\d{3})")


class Calibration(msgspec.Struct, frozen=True):
    """How a counter's numbers compare with what its provider charges.

    `factor` is the running mean of reported / estimated over `observations`; new ones keep a weight,
    since models change under their names. It stays within limits.CALIBRATION_FACTOR_MAX.
    """

    counter: str
    factor: float = 1.0
    observations: int = 0

    def observe(self, estimated: int, reported: int) -> Calibration:
        """Return the calibration after one more request: what the plain counter said, what was charged."""
        if estimated <= 0 or reported <= 0:
            raise errors.InvalidRequest("a calibration compares two counts of 1 or more.")
        weight = 1 / (min(self.observations, limits.CALIBRATION_MEMORY) + 1)
        ratio = _bounded(reported / estimated)
        factor = _bounded(self.factor + (ratio - self.factor) * weight)
        return Calibration(self.counter, factor, self.observations + 1)

    def apply(self, counter: Counter) -> Counter:
        """Return the counter, corrected. Its name says by how much, so that `named` finds it again."""
        if counter.name != self.counter:
            raise errors.InvalidRequest(
                f"this calibration is of {self.counter}, not of {counter.name}.",
                hint="Keep one calibration for each counter.",
            )
        thousandths = round(self.factor * 1000)
        return counter if thousandths == 1000 else Scaled(counter, thousandths)


def split_name(name: str) -> tuple[str, Calibration | None]:
    """Return a counter's plain name, and the calibration that its name tells of."""
    match = _NAME.fullmatch(name)
    if match is None:
        return name, None
    return match[1], Calibration(match[1], _bounded(float(match[2])))


def _bounded(factor: float) -> float:
    most = limits.CALIBRATION_FACTOR_MAX
    return min(most, max(1 / most, factor))
