"""The checker of list histories: it is content with what a careful clerk wrote, and sees what was done to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.faults import checker, history
from tests.faults.history import Transaction

Final = dict[str, list[int]]
Damage = Callable[[list[Transaction], Final], None]

CLIENTS = 8
STATUSES: tuple[history.Status, ...] = ("ok", "fail", "info")


def clerk(seed: int, count: int) -> tuple[list[Transaction], Final]:
    """Return a sound history of clients that overlap: each transaction took effect at one moment of its time."""
    rng = random.Random(seed)
    lists: Final = {}
    made: list[Transaction] = []
    free_at = [0] * CLIENTS
    for id_ in range(1, count + 1):
        moment = id_ * 1_000
        client = min(range(CLIENTS), key=free_at.__getitem__)
        begin = max(free_at[client] + 1, moment - rng.randrange(1, 5_000))
        if begin > moment:
            continue
        end = moment + rng.randrange(1, 5_000)
        free_at[client] = end
        names = rng.sample([f"l{id_ // 60 + each}" for each in range(3)], rng.randint(1, 3))
        reads = tuple((name, tuple(lists.get(name, ()))) for name in names)
        appends = [(rng.choice(names), id_ * 10 + each) for each in range(rng.randrange(3))]
        status = rng.choices(STATUSES, [8, 1, 1])[0]
        if status == "ok" or (status == "info" and rng.random() < 0.5):
            for name, element in appends:
                lists.setdefault(name, []).append(element)
        made.append(
            Transaction(
                id=id_, begin=begin, end=None if status == "info" else end, status=status,
                appends=tuple(appends), reads=reads if status == "ok" else (),
            )
        )  # fmt: skip
    return made, lists


def writer_of(made: list[Transaction], element: int) -> int:
    return next(at for at, each in enumerate(made) if element in [e for _, e in each.appends])


def elements_of(made: list[Transaction], final: Final, *, alone: bool = True) -> list[tuple[str, int]]:
    """Elements, newest lists last, that an acknowledged transaction appended, by itself in that list or not."""
    sure = {pair for each in made if each.status == "ok" and (len(each.appends) == 1) is alone for pair in each.appends}
    return [(name, e) for name, elements in final.items() for e in elements if (name, e) in sure]


def lose(made: list[Transaction], final: Final) -> None:
    name, element = elements_of(made, final)[20]
    _forget(made, final, name, element)


def _forget(made: list[Transaction], final: Final, name: str, element: int) -> None:
    """As if it had never been appended, and nobody had ever seen it."""
    final[name].remove(element)
    for at, each in enumerate(made):
        reads = tuple((n, tuple(e for e in read if e != element)) for n, read in each.reads)
        made[at] = msgspec.structs.replace(each, reads=reads)


def lose_at_the_end(made: list[Transaction], final: Final) -> None:
    """Many have read it, and then it is gone."""
    name, element = elements_of(made, final)[20]
    final[name].remove(element)


def double(made: list[Transaction], final: Final) -> None:
    name, element = elements_of(made, final)[-1]
    final[name].append(element)


def make_up(made: list[Transaction], final: Final) -> None:
    next(reversed(final.values())).append(9)


def reorder(made: list[Transaction], final: Final) -> None:
    """Somebody reads the two elements that follow on each other the other way round."""
    for at, each in enumerate(made):
        for index, (name, read) in enumerate(each.reads):
            if len(read) > 5:
                turned = (*read[:-2], read[-1], read[-2])
                reads = (*each.reads[:index], (name, turned), *each.reads[index + 1 :])
                made[at] = msgspec.structs.replace(each, reads=reads)
                return


def abort(made: list[Transaction], final: Final) -> None:
    """A transaction is told that it failed, and it took effect."""
    at = writer_of(made, elements_of(made, final)[20][1])
    made[at] = msgspec.structs.replace(made[at], status="fail", reads=())


def tear(made: list[Transaction], final: Final) -> None:
    name, element = elements_of(made, final, alone=False)[10]
    _forget(made, final, name, element)


def halve(made: list[Transaction], final: Final) -> None:
    """A read that ends between two elements of one transaction."""
    pairs = {each.appends for each in made if each.status == "ok" and len(each.appends) == 2}
    for at, each in enumerate(made):
        for index, (name, read) in enumerate(each.reads):
            if len(read) > 1 and ((name, read[-2]), (name, read[-1])) in pairs:
                reads = (*each.reads[:index], (name, read[:-1]), *each.reads[index + 1 :])
                made[at] = msgspec.structs.replace(each, reads=reads)
                return


def stale(made: list[Transaction], final: Final) -> None:
    """One who only reads does not see what was acknowledged before it began, and nothing else tells."""
    for at, each in enumerate(made):
        if each.status == "ok" and not each.appends and len(each.reads) == 1:
            ((name, read),) = each.reads
            if len(read) > 4:
                writer = made[writer_of(made, read[-1])]
                if writer.end is not None and writer.end < each.begin and len(writer.appends) == 1:
                    made[at] = msgspec.structs.replace(each, reads=((name, read[:-1]),))
                    return
    raise AssertionError("nobody to mislead")


def overlook(made: list[Transaction], final: Final) -> None:
    """One decides on what is not so any more, and appends to the very list: the time tells nothing of it."""
    for at, each in enumerate(made):
        if each.status == "ok" and len(each.appends) == 1 and len(each.reads) == 1:
            ((name, read),) = each.reads
            if each.appends[0][0] == name and len(read) > 4:
                made[at] = msgspec.structs.replace(each, reads=((name, read[:-1]),), begin=0, end=each.end)
                timeless(made)
                return


def skew(made: list[Transaction], final: Final) -> None:
    """Two read what the other appends, and neither sees it."""
    timeless(made)
    final |= {"x": [1], "y": [2]}
    both = (("x", ()), ("y", ()))
    made += [
        Transaction(id=-1, begin=0, end=None, status="ok", appends=(("x", 1),), reads=both),
        Transaction(id=-2, begin=0, end=None, status="ok", appends=(("y", 2),), reads=both),
    ]


def circular(made: list[Transaction], final: Final) -> None:
    """Two see what the other appends."""
    timeless(made)
    final |= {"x": [1], "y": [2]}
    made += [
        Transaction(id=-1, begin=0, end=None, status="ok", appends=(("x", 1),), reads=(("y", (2,)),)),
        Transaction(id=-2, begin=0, end=None, status="ok", appends=(("y", 2),), reads=(("x", (1,)),)),
    ]  # fmt: skip


def cross(made: list[Transaction], final: Final) -> None:
    """Of two that append to the same two lists, each is first in one."""
    timeless(made)
    final |= {"x": [1, 2], "y": [4, 3]}
    made += [
        Transaction(id=-1, begin=0, end=None, status="ok", appends=(("x", 1), ("y", 3))),
        Transaction(id=-2, begin=0, end=None, status="ok", appends=(("x", 2), ("y", 4))),
    ]


def fracture(made: list[Transaction], final: Final) -> None:
    """One sees half of what another did at once."""
    timeless(made)
    final |= {"x": [1], "y": [2]}
    made += [
        Transaction(id=-1, begin=0, end=None, status="ok", appends=(("x", 1), ("y", 2))),
        Transaction(id=-2, begin=0, end=None, status="ok", reads=(("x", (1,)), ("y", ()))),
    ]


def waver(made: list[Transaction], final: Final) -> None:
    """One reads a list twice, and something comes in between."""
    final["x"] = [1]
    made += [
        Transaction(id=-1, begin=0, end=None, status="ok", appends=(("x", 1),)),
        Transaction(id=-2, begin=0, end=None, status="ok", reads=(("x", ()), ("x", (1,)))),
    ]


def timeless(made: list[Transaction]) -> None:
    """So that nothing but what was read says what came first."""
    made[:] = [msgspec.structs.replace(each, begin=0, end=None) for each in made]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_found_in_a_sound_history(seed: int) -> None:
    made, final = clerk(seed, 2_000)
    verdict = checker.check(made, final)
    assert verdict.anomalies == {}
    assert verdict.transactions == len(made) > 1_000
    assert verdict.failed and verdict.unknown > verdict.unknown_done > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (lose, "lost"),
        (lose_at_the_end, "lost"),
        (lose_at_the_end, "vanished"),
        (double, "doubled"),
        (make_up, "made up"),
        (reorder, "reordered"),
        (abort, "aborted"),
        (tear, "torn"),
        (halve, "half read"),
        (stale, "stale"),
        (overlook, "lost update"),
        (skew, "not serializable"),
        (fracture, "skewed read"),
        (circular, "circular read"),
        (cross, "write cycle"),
        (waver, "unrepeatable"),
    ],
)
def test_what_was_done_to_a_history_is_found(damage: Damage, name: str, seed: int) -> None:
    made, final = clerk(seed, 1_500)
    damage(made, final)
    assert name in checker.check(made, final).anomalies


def test_a_history_is_read_back_as_it_was_noted(tmp_path: Path) -> None:
    writer = history.Writer(tmp_path / "h")
    writer.begun(1, (("a", 1),))
    writer.begun(2, (("a", 2), ("b", 3)))
    writer.ended(1, "ok", [("a", ())])
    writer.begun(3, ())
    writer.ended(3, "info")
    writer.close()
    with (tmp_path / "h").open("ab") as torn:
        torn.write(b'["e",2,99')
    first, third, second = history.read([tmp_path / "h"])
    assert (first.status, first.appends, first.reads) == ("ok", (("a", 1),), (("a", ()),))
    assert first.end is not None and first.begin < second.begin < first.end
    assert (third.status, third.end) == ("info", None)
    assert (second.id, second.status, second.end) == (2, "info", None)
