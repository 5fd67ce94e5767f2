"""Many want to end one suspension at once, by its token and by deciding: one does, whoever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from tests.faults import results
from tests.faults.suspension_contenders import Races

SEED = 20_260_202


@pytest.mark.req("C-13", "C-15", "C-20", "C-28")
@pytest.mark.parametrize(
    "races", [pytest.param(2_000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.long)]
)
def test_every_suspension_is_ended_by_exactly_one(scratch: Path, races: int) -> None:
    path = scratch / "state.db"
    with limpet.connect(path):
        pass
    with Races(path, SEED) as all_of_them:
        all_of_them.run(races)
    kills = all_of_them.kills
    print(
        f"seed {SEED}: {all_of_them.races:,} races, {all_of_them.contenders:,} contenders,"
        f" kills {dict(kills)}, won by {dict(all_of_them.won)}"
    )
    results.keep(
        "suspension races",
        races=all_of_them.races,
        contenders=all_of_them.contenders,
        kills=kills.total(),
        seed=SEED,
        faults=len(all_of_them.faults),
    )
    assert all_of_them.faults == []
    assert all_of_them.races == races
    assert kills["before"] and kills["after"] and all_of_them.won["the dead"]
    assert min(all_of_them.won[way] for way in ("token", "approve", "reject", "edit")) > 0
    with limpet.connect(path) as lp:
        assert lp.admin.verify().ok
        assert lp.index.list_suspensions() == []
