"""Whether a history of lists is one that a single, careful clerk could have made, one thing after the other.

Every element is appended once, so that who reads a list says what had been appended and in which
order. From that follows which transaction came before which; and one that ended before another began
came before it as well. A circle in this is an anomaly, whatever the store says of itself. Apart from
that: what was acknowledged is there once, what was refused is not, nothing is there in part.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.faults.cycles import ARROWS, RW, TIME, WR, WW, Graph
from tests.faults.history import Transaction

_KEPT_PER_NAME = 5
_UNKNOWN_END = (1 << 63) - 1


@dataclass(slots=True)
class Verdict:
    """How many transactions ended how, and what is wrong: sentences, by the name of the anomaly."""

    ok: int = 0
    failed: int = 0
    unknown: int = 0
    unknown_done: int = 0
    reads: int = 0
    anomalies: dict[str, list[str]] = field(default_factory=dict)

    @property
    def transactions(self) -> int:
        """All of them."""
        return self.ok + self.failed + self.unknown

    def wrong(self, name: str, what: str) -> None:
        """Note an anomaly; of each name a few are kept."""
        kept = self.anomalies.setdefault(name, [])
        if len(kept) < _KEPT_PER_NAME:
            kept.append(what)


def check(history: Iterable[Transaction], final: Mapping[str, Sequence[int]]) -> Verdict:
    """Judge a history, given all lists as they are when nobody writes any more."""
    return _Judge(final).judge(history)


class _Judge:
    def __init__(self, final: Mapping[str, Sequence[int]]) -> None:
        self._final = {name: tuple(elements) for name, elements in final.items()}
        self._verdict = Verdict()
        self._place: dict[int, tuple[str, int]] = {}
        self._writer: dict[int, int] = {}
        self._ids = array("q")
        self._begin = array("q")
        self._end = array("q")
        self._seen: list[tuple[int, str, int]] = []
        """Transaction, list, and how many elements of it were read."""

    def judge(self, history: Iterable[Transaction]) -> Verdict:
        self._look_at_lists()
        for transaction in history:
            self._take(transaction)
        self._look_for_made_up()
        for number, name, length in self._seen:
            self._look_for_half(number, name, length)
        self._look_for_circles()
        return self._verdict

    def _look_at_lists(self) -> None:
        for name, elements in self._final.items():
            for index, element in enumerate(elements):
                if element in self._place:
                    other, at = self._place[element]
                    self._verdict.wrong("doubled", f"{element} is {name}[{index}] and {other}[{at}]")
                self._place[element] = (name, index)

    def _take(self, transaction: Transaction) -> None:
        there = [self._is_there(name, element) for name, element in transaction.appends]
        text = f"transaction {transaction.id}"
        if transaction.status == "fail":
            self._verdict.failed += 1
            for (name, element), is_there in zip(transaction.appends, there, strict=True):
                if is_there:
                    self._verdict.wrong("aborted", f"{text} failed, but {element} is in {name}")
                    self._writer[element] = -1
            return
        if transaction.status == "info":
            self._verdict.unknown += 1
            if not any(there):
                return
            self._verdict.unknown_done += 1
        else:
            self._verdict.ok += 1
        if not all(there):
            self._missing(transaction, there)
        self._include(transaction)

    def _is_there(self, name: str, element: int) -> bool:
        place = self._place.get(element)
        return place is not None and place[0] == name

    def _missing(self, transaction: Transaction, there: Sequence[bool]) -> None:
        name = "torn" if any(there) else "lost"
        gone = [each for each, is_there in zip(transaction.appends, there, strict=True) if not is_there]
        self._verdict.wrong(name, f"transaction {transaction.id} appended {gone}, which is not there")

    def _include(self, transaction: Transaction) -> None:
        number = len(self._ids)
        self._ids.append(transaction.id)
        self._begin.append(transaction.begin)
        self._end.append(_UNKNOWN_END if transaction.end is None else transaction.end)
        for _, element in transaction.appends:
            self._writer[element] = number
        if transaction.status != "ok":
            return
        lengths: dict[str, tuple[int, ...]] = {}
        for name, elements in transaction.reads:
            self._verdict.reads += 1
            if lengths.setdefault(name, elements) != elements:
                self._verdict.wrong("unrepeatable", f"transaction {transaction.id} read {name} twice, differently")
            self._read(number, transaction, name, elements)

    def _read(self, number: int, transaction: Transaction, name: str, elements: tuple[int, ...]) -> None:
        final = self._final.get(name, ())
        if final[: len(elements)] == elements:
            self._seen.append((number, name, len(elements)))
            return
        text = f"transaction {transaction.id} read {name} as {elements[-6:]}"
        if len(set(elements)) < len(elements):
            self._verdict.wrong("doubled", f"{text}, with something twice")
        elif set(elements) <= set(final):
            self._verdict.wrong("reordered", f"{text}, which is not how it begins")
        else:
            gone = [each for each in elements if each not in final]
            self._verdict.wrong("vanished", f"{text}; {gone[:3]} is not in it")

    def _look_for_made_up(self) -> None:
        for element, (name, index) in self._place.items():
            if element not in self._writer:
                self._verdict.wrong("made up", f"nobody appended {element}, which is {name}[{index}]")

    def _look_for_half(self, number: int, name: str, length: int) -> None:
        """Whoever reads part of what one transaction appended to a list has seen what never was."""
        final = self._final.get(name, ())
        if not 0 < length < len(final):
            return
        last, following = (self._writer.get(final[at], -1) for at in (length - 1, length))
        if last == following and last not in (-1, number):
            self._verdict.wrong(
                "half read",
                f"transaction {self._ids[number]} read {name} in the midst of transaction {self._ids[last]}",
            )

    def _look_for_circles(self) -> None:
        graph = Graph()
        for elements in self._final.values():
            writers = [self._writer.get(element, -1) for element in elements]
            for before, after in itertools.pairwise(writers):
                if before >= 0 and after >= 0:
                    graph.put(before, after, WW)
        for number, name, length in self._seen:
            final = self._final.get(name, ())
            if length and (before := self._writer.get(final[length - 1], -1)) >= 0:
                graph.put(before, number, WR)
            if length < len(final) and (after := self._writer.get(final[length], -1)) >= 0:
                graph.put(number, after, RW)
        nodes = self._put_times(graph)
        for name, circle in graph.circles(nodes):
            self._verdict.wrong(self._called(name, circle), self._told(circle))

    def _put_times(self, graph: Graph) -> int:
        """Who ended before another began came before it: by one node for each end, in the order of the ends."""
        count = len(self._ids)
        ends = sorted((self._end[each], each) for each in range(count) if self._end[each] != _UNKNOWN_END)
        begins = sorted((self._begin[each], each) for each in range(count))
        at = 0
        for moment, number in begins:
            while at < len(ends) and ends[at][0] < moment:
                graph.put(ends[at][1], count + at, TIME)
                if at:
                    graph.put(count + at - 1, count + at, TIME)
                at += 1
            if at:
                graph.put(count + at - 1, number, TIME)
        return count + len(ends)

    def _called(self, name: str, circle: Sequence[tuple[int, int]]) -> str:
        kinds = [kind for _, kind in circle]
        if name == "not serializable" and kinds.count(RW) == 1:
            return "lost update" if WW in kinds else "skewed read"
        return name

    def _told(self, circle: Sequence[tuple[int, int]]) -> str:
        count = len(self._ids)
        told = [f"{self._ids[node]} {ARROWS[kind]}" for node, kind in circle if node < count]
        return " → ".join(told)
