"""Which came before which, and whether that goes round in a circle. In time linear in the edges."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence

WW, WR, RW, TIME = range(4)
"""Appended after; read what was appended; appended what was not read yet; began after the end."""

ARROWS = {WW: "was appended to by", WR: "was read by", RW: "did not see", TIME: "ended before"}

# Tried in this order: the fewer kinds of edges a circle needs, the worse it is.
_NAMES: tuple[tuple[tuple[int, ...], str], ...] = (
    ((WW,), "write cycle"),
    ((WW, WR), "circular read"),
    ((WW, WR, RW), "not serializable"),
    ((WW, WR, RW, TIME), "stale"),
)

_STARTS_MAX = 50


class Graph:
    """Nodes by number; edges with a kind. Put first, then asked."""

    def __init__(self) -> None:
        self._from = array("l")
        self._to = array("l")
        self._kind = array("b")

    def put(self, before: int, after: int, kind: int) -> None:
        """Say that one node comes before another."""
        if before != after:
            self._from.append(before)
            self._to.append(after)
            self._kind.append(kind)

    def circles(self, nodes: int) -> list[tuple[str, list[tuple[int, int]]]]:
        """Return one circle of each kind that there is: its name, and its nodes, each with the edge that leaves it."""
        left = self._tangled(range(len(self._from)), nodes)
        found: list[tuple[str, list[tuple[int, int]]]] = []
        for kinds, name in _NAMES:
            edges = [edge for edge in left if self._kind[edge] in kinds]
            tangled = self._tangled(edges, nodes)
            if tangled:
                circle = self._circle(tangled)
                found.append((name, circle))
                # What needs fewer kinds of edges explains what needs more.
                break
        return found

    def _tangled(self, edges: Sequence[int], nodes: int) -> list[int]:
        """Return the edges that are left when what nothing comes before, or after, is taken away."""
        for starts, ends in ((self._from, self._to), (self._to, self._from)):
            edges = _untangle(edges, starts, ends, nodes) if edges else []
        return list(edges)

    def _circle(self, edges: Iterable[int]) -> list[tuple[int, int]]:
        """Return a short circle among edges that have one."""
        leaving: dict[int, list[int]] = {}
        for edge in edges:
            leaving.setdefault(self._from[edge], []).append(edge)
        best: list[int] = []
        for start in list(leaving)[:_STARTS_MAX]:
            found = self._way_back(start, leaving)
            if found and (not best or len(found) < len(best)):
                best = found
        for start in leaving:
            best = best or self._way_back(start, leaving)
        return [(self._from[edge], self._kind[edge]) for edge in best]

    def _way_back(self, start: int, leaving: dict[int, list[int]]) -> list[int]:
        came: dict[int, int] = {}
        ahead = deque([start])
        while ahead:
            node = ahead.popleft()
            for edge in leaving.get(node, ()):
                to = self._to[edge]
                if to == start:
                    path = [edge]
                    while self._from[path[-1]] != start:
                        path.append(came[self._from[path[-1]]])
                    return path[::-1]
                if to not in came:
                    came[to] = edge
                    ahead.append(to)
        return []


def _untangle(edges: Sequence[int], starts: array[int], ends: array[int], nodes: int) -> list[int]:
    """Take away, again and again, every node that no edge goes to, with the edges that leave it."""
    waiting = array("l", bytes(8 * nodes))
    count = array("l", bytes(8 * (nodes + 1)))
    for edge in edges:
        waiting[ends[edge]] += 1
        count[starts[edge] + 1] += 1
    for node in range(nodes):
        count[node + 1] += count[node]
    place, sorted_ = array("l", count), array("l", bytes(8 * len(edges)))
    for edge in edges:
        start = starts[edge]
        sorted_[place[start]] = edge
        place[start] += 1
    free = [node for node in range(nodes) if not waiting[node]]
    while free:
        node = free.pop()
        for at in range(count[node], count[node + 1]):
            end = ends[sorted_[at]]
            waiting[end] -= 1
            if not waiting[end]:
                free.append(end)
    return [edge for edge in edges if waiting[starts[edge]]]
