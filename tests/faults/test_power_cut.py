"""The power fails after any operation; nothing acknowledged is lost, whatever the disk had cached."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.faults import campaign, planted, results
from tests.faults.campaign import Run

SEED = 7_000
IMAGES_A_RUN = 1_250


@pytest.mark.parametrize(
    "wanted", [pytest.param(5_000, marks=pytest.mark.slow), pytest.param(50_000, marks=pytest.mark.long)]
)
def test_nothing_acknowledged_is_lost_to_power_cuts(scratch: Path, wanted: int) -> None:
    count = math.ceil(wanted / IMAGES_A_RUN)
    runs = [Run(scratch, SEED + number, IMAGES_A_RUN) for number in range(count)]
    outcomes = list(campaign.judge_all(runs))
    images = sum(outcome.images for outcome in outcomes)
    faults = [outcome.fault for outcome in outcomes if outcome.fault]
    operations = sum(outcome.operations for outcome in outcomes)
    print(f"seeds {SEED} to {SEED + count - 1}: {images:,} images of {operations:,} operations")
    results.keep("power cuts", images=images, operations=operations, seed=SEED, runs=count, bad=len(faults))
    assert faults == []
    assert images >= wanted


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["synchronous-normal", "synchronous-off", "anchor-first", planted.EARLY_ACK])
def test_a_planted_bug_is_caught(scratch: Path, bug: str) -> None:
    assert campaign.judge(Run(scratch, SEED, IMAGES_A_RUN, bug)).fault
