"""A counter corrected by the usage that a provider reported."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from limpet import errors
from limpet.core.values.session_state import CounterCorrection, ReportedUsage, bounded_factor
from limpet.tokens.port import Counter, Scaled

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
        known = CounterCorrection(self.counter, self.factor, self.observations)
        after = known.after(ReportedUsage(self.counter, estimated, reported))
        return Calibration(self.counter, after.factor, after.observations)

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
    return match[1], Calibration(match[1], bounded_factor(float(match[2])))
