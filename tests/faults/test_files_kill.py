"""Writers of a file store are killed with SIGKILL at any moment; nothing acknowledged is lost, doubled or torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import results
from tests.faults.process_kills import Siege

SEED = 20_260_102


@pytest.mark.parametrize(
    "kills", [pytest.param(100, marks=pytest.mark.slow), pytest.param(1_000, marks=pytest.mark.long)]
)
def test_nothing_acknowledged_is_lost_to_kills(scratch: Path, kills: int) -> None:
    siege = Siege(scratch, SEED, backend="files")
    siege.run(kills)
    print(f"seed {SEED}: {siege.kills} kills, {siege.steps:,} steps")
    results.keep("kills, files", kills=siege.kills, steps=siege.steps, seed=SEED, faults=len(siege.faults))
    if siege.faults:
        print(f"kept in {results.keep_evidence(scratch, 'siege')}")
    assert siege.faults == []
    assert siege.kills >= kills
