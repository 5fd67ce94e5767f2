"""The token budget of a frame: arithmetic on a frozen value. Every operation returns a new budget."""

from __future__ import annotations

from typing import Final, Self, cast

import msgspec

from limpet import errors, limits
from limpet.core.values.arguments import checked_int

LIMIT_FIELDS: Final = ("max_context_tokens", "max_tool_calls", "max_subframe_depth", "timeout_ms")
"""The fields of a budget that bound a frame instead of counting its tokens."""

_LIMIT_VALUE_MAX: Final = min(limits.FRAME_TIMEOUT_MS_MAX, limits.TOKENS_MAX)

replace = msgspec.structs.replace


class TokenBudget(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The tokens and limits of a frame: `total` = used + reserved + subcall_allocation + available.

    `subcall_allocation` is allocated to open children. `used` includes what closed children spent. Usage is
    recorded even beyond the total; `overdrawn` says by how much.
    A limit of None means no limit; among a frame and its ancestors the strictest one applies.
    """

    total: int
    used: int = 0
    reserved: int = 0
    subcall_allocation: int = 0
    max_context_tokens: int | None = 4_000
    max_tool_calls: int | None = 10
    max_subframe_depth: int | None = 3
    timeout_ms: int | None = 120_000

    def __post_init__(self) -> None:
        # Each step of a frame makes budgets: the common case is seen without a call for each field.
        total, used, reserved, given = self.total, self.used, self.reserved, self.subcall_allocation
        if type(total) is type(used) is type(reserved) is type(given) is int and (
            min(total, used, reserved, given) >= 0 and max(total, used, reserved, given) <= limits.TOKENS_MAX
        ):
            for bound in (
                self.max_context_tokens, self.max_tool_calls, self.max_subframe_depth, self.timeout_ms,
            ):  # fmt: skip
                if bound is not None and (type(bound) is not int or not 0 <= bound <= _LIMIT_VALUE_MAX):
                    break
            else:
                return
        for name in ("total", "used", "reserved", "subcall_allocation", *LIMIT_FIELDS):
            value: int = getattr(self, name)
            if name not in LIMIT_FIELDS or cast("object", value) is not None:
                checked_token_count(name, value)
        if self.timeout_ms is not None and self.timeout_ms > limits.FRAME_TIMEOUT_MS_MAX:
            raise errors.InvalidRequest(
                f"timeout_ms is at most {limits.FRAME_TIMEOUT_MS_MAX:,}.", hint="None is no limit."
            )

    def available(self) -> int:
        """Return the free tokens; 0 if the budget is overdrawn."""
        return max(0, self.total - self._taken())

    @property
    def overdrawn(self) -> int:
        """How many tokens were spent or promised beyond the total."""
        return max(0, self._taken() - self.total)

    def _taken(self) -> int:
        return self.used + self.reserved + self.subcall_allocation

    def reserve(self, amount: int) -> Self:
        """Reserve tokens; raise InsufficientTokens if fewer are available."""
        self.check(amount)
        return replace(self, reserved=self.reserved + amount)

    def release_reservation(self, amount: int) -> Self:
        """Release reserved tokens, at most as many as are reserved."""
        released = min(checked_token_count("amount", amount), self.reserved)
        return replace(self, reserved=self.reserved - released)

    def consume_reserved(self, amount: int, used: int | None = None) -> Self:
        """Spend a reservation: release `amount` of it and record `used` (None: all of it) as spent."""
        spent = amount if used is None else used
        return self.release_reservation(amount).record_usage(spent)

    def allocate_for_subcall(self, amount: int) -> Self:
        """Allocate tokens to a child; raise InsufficientTokens if fewer are available."""
        self.check(amount)
        return replace(self, subcall_allocation=self.subcall_allocation + amount)

    def release_subcall_allocation(self, amount: int) -> Self:
        """Take tokens back from a child, at most as many as are allocated."""
        released = min(checked_token_count("amount", amount), self.subcall_allocation)
        return replace(self, subcall_allocation=self.subcall_allocation - released)

    def record_usage(self, amount: int) -> Self:
        """Record spent tokens, available or not."""
        used = self.used + checked_token_count("amount", amount)
        return replace(self, used=min(used, limits.TOKENS_MAX))

    def settle(self, child: TokenBudget) -> Self:
        """Close a child's budget: its allocation comes back, less what it spent.

        `used` stops at the largest possible number, so that a budget can always be closed.
        """
        used = min(self.used + child.used, limits.TOKENS_MAX)
        left = max(0, self.subcall_allocation - child.total)
        return replace(self, subcall_allocation=left, used=used)

    def check(self, amount: int) -> None:
        """Raise InsufficientTokens if fewer are available."""
        free = self.available()
        if checked_token_count("amount", amount) > free:
            raise insufficient_tokens_error(amount, free)


def insufficient_tokens_error(requested: int, available: int) -> errors.InsufficientTokens:
    """Return the error for tokens that are not available."""
    return errors.InsufficientTokens(
        f"{requested:,} tokens are asked for; {available:,} are available.",
        hint="Ask for fewer, release a reservation, or wait for a child to give its rest back.",
        facts={"requested": requested, "available": available},
    )


def checked_token_count(what: str, value: int) -> int:
    """Return a number of tokens; raise InvalidRequest if it is not one."""
    return checked_int(what, value, 0, limits.TOKENS_MAX, unit="a number of tokens")
