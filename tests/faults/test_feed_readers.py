"""The feed under many writers: whoever follows it gets every event once and in order, while processes die."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.wiring import store_opener
from tests.faults import results
from tests.faults.fault_servers import SERVERS
from tests.faults.feed_readers import Followers
from tests.faults.list_clients import TENANTS
from tests.faults.list_run import Run

SEED = 20_260_404
READERS = 2
"""Of each tenant."""


def told(run: Run, followers: Followers, backend: str) -> None:
    """Print the figures, and keep them."""
    events = sum(len(reader.links) for reader in followers.readers)
    print(
        f"{backend}, seed {run.seed}: {run.verdict.transactions:,} transactions of 32 writers,"
        f" {len(followers.readers)} readers got {events:,} events,"
        f" {sum(reader.interruptions for reader in followers.readers)} interruptions, {dict(run.happened)}"
    )
    results.keep(
        f"feed {backend}", transactions=run.verdict.transactions, readers=len(followers.readers),
        events_read=events, kills=run.happened["kills"], seed=run.seed, faults=len(run.faults),
    )  # fmt: skip


@pytest.mark.slow
def test_every_event_once_and_in_order_on_sqlite(scratch: Path) -> None:
    url = str(scratch / "state.db")
    run = Run(scratch, url, SEED, 3_000)
    with Followers(url, TENANTS, READERS) as followers:
        run.run()
    run.faults += followers.faults(url)
    told(run, followers, "sqlite")
    assert run.faults == []
    assert min(len(reader.links) for reader in followers.readers) > 500


@pytest.mark.slow
@pytest.mark.req("A-20")
@pytest.mark.parametrize("backend", SERVERS)
def test_every_event_once_and_in_order_while_transactions_are_held_open(scratch: Path, backend: str) -> None:
    with SERVERS[backend]() as served:
        # Somebody has to have made the tables.
        store_opener.open_store(served.direct).close()
        run = Run(scratch, served.direct, SEED, 2_500)
        with served.held(), Followers(served.direct, TENANTS, READERS) as followers:
            run.run()
        run.faults += followers.faults(served.direct)
    told(run, followers, backend)
    assert run.faults == []
    assert min(len(reader.links) for reader in followers.readers) > 300


@pytest.mark.slow
def test_a_feed_that_shows_the_later_first_is_caught(scratch: Path) -> None:
    url = str(scratch / "state.db")
    run = Run(scratch, url, SEED, 500, kill_every=0)
    with Followers(url, TENANTS, 1, bent="hasty") as followers:
        run.run()
    assert run.faults == []
    assert any("came" in fault for fault in followers.faults(url))
