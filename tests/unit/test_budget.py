"""The token account: arithmetic that adds up, refuses with numbers, and never goes below zero."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet import TokenBudget, errors, limits

AMOUNTS = st.integers(0, 1_000)


def account(total: int = 100, used: int = 0, reserved: int = 0, given_: int = 0) -> TokenBudget:
    return TokenBudget(total=total, used=used, reserved=reserved, subcall_allocation=given_)


@pytest.mark.req("C-1")
@pytest.mark.parametrize("name", ["total", "used", "reserved", "subcall_allocation", "timeout_ms", "max_tool_calls"])
@pytest.mark.parametrize("wrong", [-1, 1.5, "1", True, limits.TOKENS_MAX + 1])
def test_every_number_of_a_budget_is_a_whole_one_from_zero_on(name: str, wrong: Any):
    with pytest.raises(errors.InvalidRequest, match=name):
        TokenBudget(**{"total": 1, name: wrong})


@pytest.mark.req("C-1", "C-22")
def test_a_budget_has_limits_with_defaults_and_can_do_without():
    budget = TokenBudget(total=1)
    assert (budget.max_context_tokens, budget.max_tool_calls) == (4_000, 10)
    assert (budget.max_subframe_depth, budget.timeout_ms) == (3, 120_000)
    assert TokenBudget(total=1, timeout_ms=None).timeout_ms is None


@pytest.mark.req("C-2")
@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_available_is_what_the_others_leave_and_at_least_nothing(total: int, used: int, reserved: int, allocated: int):
    budget = account(total, used, reserved, allocated)
    left = total - used - reserved - allocated
    assert budget.available() == max(0, left)
    assert budget.overdrawn == max(0, -left)
    assert total + budget.overdrawn == used + reserved + allocated + budget.available()


@pytest.mark.req("C-3", "C-4")
@pytest.mark.parametrize("verb", ["reserve", "allocate_for_subcall"])
def test_all_that_is_available_can_be_taken_and_not_one_more(verb: str):
    budget = account(100, used=20, reserved=30, given_=10)
    field = "reserved" if verb == "reserve" else "subcall_allocation"
    for amount in (0, 39, 40):
        taken = getattr(budget, verb)(amount)
        assert getattr(taken, field) == getattr(budget, field) + amount
        assert taken.available() == 40 - amount
    with pytest.raises(errors.InsufficientTokens) as caught:
        getattr(budget, verb)(41)
    assert caught.value.facts == {"requested": 41, "available": 40}
    assert "41" in str(caught.value) and "40" in str(caught.value)
    assert isinstance(caught.value, errors.BudgetError)


@pytest.mark.req("C-3", "C-4")
@pytest.mark.parametrize("verb", ["reserve", "allocate_for_subcall"])
def test_nothing_left_means_nothing_and_not_without_limit(verb: str):
    for empty in (account(0), account(10, used=10), account(10, used=25)):
        assert getattr(empty, verb)(0) == empty
        with pytest.raises(errors.InsufficientTokens) as caught:
            getattr(empty, verb)(1)
        assert caught.value.facts == {"requested": 1, "available": 0}


@pytest.mark.req("C-5")
def test_giving_back_stops_at_zero():
    budget = account(100, reserved=10, given_=10)
    assert budget.release_subcall_allocation(4).subcall_allocation == 6
    assert budget.release_subcall_allocation(11).subcall_allocation == 0
    assert budget.release_reservation(4).reserved == 6
    assert budget.release_reservation(11).reserved == 0


@pytest.mark.req("C-6")
def test_usage_is_recorded_beyond_the_total_and_shown():
    budget = account(100).record_usage(130)
    assert (budget.used, budget.available(), budget.overdrawn) == (130, 0, 30)


@pytest.mark.req("C-6")
def test_what_was_reserved_is_charged_once():
    budget = account(100).reserve(40)
    assert budget.consume_reserved(40).used == 40
    assert budget.consume_reserved(40).available() == 60
    spent = budget.consume_reserved(40, used=15)
    assert (spent.used, spent.reserved, spent.available()) == (15, 0, 85)


@pytest.mark.req("C-7")
def test_the_worked_example():
    """8000: 700 reserved, 3000 to a child, 2000 used leave 2300; the child spends 2500: 2800 are left."""
    root = TokenBudget(total=8_000).reserve(500).reserve(200)
    root = root.allocate_for_subcall(3_000).record_usage(2_000)
    assert root.available() == 2_300
    child = TokenBudget(total=3_000).record_usage(2_500)
    after = root.settle(child)
    assert after.available() == 2_800
    assert (after.used, after.subcall_allocation, after.reserved) == (4_500, 0, 700)


@pytest.mark.req("C-7")
@given(AMOUNTS, AMOUNTS)
def test_settling_charges_what_was_spent_and_nothing_else(total: int, used: int):
    parent = account(2_000).allocate_for_subcall(total)
    after = parent.settle(account(total, used=used))
    assert (after.used, after.subcall_allocation) == (used, 0)
    assert after.available() == 2_000 - used


def test_no_operation_changes_the_account_it_is_asked_of():
    budget = account(100, used=10, reserved=10, given_=10)
    budget.reserve(1).allocate_for_subcall(1).record_usage(1).settle(account(5))
    assert budget == account(100, used=10, reserved=10, given_=10)
