"""A short script of all that a store is asked for, played over a connection that is cut at a given byte.

Whoever plays it asks again until it is answered, with the same key or on the same condition. Then each
step must have had its effect once, and nothing may be there in part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from limpet import errors
from limpet.stores import port
from limpet.stores.port import Erasure, ErasureCounts, StreamErasure
from limpet.testing.store_contract import erasure_contract
from limpet.testing.store_contract.harness import hash_of
from limpet.wiring import store_opener
from tests.faults.proxy import WAYS, Fault, Proxy, Way

KEY = "the key of the first append"
_TRIES = 20
_BLOB = b"a large thing " * 40
_NOTE = b"remember this"

QUESTIONS = (KEY.encode(), _NOTE, erasure_contract.KIND.encode())
"""By what the questions are known that change something."""

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Scene:
    """One tenant's script, the same bytes for tenants whose names are equally long."""

    url: str
    tenant: str
    careless: bool = False
    """Whether it asks again without the key, to what is there by then: a bug, to be caught."""
    interruptions: int = 0
    _doubt: bool = False
    """Whether the step that is played may have had its effect already."""

    def play(self) -> None:
        """Play the whole script."""
        with contextlib.closing(self._answered(lambda: store_opener.open_store(self.url))) as store:
            first, second = self._first(), self._second()
            self._append(store, first, port.KeyRecord(b"one", 1, 3))
            self._put_note(store)
            before = self._answered(lambda: store.feed(self.tenant))
            assert [event.position for event in before] == [1, 2, 3], before
            self._erase(store)
            after = self._answered(lambda: store.feed(self.tenant))
            assert [event.position for event in after] == [1, 2, 3, 4], after
            assert self._answered(lambda: store.wait(self.tenant, 3, 5))
            self._append(store, second, port.KeyRecord(b"two", 5, 5))

    def _answered(self, ask: Callable[[], _Answer]) -> _Answer:
        self._doubt = False
        for _ in range(_TRIES):
            try:
                return ask()
            except errors.Unavailable:
                self.interruptions += 1
                self._doubt = True
        raise AssertionError(f"no answer in {_TRIES} tries")

    def _first(self) -> port.Append:
        events = (erasure_contract.claim_event("c1", "one", (_BLOB,)), erasure_contract.claim_event("c2", "two"))
        return port.Append(
            tenant=self.tenant,
            writes=(
                port.StreamWrite("a", 0, events, (("c1", 0), ("c2", 1))),
                port.StreamWrite("b", 0, (erasure_contract.claim_event("", "three"),)),
            ),
            projections=(erasure_contract._row("a", ["one", "two"]), erasure_contract._row("b", ["three"])),
            snapshots=(port.Snapshot("a", 2, 1, b"one two"),),
            key=port.KeyUse(KEY, b"one"),
        )

    def _second(self) -> port.Append:
        write = port.StreamWrite("b", 1, (erasure_contract.claim_event("c3", "four"),), (("c3", 0),))
        row = erasure_contract._row("b", ["three", "four"])
        return port.Append(tenant=self.tenant, writes=(write,), projections=(row,), key=port.KeyUse("k2", b"two"))

    def _append(self, store: port.Store, append: port.Append, made: port.KeyRecord) -> None:
        def commit() -> port.AppendOutcome:
            asked = self._forgotten(store, append) if self._doubt and self.careless else append
            for _ in range(_TRIES):
                with store.write_lock():
                    (outcome,) = store.commit([asked])
                if not (isinstance(outcome, port.Stale) and not outcome.stream):
                    return outcome
            raise AssertionError("others are faster again and again, and there are no others")

        outcome = self._answered(commit)
        if outcome != port.Appended(made.first, made.last) and not self.careless:
            assert self._doubt and outcome == made, outcome

    def _forgotten(self, store: port.Store, append: port.Append) -> port.Append:
        """Return the append as of one who does not know that it was asked for before."""
        writes = tuple(
            msgspec.structs.replace(write, expected=store.version(self.tenant, write.stream), claims=())
            for write in append.writes
        )
        return msgspec.structs.replace(append, writes=writes, key=None)

    def _put_note(self, store: port.Store) -> None:
        if not self._answered(lambda: store.put_note(self.tenant, "n", _NOTE, expected=0)):
            assert self._doubt, "the note was there before"

    def _erase(self, store: port.Store) -> None:
        share = StreamErasure(stream="a", expected=2, kind=erasure_contract.KIND, whole=True)
        erasure = Erasure(tenant=self.tenant, streams=(share,), time_us=5)

        def erase() -> ErasureCounts | port.Stale:
            for _ in range(_TRIES):
                outcome = store.erase(erasure, erasure_contract.derive_claims)
                if isinstance(outcome, ErasureCounts) or outcome.stream:
                    return outcome
            raise AssertionError("others are faster again and again, and there are no others")

        outcome = self._answered(erase)
        if not isinstance(outcome, ErasureCounts):
            assert self._doubt and outcome == port.Stale("a", 0), outcome
        else:
            assert (outcome.events, outcome.blobs) == (2, 1), outcome

    def faults(self, store: port.Store) -> list[str]:
        """Look at what is there, over a connection that nobody cuts; return what is wrong."""
        said = [erasure_contract.claim_payload("", "three"), erasure_contract.claim_payload("c3", "four")]
        events = store.feed(self.tenant)
        shown = [(event.position, event.stream, event.version) for event in events]
        note = store.note(self.tenant, "n")
        right = {
            "feed": shown == [(1, "erased:1", 1), (2, "erased:1", 2), (3, "b", 1), (4, "erased:1", 3), (5, "b", 2)],
            "payloads": [e.payload for e in events if e.stream == "b"] == said,
            "erased": [event.payload for event in events[:2]] == [None, None],
            "streams": [store.version(self.tenant, each) for each in "ab"] == [0, 2],
            "keys": [store.find_key(self.tenant, each) for each in (KEY, "k2")]
            == [None, port.KeyRecord(b"two", 5, 5)],
            "claims": [store.find_claim(self.tenant, *each) for each in (("a", "c1"), ("b", "c3"))]
            == [0, 2],
            "rows": store.query_projections(self.tenant, port.Query(kind="row"))
            == [erasure_contract._row("b", ["three", "four"])],
            "blobs": store.blobs(self.tenant, [hash_of(_BLOB)]) == {},
            "note": note is not None and note.value == _NOTE,
        }  # fmt: skip
        return [f"{what} of {self.tenant}" for what, is_right in right.items() if not is_right]


@dataclass(slots=True)
class Cuts:
    """Many scenes over one proxy, each with a fault, and what came of them. `direct` goes past the proxy."""

    url: str
    direct: port.Store
    proxy: Proxy
    forget: Callable[[], object]
    careless: bool = False
    scenes: int = 0
    happened: int = 0
    interruptions: int = 0
    faults: list[str] = field(default_factory=list[str])

    def measure(self) -> dict[Way, list[int]]:
        """Play the scene undisturbed; return where each question and answer began, and at last how many bytes passed."""
        self.play(None)
        assert not self.faults, self.faults
        assert not self.interruptions, "an undisturbed scene is interrupted"
        return {way: [*self.proxy.pieces(way), self.proxy.passed(way)] for way in WAYS}

    def play(self, fault: Fault | None) -> None:
        """Play one scene with a fault, and judge it."""
        self.scenes += 1
        self.forget()
        scene = Scene(self.url, f"t{self.scenes:06}", self.careless)
        before = self.proxy.faults_happened
        self.proxy.count_anew(fault)
        try:
            scene.play()
        except Exception as error:
            self.faults.append(f"{fault}: {type(error).__name__}: {error}")
        self.proxy.arm(None)
        self.happened += self.proxy.faults_happened - before
        self.interruptions += scene.interruptions
        self.faults += [f"{fault}: {each}" for each in scene.faults(self.direct)]

    def verify(self) -> None:
        """Have the whole store verified."""
        *_, report = self.direct.verify()
        if not (isinstance(report, port.Report) and report.ok):
            self.faults.append(f"verify: {report}")
