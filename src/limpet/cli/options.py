"""Option types and option groups that several commands share.

Every option that occurs more than once is declared here, with its help text. Also parses the times that
people type. Imports cyclopts.

Annotations are evaluated in this module, not kept as text: cyclopts would evaluate the annotation of an inherited option
in the module of the subclass.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from limpet.cli import exit_codes, hints

FLAG: Final = Parameter(negative="", show_default=False)

Switch = Annotated[bool, FLAG]
Confirmed = Annotated[
    bool,
    FLAG,
    Parameter(help="Do not ask for confirmation. Needed with --json and without a terminal: exit 2 otherwise."),
]
"""The option --yes."""
WithMemory = Annotated[bool, Parameter(negative="--no-memory", show_default=False)]
NoVerify = Annotated[bool, FLAG, Parameter(name="--no-verify")]

NonNegative = Annotated[int, Parameter(validator=Number(gte=0))]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Limit = Annotated[Positive, Parameter(help="The largest number of results.")]

_STORE_AND_OUTPUT: Final = Group("Store and output", sort_key=1)
SHARED: Final = Parameter(group=_STORE_AND_OUTPUT)
"""Puts an option into the last part of the help text."""

StoreUrl = Annotated[
    str | None,
    SHARED,
    Parameter(help="The store: a path, files:folder, postgresql://… or redis://…. Else LIMPET_URL, else ./state.db."),
]
StoreArgument = Annotated[str | None, Parameter(help="A path, files:folder, postgresql://… or redis://….")]
Reference = Annotated[str, Parameter(help="Its id, a prefix of it, @last, or @last~2.")]
"""A reference to a session, a frame or a suspension, which `target` resolves."""
ProviderFormat = Annotated[
    Literal["openai", "responses", "anthropic", "gemini"] | None,
    Parameter(name="--as", help="Print the request body for this provider, as JSON."),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How to print. Each field of this class and of those that derive from it is an option of its own."""

    json: Annotated[Switch, SHARED] = False
    """Print one JSON document."""
    quiet: Annotated[Switch, SHARED, Parameter(name=["--quiet", "-q"])] = False
    """Print only errors to stderr."""


@dataclass(frozen=True, kw_only=True)
class CommonOptions(OutputOptions):
    """Which store, and how to print. The options of commands that open a store derive from this class."""

    url: StoreUrl = None
    tenant: Annotated[str, SHARED] = "default"
    """The tenant whose data is used."""

    @property
    def store_options(self) -> tuple[str, ...]:
        """The options that name the store and the tenant."""
        return hints.store_options(self.url, self.tenant)


_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION_PATTERN: Final = re.compile(r"(\d{1,9})([smhdw])")
DURATION_EXAMPLES: Final = ("7d", "90d", "52w")
"""Examples for an error text, if a duration is days or longer."""


def parse_moment(option: str, text: str) -> datetime:
    """Parse a time option: ISO 8601, or 30m, 2h, 3d, 1w before now."""
    back = _DURATION_PATTERN.fullmatch(text)
    try:
        if back:
            return datetime.now(UTC) - timedelta(seconds=int(back[1]) * _UNIT_SECONDS[back[2]])
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise exit_codes.usage_failure(
            f"{option} {text!r} is not a time.",
            f"{option} 2026-01-31, {option} 2026-01-31T12:00:00+01:00, or {option} 2h",
            "A time is ISO 8601 (UTC without an offset), or a duration before now.",
            "bad_moment",
        ) from error


def parse_duration(option: str, text: str, examples: Sequence[str] = DURATION_EXAMPLES) -> float:
    """Parse a duration option, such as 30s, 30m, 24h, 7d or 1w; return seconds."""
    found = _DURATION_PATTERN.fullmatch(text)
    if found is None or not int(found[1]):
        *first, last = (f"{option} {example}" for example in examples)
        raise exit_codes.usage_failure(
            f"{option} {text!r} is not a duration.", f"{', '.join(first)}, or {last}", code="bad_length"
        )
    return float(int(found[1]) * _UNIT_SECONDS[found[2]])
