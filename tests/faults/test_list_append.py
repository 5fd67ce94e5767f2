"""Many clients append to lists and read them, while processes die and answers are lost: no anomaly.

A store that breaks one promise now and then is caught, each by the anomaly that it makes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import results
from tests.faults.broken_stores import CAUGHT_AS
from tests.faults.fault_servers import SERVERS
from tests.faults.list_run import Run
from tests.faults.proxy import Proxy

SEED = 20_260_303
PATIENCE_S = 2.0
"""How long a client waits for a server's answer."""


def told(run: Run, backend: str, *, keep: bool = True) -> None:
    """Print a run's figures, and keep them."""
    verdict = run.verdict
    print(
        f"{backend}, seed {run.seed}: {verdict.transactions:,} transactions, {verdict.reads:,} reads,"
        f" {verdict.failed:,} failed, {verdict.unknown:,} of unknown end ({verdict.unknown_done:,} done),"
        f" {dict(run.happened)}"
    )
    if keep:
        results.keep(
            f"list-append {backend}", transactions=verdict.transactions, reads=verdict.reads,
            unknown=verdict.unknown, kills=run.happened["kills"], cuts=run.happened["cuts"],
            seed=run.seed, anomalies=len(run.faults),
        )  # fmt: skip
    if run.faults:
        print(f"kept in {results.keep_evidence(run.folder, 'histories')}")


@pytest.mark.parametrize(
    "wanted", [pytest.param(20_000, marks=pytest.mark.slow), pytest.param(500_000, marks=pytest.mark.long)]
)
def test_no_anomaly_on_sqlite(scratch: Path, wanted: int) -> None:
    run = Run(scratch, str(scratch / "state.db"), SEED, wanted, bent="flaky")
    run.run()
    told(run, "sqlite")
    assert run.faults == []
    assert run.verdict.transactions >= wanted
    assert run.happened["kills"] >= wanted // 500
    assert run.verdict.unknown_done and run.verdict.failed


@pytest.mark.req("A-20")
@pytest.mark.parametrize("backend", SERVERS)
@pytest.mark.parametrize(
    "wanted", [pytest.param(20_000, marks=pytest.mark.slow), pytest.param(500_000, marks=pytest.mark.long)]
)
def test_no_anomaly_on_a_server(scratch: Path, backend: str, wanted: int) -> None:
    with SERVERS[backend]() as served, Proxy("127.0.0.1", served.port) as proxy:
        url = served.url(proxy.port, timeout_s=PATIENCE_S)
        run = Run(scratch, url, SEED, wanted, direct=served.direct, proxy=proxy)
        run.run()
        # Those that came about, not those that were asked for.
        cuts = run.happened["cuts"] = proxy.faults_happened
    told(run, backend)
    assert run.faults == []
    assert run.verdict.transactions >= wanted
    assert run.happened["kills"] >= wanted // 500 and cuts >= wanted // 500
    assert run.verdict.unknown_done and run.verdict.failed


@pytest.mark.slow
@pytest.mark.parametrize("backend", SERVERS)
@pytest.mark.parametrize("bent", ["careless", "remembering"])
def test_a_store_on_a_server_that_breaks_a_promise_is_caught(scratch: Path, backend: str, bent: str) -> None:
    with SERVERS[backend]() as served:
        run = Run(scratch, served.direct, SEED, 1_500, bent=bent)
        run.run()
    assert CAUGHT_AS[bent] & run.verdict.anomalies.keys(), run.faults


@pytest.mark.slow
@pytest.mark.parametrize("bent", CAUGHT_AS)
def test_a_store_that_breaks_a_promise_is_caught(scratch: Path, bent: str) -> None:
    run = Run(scratch, str(scratch / "state.db"), SEED, 1_500, bent=bent)
    run.run()
    assert CAUGHT_AS[bent] & run.verdict.anomalies.keys(), run.faults
