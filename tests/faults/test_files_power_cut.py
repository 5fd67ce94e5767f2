"""The file store: the power fails after any operation, and nothing acknowledged is lost."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.faults import campaign, planted, results
from tests.faults.campaign import Run

SEED = 8_000
IMAGES_A_RUN = 1_250


@pytest.mark.req("B-18")
@pytest.mark.parametrize(
    "wanted", [pytest.param(5_000, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.long)]
)
def test_nothing_acknowledged_is_lost_to_power_cuts(scratch: Path, wanted: int) -> None:
    count = math.ceil(wanted / IMAGES_A_RUN)
    runs = [Run(scratch, SEED + number, IMAGES_A_RUN, backend="files") for number in range(count)]
    outcomes = list(campaign.judge_all(runs))
    images = sum(outcome.images for outcome in outcomes)
    faults = [outcome.fault for outcome in outcomes if outcome.fault]
    operations = sum(outcome.operations for outcome in outcomes)
    print(f"seeds {SEED} to {SEED + count - 1}: {images:,} images of {operations:,} operations")
    results.keep(
        "power cuts, files", images=images, operations=operations, seed=SEED, runs=count,
        bad=len(faults),
    )  # fmt: skip
    assert faults == []
    assert images >= wanted


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["journal-not-synced", "folder-not-synced", "index-first", planted.EARLY_ACK])
def test_a_planted_bug_is_caught(scratch: Path, bug: str) -> None:
    assert campaign.judge(Run(scratch, SEED, IMAGES_A_RUN, bug, "files")).fault
