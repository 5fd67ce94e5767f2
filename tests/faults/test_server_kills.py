"""Servers are killed with SIGKILL again and again, and so are the writers: nothing acknowledged is lost.

That holds at the level that a store says. A level that the server's settings can't hold is refused by name, and what
it would have cost is shown.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from limpet import errors
from limpet.wiring import store_opener
from tests.faults import results
from tests.faults.fault_servers import SERVERS
from tests.faults.list_run import Run

SEED = 20_260_606
PATIENCE_S = 5.0

WEAK: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "postgres": (("synchronous_commit=off", "wal_writer_delay=10s"), {}, "synchronous_commit"),
    "redis": ((), {"appendonly": "no"}, "appendonly"),
}
"""Settings that do not hold what is acknowledged, and the one that is named for it."""


@pytest.mark.req("A-20")
@pytest.mark.parametrize("backend", SERVERS)
@pytest.mark.parametrize(
    "wanted", [pytest.param(2_500, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.long)]
)
def test_nothing_acknowledged_is_lost_to_kills_of_a_server(scratch: Path, backend: str, wanted: int) -> None:
    with SERVERS[backend]() as served:
        with contextlib.closing(store_opener.open_store(served.direct)) as store:
            assert store.durability == "power-loss"
        run = Run(
            scratch, served.url(timeout_s=PATIENCE_S), SEED, wanted, direct=served.direct,
            kill_every=600, restart=served.restart, restart_every=200,
        )  # fmt: skip
        run.run()
    kills = run.happened["server kills"]
    print(
        f"{backend}, seed {SEED}: {run.verdict.transactions:,} transactions, {dict(run.happened)},"
        f" {run.verdict.unknown:,} of unknown end"
    )
    results.keep(
        f"server kills {backend}", transactions=run.verdict.transactions, server_kills=kills,
        kills=run.happened["kills"], seed=SEED, anomalies=len(run.faults),
    )  # fmt: skip
    assert run.faults == []
    assert kills >= wanted // 500


@pytest.mark.slow
@pytest.mark.req("A-20")
@pytest.mark.parametrize("backend", SERVERS)
def test_a_level_that_a_server_can_not_hold_is_refused_and_would_have_cost(scratch: Path, backend: str) -> None:
    positional, named, culprit = WEAK[backend]
    with SERVERS[backend](*positional, **named) as served:
        with pytest.raises(errors.UnsafeStore, match=culprit):
            store_opener.open_store(served.url(durability="power-loss"))
        # Asked for no more than the server holds, it is opened, and says so; and it is as good as it says.
        weak = served.url(durability="none", timeout_s=PATIENCE_S)
        with contextlib.closing(store_opener.open_store(weak)) as store:
            assert store.durability != "power-loss"
        run = Run(scratch, weak, SEED, 1_500, kill_every=0, restart=served.restart, restart_every=300)
        run.run()
    assert {"lost", "vanished"} & run.verdict.anomalies.keys(), run.faults
