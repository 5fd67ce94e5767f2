"""A connection cut at any byte of any exchange: whoever asks again gets each effect once, and nothing is half-made."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

from holdfast.wiring import stores
from tests.faults import results
from tests.faults.cutting import Cuts
from tests.faults.proxy import WAYS, Fault, Kind, Proxy
from tests.faults.serving import SERVERS

SEED = 20_260_505
PATIENCE_S = 1.0
"""How long a client waits for an answer that fell into a hole."""


def planned(total: dict[str, int], each: int, holes: int) -> Iterator[Fault]:
    """Return a fault at each of so many bytes of each direction, evenly spread (0: at every one), and some holes."""
    rng = random.Random(SEED)
    for way in WAYS:
        every = max(1, total[way] // each) if each else 1
        for number, at in enumerate(range(rng.randrange(every), total[way], every)):
            kind: Kind = "rst" if number % 2 else "fin"
            yield Fault(way, at, kind)
        for _ in range(holes):
            yield Fault(way, rng.randrange(total[way]), "hole")
            yield Fault(way, rng.randrange(total[way]), "stall", seconds=0.1)


@contextlib.contextmanager
def cuts(backend: str, *, careless: bool = False) -> Iterator[Cuts]:
    with (
        SERVERS[backend]() as served,
        Proxy("127.0.0.1", served.port) as proxy,
        contextlib.closing(stores.open_store(served.direct)) as direct,
    ):
        url = served.url(proxy.port, timeout_s=PATIENCE_S)
        yield Cuts(url, direct, proxy, careless)


@pytest.mark.parametrize("backend", SERVERS)
@pytest.mark.parametrize(
    "each", [pytest.param(100, marks=pytest.mark.slow), pytest.param(0, marks=pytest.mark.long)]
)
def test_a_cut_at_any_byte_makes_nothing_twice_or_in_part(backend: str, each: int) -> None:
    with cuts(backend) as all_of_them:
        total = all_of_them.measure()
        for fault in planned(total, each, holes=3 if each else 100):
            all_of_them.play(fault)
        all_of_them.verify()
    print(
        f"{backend}, seed {SEED}: {total} bytes, {all_of_them.happened:,} faults in"
        f" {all_of_them.scenes:,} scenes, {all_of_them.interruptions:,} interruptions"
    )
    results.keep(
        f"cuts {backend}", bytes_up=total["up"], bytes_down=total["down"],
        cuts=all_of_them.happened, seed=SEED, faults=len(all_of_them.faults),
    )  # fmt: skip
    assert all_of_them.faults == []
    assert all_of_them.happened > 0.9 * (all_of_them.scenes - 1)
    assert all_of_them.interruptions > 0.5 * all_of_them.happened


@pytest.mark.slow
@pytest.mark.parametrize("backend", SERVERS)
def test_who_asks_again_without_the_key_is_caught(backend: str) -> None:
    with cuts(backend, careless=True) as all_of_them:
        total = all_of_them.measure()
        for fault in planned(total, 60, holes=0):
            all_of_them.play(fault)
    assert any("feed" in fault for fault in all_of_them.faults)
