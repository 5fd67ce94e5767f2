"""A connection cut at any byte of any exchange: whoever asks again gets each effect once, and nothing is half-made."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from limpet.wiring import store_opener
from tests.faults import connection_cuts, results
from tests.faults.connection_cuts import Cuts
from tests.faults.fault_servers import SERVERS
from tests.faults.proxy import WAYS, Fault, Kind, Proxy, Way

PATIENCE_S = 1.0
"""How long a client waits for an answer that fell into a hole."""

HOLE_EVERY = 40


def sampled(pieces: dict[Way, list[int]], way: Way) -> list[int]:
    """Return a byte of each question or answer: of some the first, of some the last, of some one between."""
    return [
        (first, (first + after) // 2, first, after - 1)[number % 4]
        for number, (first, after) in enumerate(itertools.pairwise(pieces[way]))
    ]


def planned(pieces: dict[Way, list[int]], *, every_byte: bool) -> Iterator[Fault]:
    """Return a fault at every byte, or at some of each question and answer; and now and then a hole, or a stall."""
    for way in WAYS:
        places = range(pieces[way][-1]) if every_byte else sampled(pieces, way)
        seldom = HOLE_EVERY * 10 if every_byte else HOLE_EVERY
        for number, at in enumerate(places):
            kind: Kind = "rst" if number % 2 else "fin"
            if number % seldom == 5:
                kind = "hole" if number % (2 * seldom) == 5 else "stall"
            yield Fault(way, at, kind, seconds=0.1)
    # Those that change something are cut off from their answers in any case.
    for asked in connection_cuts.QUESTIONS:
        for at in (0, 1, 10):
            yield Fault("down", at, "rst" if at else "fin", asked=asked)


@contextlib.contextmanager
def cuts(backend: str, *, careless: bool = False) -> Iterator[Cuts]:
    with (
        SERVERS[backend]() as served,
        Proxy("127.0.0.1", served.port) as proxy,
        contextlib.closing(store_opener.open_store(served.direct)) as direct,
    ):
        url = served.url(proxy.port, timeout_s=PATIENCE_S)
        yield Cuts(url, direct, proxy, served.forget, careless)


@pytest.mark.req("A-20")
@pytest.mark.parametrize("backend", SERVERS)
@pytest.mark.parametrize(
    "every_byte", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.long)]
)
def test_a_cut_at_any_byte_makes_nothing_twice_or_in_part(backend: str, every_byte: bool) -> None:
    with cuts(backend) as all_of_them:
        if every_byte:
            # What is sent once for all to a server is long, and cut in the other case.
            all_of_them.play(None)
            all_of_them.forget = bool
        pieces = all_of_them.measure()
        for fault in planned(pieces, every_byte=every_byte):
            all_of_them.play(fault)
        all_of_them.verify()
    total = {way: pieces[way][-1] for way in WAYS}
    print(
        f"{backend}: {total} bytes, {all_of_them.happened:,} faults in {all_of_them.scenes:,} scenes,"
        f" {all_of_them.interruptions:,} interruptions"
    )
    results.keep(
        f"cuts {backend}", bytes_up=total["up"], bytes_down=total["down"],
        cuts=all_of_them.happened, faults=len(all_of_them.faults),
    )  # fmt: skip
    assert all_of_them.faults == []
    assert all_of_them.happened > 0.9 * (all_of_them.scenes - 1)
    assert all_of_them.interruptions >= 3 * len(connection_cuts.QUESTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("backend", SERVERS)
def test_who_asks_again_without_the_key_is_caught(backend: str) -> None:
    with cuts(backend, careless=True) as all_of_them:
        all_of_them.play(None)
        all_of_them.forget = bool
        all_of_them.play(Fault("down", 0, "rst", asked=connection_cuts.KEY.encode()))
    assert any("feed" in fault for fault in all_of_them.faults), all_of_them.faults
