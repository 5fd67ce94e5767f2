"""Calibration: reported usage corrects a counter, within bounds, and its name tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet import Message, errors, limits, tokens
from limpet.tokens import Calibration

CLAUDE = tokens.for_model("claude-sonnet-4-5")
COUNTS = st.integers(1, 10**9)


def test_reported_usage_moves_the_factor_to_the_mean():
    calibration = Calibration("claude-estimate-1")
    for reported in (110, 130):
        calibration = calibration.observe(100, reported)
    assert (calibration.observations, round(calibration.factor, 9)) == (2, 1.2)
    corrected = calibration.apply(CLAUDE)
    assert corrected.name == "claude-estimate-1*1.200"
    assert (corrected.exact, corrected.margin) == (False, CLAUDE.margin)
    message = Message("user", "Find me a flight to Oslo.")
    for plain, mended in (
        (CLAUDE.text("hello there"), corrected.text("hello there")),
        (CLAUDE.message(message), corrected.message(message)),
        (CLAUDE.tools([{"name": "f"}]), corrected.tools([{"name": "f"}])),
        (CLAUDE.reply, corrected.reply),
    ):
        assert plain * 1.2 <= mended < plain * 1.2 + 1


def test_calibrated_counter_is_found_by_its_stored_name():
    corrected = Calibration("o200k_base", 1.0504).apply(tokens.named("o200k_base"))
    again = tokens.named(corrected.name)
    assert again == corrected
    assert again.name == "o200k_base*1.050"


def test_factor_of_one_changes_nothing():
    assert Calibration(CLAUDE.name).apply(CLAUDE) is CLAUDE


def test_calibration_of_another_counter_is_refused():
    with pytest.raises(errors.InvalidRequest, match="o200k_base"):
        Calibration("o200k_base", 2.0).apply(CLAUDE)


@pytest.mark.parametrize(("estimated", "reported"), [(0, 5), (5, 0), (-1, 5)])
def test_nothing_is_no_observation(estimated: int, reported: int):
    with pytest.raises(errors.InvalidRequest):
        Calibration("o200k_base").observe(estimated, reported)


@given(st.lists(st.tuples(COUNTS, COUNTS), max_size=60))
def test_factor_stays_in_bounds_whatever_is_reported(seen: list[tuple[int, int]]):
    calibration = Calibration("o200k_base")
    for estimated, reported in seen:
        calibration = calibration.observe(estimated, reported)
    most = limits.CALIBRATION_FACTOR_MAX
    assert 1 / most <= calibration.factor <= most
    assert calibration.observations == len(seen)
    assert calibration.apply(tokens.named("o200k_base")).text("hello") >= 1


def test_new_observations_keep_their_weight():
    calibration = Calibration("o200k_base")
    for _ in range(1_000):
        calibration = calibration.observe(100, 100)
    for _ in range(200):
        calibration = calibration.observe(100, 150)
    assert calibration.factor > 1.45


@pytest.mark.parametrize("name", ["o200k_base*", "o200k_base*9", "*1.000", "no*1.000", "o200k_base*1.0e9"])
def test_odd_names_are_unknown(name: str):
    with pytest.raises(errors.UnknownCounter):
        tokens.named(name)
