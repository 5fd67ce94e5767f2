"""What stands ready to be said of a user: the facts that hold, the most useful first, and a text of them.

The list is kept up with each change, so that a profile costs what is in it, not what was ever said. It is
always exact as far as it goes: once facts had to be left out, only a look at all of them can make it longer.
"""

from __future__ import annotations

import bisect
import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from limpet import limits
from limpet.core.values.memory_records import Fact, FactKind, Profile

Count = Callable[[str], int]

_IDENTITY: Final = ("name", "nickname", "pronouns", "language", "age")
_CONSTRAINTS: Final = ("allergy", "diet", "eat")
_BY_KIND: Final = {FactKind.PREFERENCE: 2, FactKind.FACT: 3, FactKind.ENTITY: 4}
_MISSES_MAX: Final = 16


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """The facts of a user that hold, the most useful first; `more`: there are others, all of them less useful.

    `turn` counts the changes of all that is known of the user.
    """

    turn: int = 0
    more: bool = False
    facts: tuple[Fact, ...] = ()


def use(fact: Fact) -> tuple[int, int, int, str]:
    """Return how useful a fact is; the least value is the most useful: who they are, what they can't have,
    what they like, what else is so, whom and what they mention; the newest first.
    """
    topic = fact.about.partition(":")[0]
    rank = 0 if topic in _IDENTITY else 1 if topic in _CONSTRAINTS else _BY_KIND[fact.kind]
    return rank, -fact.since_us, -fact.source.position, fact.id


def changed(
    ready: Ready, gone: Iterable[Fact], new: Iterable[Fact], all_facts: Callable[[], Iterable[Fact]]
) -> Ready:
    """Return the list after some facts ceased to hold and others came to; `all_facts` is asked only if it is short."""
    lost = {fact.id for fact in gone}
    facts = [fact for fact in ready.facts if fact.id not in lost]
    more = ready.more
    for fact in new:
        if more and (not facts or use(fact) > use(facts[-1])):
            continue
        bisect.insort(facts, fact, key=use)
    if more and len(facts) < limits.PROFILE_FACTS_MAX:
        facts, more = sorted(all_facts(), key=use), False
    if len(facts) > limits.PROFILE_FACTS_KEPT:
        del facts[limits.PROFILE_FACTS_KEPT :]
        more = True
    return Ready(ready.turn + 1, more, tuple(facts))


def written(facts: Sequence[Fact], budget: int, count: Count) -> Profile:
    """Return a profile within a budget of tokens: one line for each fact, the words of the user in quotes."""
    lines, taken, said = list[str](), list[Fact](), set[str]()
    room, misses = budget, 0
    for fact in facts[: limits.PROFILE_FACTS_MAX]:
        if fact.text in said:
            continue
        line = _line(fact)
        tokens = count(line + "\n")
        if tokens > room:
            misses += 1
            if misses > _MISSES_MAX:
                break
            continue
        room -= tokens
        said.add(fact.text)
        lines.append(line)
        taken.append(fact)
    # Lines together may have more tokens than one by one.
    while lines and count("\n".join(lines)) > budget:
        del lines[-1], taken[-1]
    text = "\n".join(lines)
    return Profile(text, count(text) if text else 0, tuple(taken))


def _line(fact: Fact) -> str:
    quoted = fact.text.replace("“", "'").replace("”", "'")
    return f"- “{quoted}” ({_day(fact.since_us)})"


def _day(time_us: int) -> str:
    epoch = datetime.date(1970, 1, 1)
    try:
        return (epoch + datetime.timedelta(microseconds=time_us)).isoformat()
    except OverflowError:
        return "undated"
