"""Numbers and moments as people read and type them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from limpet.cli import exits
from limpet.core.values import ids

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BACK = re.compile(r"(\d{1,9})([smhdw])")


def count(number: int, noun: str) -> str:
    """Return "1 event", "2,000 events"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size(number: float) -> str:
    """Return bytes in the unit that fits."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def ago(moment: str) -> str:
    """Return how long ago an ISO 8601 moment was."""
    seconds = time.time() - ids.microseconds(moment) / 1_000_000
    if seconds < 60:
        return "just now"
    for bound, unit, name in ((3600, 60, "min"), (86_400, 3600, "h"), (8_640_000, 86_400, "d")):
        if seconds < bound:
            return f"{seconds // unit:.0f} {name} ago"
    return moment[:10]


def span(seconds: float) -> str:
    """Return a length of time in the unit that fits, rounded down."""
    for bound, unit, name in ((60, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < bound:
            return f"{max(seconds, 0) // unit:.0f} {name}"
    return f"{seconds // 86_400:,.0f} d"


def clock(time_us: int) -> str:
    """Return the time of day here, with its zone; with the date if that is not today."""
    then = datetime.fromtimestamp(time_us / 1_000_000, UTC).astimezone()
    today = then.date() == datetime.now().astimezone().date()
    return f"{then:%H:%M %Z}" if today else f"{then:%Y-%m-%d %H:%M %Z}"


def moment(option: str, text: str | None) -> datetime | None:
    """Return the moment that a person typed: ISO 8601, or 30m, 2h, 3d, 1w back from now."""
    if text is None:
        return None
    back = _BACK.fullmatch(text)
    try:
        if back:
            seconds = int(back[1]) * _UNITS[back[2]]
            return datetime.now(UTC) - timedelta(seconds=seconds)
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise exits.Failure(
            exits.Problem(
                exits.USAGE,
                "bad_moment",
                f"{option} {text!r} is not a moment.",
                "A moment is ISO 8601 (UTC unless it says otherwise) or a time back from now.",
                f"{option} 2026-01-31, {option} 2026-01-31T12:00:00+01:00, or {option} 2h",
            )
        ) from error


DAYS: Final = ("7d", "90d", "52w")
"""What a length of days or more may look like."""


def length(
    option: str, text: str | None, such: Sequence[str] = ("30m", "24h", "7d")
) -> float | None:
    """Return the length of time that a person typed, in seconds: 30s, 30m, 24h, 7d, 1w. `such` would be taken."""
    if text is None:
        return None
    found = _BACK.fullmatch(text)
    if found is None or not int(found[1]):
        raise exits.Failure(
            exits.Problem(
                exits.USAGE,
                "bad_length",
                f"{option} {text!r} is not a length of time.",
                "Nothing was done.",
                f"{', '.join(f'{option} {each}' for each in such[:-1])}, or {option} {such[-1]}",
            )
        )
    return float(int(found[1]) * _UNITS[found[2]])
