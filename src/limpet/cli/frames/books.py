"""The token accounts of a frame tree: what each frame spent and has, drawn as a bar; and whether they add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from limpet.cli import picture

if TYPE_CHECKING:
    from limpet.core.values.frame_state import Frame
    from limpet.core.values.json_values import Json

CELLS = 20
_PARTS = ("used", "reserved", "lent", "overdrawn", "free")
_UNICODE: Mapping[str, str] = dict(zip(_PARTS, "█▒░!·", strict=True))
_ASCII: Mapping[str, str] = dict(zip(_PARTS, "#=+!.", strict=True))
_TOLD: Mapping[str, str] = {"lent": "lent to children"}


class Account(NamedTuple):
    """Tokens of a frame. `own` is what it spent itself, `settled` what its closed children did.

    `used` is both; `below` is what frames below it that are open have spent.
    """

    total: int
    used: int
    settled: int
    below: int
    reserved: int
    lent: int
    free: int
    overdrawn: int

    @property
    def own(self) -> int:
        """What it spent itself."""
        return self.used - self.settled

    @property
    def whole(self) -> int:
        """What it and everything below it has spent."""
        return self.used + self.below

    def document(self) -> dict[str, Json]:
        """Return every number by its name."""
        return {
            "total": self.total, "used": self.used, "own": self.own, "by_closed_children": self.settled,
            "by_open_descendants": self.below, "with_descendants": self.whole, "reserved": self.reserved,
            "lent": self.lent, "free": self.free, "overdrawn": self.overdrawn,
        }  # fmt: skip


def account(frame: Frame, below: int = 0) -> Account:
    """Return a frame's account; `below` is what its open descendants have used."""
    budget = frame.budget
    return Account(
        budget.total, budget.used, frame.settled, below, budget.reserved, budget.subcall_allocation,
        budget.available(), budget.overdrawn,
    )  # fmt: skip


def accounts(frames: Sequence[Frame]) -> dict[str, Account]:
    """Return the accounts of a tree's frames by their ids; parents come before children."""
    below = dict.fromkeys((frame.frame_id for frame in frames), 0)
    for frame in reversed(frames):
        # What a closed child used is settled: its parent has it in its own account.
        if frame.open and frame.parent_frame_id in below:
            below[frame.parent_frame_id] += frame.budget.used + below[frame.frame_id]
    return {frame.frame_id: account(frame, below[frame.frame_id]) for frame in frames}


def bar(of: Account, *, plain: bool) -> str:
    """Return an account as a bar; what is spent or promised beyond the total has a part of its own."""
    glyphs = _ASCII if plain else _UNICODE
    parts = {"used": of.used, "reserved": of.reserved, "lent": of.lent}
    beyond = of.overdrawn
    for name, size in parts.items():
        parts[name] = size - min(beyond, size)
        beyond -= size - parts[name]
    parts |= {"overdrawn": of.overdrawn, "free": of.free}
    shared = picture.cells(parts, CELLS)
    return "".join(glyphs[name] * count for name, count in shared.items()).ljust(CELLS)


def legend(*, plain: bool, overdrawn: bool) -> str:
    """Return what the parts of a bar are."""
    glyphs = _ASCII if plain else _UNICODE
    shown = [name for name in _PARTS if overdrawn or name != "overdrawn"]
    return "  ".join(f"{glyphs[name]} {_TOLD.get(name, name)}" for name in shown)


def equation(of: Account) -> str:
    """Return what the total of an account is made of."""
    closed = f" ({of.settled:,} by children)" if of.settled else ""
    beyond = f" - {of.overdrawn:,} overdrawn" if of.overdrawn else ""
    return (
        f"{of.total:,} = {of.used:,} used{closed} + {of.reserved:,} reserved + {of.lent:,} lent"
        f" + {of.free:,} free{beyond}"
    )


class Fault(NamedTuple):
    """An account that does not add up: of which frame, and how."""

    frame_id: str
    text: str


def faults(frames: Sequence[Frame], *, closed: bool) -> list[Fault]:
    """Return where a tree's books disagree: each account within itself, and with those of the children.

    `closed` says that the closed frames are among them, so that what they spent can be compared.
    """
    children: dict[str | None, list[Frame]] = {}
    for frame in frames:
        children.setdefault(frame.parent_frame_id, []).append(frame)
    return [
        Fault(frame.frame_id, text)
        for frame in frames
        if frame.open
        for text in _faults(frame, children.get(frame.frame_id, []), closed=closed)
    ]


def _faults(frame: Frame, children: Sequence[Frame], *, closed: bool) -> Iterator[str]:
    of = account(frame)
    if of.total + of.overdrawn != of.used + of.reserved + of.lent + of.free:
        yield f"the parts of its account are not its total of {of.total:,}"
    given = sum(child.budget.total for child in children if child.open)
    if of.lent != given:
        yield f"it lent {of.lent:,}, but its open children were given {given:,}"
    aside = sum(frame.reservations.values())
    if of.reserved != aside:
        yield f"it reserved {of.reserved:,}, but its reservations are {aside:,}"
    if of.own < 0:
        yield f"its closed children spent {of.settled:,}, but only {of.used:,} are used"
    spent = sum(child.budget.used for child in children if not child.open)
    if closed and of.settled != spent:
        yield f"{of.settled:,} were settled with its closed children, but they spent {spent:,}"
