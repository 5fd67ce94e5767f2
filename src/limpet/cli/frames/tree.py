"""`limpet frames tree`: frames under one another with their accounts, what waits, and whether all adds up."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from limpet import errors
from limpet.cli import again, exits, target, visible
from limpet.cli.frames import books, listing, naming, waiting
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values.frame_state import Scope

if TYPE_CHECKING:
    from limpet.core.values.frame_state import Frame, TreeState
    from limpet.core.values.json_values import Json
    from limpet.wiring import Limpet

_NAME_LEAST = 16
_BARS_LEAST = 72
"""The width of a terminal that has room for bars."""


class Drawn(NamedTuple):
    """A tree to be shown: its frames, parents before children, which of them are all that there are, and what waits."""

    frames: Sequence[Frame]
    whole: bool
    waits: Sequence[waiting.Waiting]

    @property
    def faults(self) -> list[books.Fault]:
        """Where its books disagree."""
        return books.faults(self.frames, closed=self.whole)


def run(reference: str, *, all_: bool, common: Common) -> int:
    """Print the trees that a frame or an actor's open frames belong to; exit 7 if their books do not add up."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        found = [_drawn(lp, tree, all_=all_) for tree in _trees(lp, reference)]
    return show(surface, found, reference, common)


def show(surface: Surface, found: Sequence[Drawn], reference: str, common: Common) -> int:
    """Print trees; return 7 if the books of one do not add up."""
    if surface.face is Face.JSON:
        surface.document({"trees": [_document(tree) for tree in found]})
    elif surface.face is Face.PIPE:
        for tree in found:
            _rows(surface, tree)
    else:
        for number, tree in enumerate(found):
            if number:
                surface.console.print()
            _show(surface, tree)
    if not found:
        surface.note(f"{reference} has no open frame.")
    if any(one.kind == "approval" for tree in found for one in tree.waits):
        surface.note(f"to decide: {again.command('suspensions list', on=common.on)}")
    return exits.DAMAGE if any(tree.faults for tree in found) else exits.DONE


def _trees(lp: Limpet, reference: str) -> list[TreeState]:
    """Return the trees that a reference names: of a frame, or of an actor's open frames, newest first."""
    try:
        return [lp.index.get_tree(lp.index.get_frame(reference).frame_id)]
    except errors.FrameNotFound:
        pass
    mine = lp.index.list_frames(Scope(reference), limit=naming.ALL)
    if mine:
        newest = sorted(mine, key=lambda frame: frame.created_us, reverse=True)
        roots = dict.fromkeys(frame.root_id for frame in newest)
        return [lp.index.get_tree(root_id) for root_id in roots]
    rows = naming.every(lp)
    if any(row.scope.actor_id == reference for row in rows):
        return []
    try:
        return [
            lp.index.get_tree(naming.one_of(reference, [row.frame_id for row in rows], "frame"))
        ]
    except exits.Failure as failure:
        if failure.problem.exit != exits.NOT_FOUND:
            raise
        what = f"there is no actor and no frame {reference!r}."
        raise exits.Failure(failure.problem._replace(what=what)) from failure


def _drawn(lp: Limpet, tree: TreeState, *, all_: bool) -> Drawn:
    known, whole = dict(tree.frames), all_ or not tree.frames
    if whole:
        rows = lp.index.list_frames(open_only=False, limit=naming.ALL)
        for row in rows:
            if row.root_id == tree.root_id and not row.open:
                known.setdefault(row.frame_id, row)
    waits = waiting.of_tree(tree, time.time_ns() // 1000)
    return Drawn(tuple(_in_order(known.values(), tree.root_id)), whole, waits)


def _in_order(frames: Iterable[Frame], root_id: str) -> Iterator[Frame]:
    """Yield the frames of a tree as it is drawn: each before those below it, the older before the newer."""
    children: dict[str | None, list[Frame]] = {}
    for frame in sorted(frames, key=lambda one: (one.created_us, one.frame_id)):
        children.setdefault(frame.parent_frame_id, []).append(frame)
    ahead = [frame for frame in children.get(None, []) if frame.frame_id == root_id]
    while ahead:
        frame = ahead.pop()
        yield frame
        ahead += reversed(children.get(frame.frame_id, []))


def _document(tree: Drawn) -> dict[str, Json]:
    accounts, faults = books.accounts(tree.frames), tree.faults
    return {
        "root": tree.frames[0].frame_id if tree.frames else None,
        "closed_included": tree.whole,
        "conserved": not faults,
        "faults": [{"frame": fault.frame_id, "text": fault.text} for fault in faults],
        "frames": [
            {**listing.summary(frame), "budget": accounts[frame.frame_id].document()}
            for frame in tree.frames
        ],
        "waits": [one.document() for one in tree.waits],
    }


def _rows(surface: Surface, tree: Drawn) -> None:
    accounts = books.accounts(tree.frames)
    for frame in tree.frames:
        of = accounts[frame.frame_id]
        surface.row(
            frame.depth, frame.frame_id, frame.parent_frame_id, frame.scope.actor_id, frame.status, of.total,
            of.used, of.own, of.whole, of.reserved, of.lent, of.free, of.overdrawn, frame.goal,
        )  # fmt: skip
    for one in tree.waits:
        surface.note(f"! {one.frame_id} {one.text}")
    for fault in tree.faults:
        surface.note(f"! {fault.frame_id}: {fault.text}")


def _show(surface: Surface, tree: Drawn) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    for line, style in lines(tree, surface):
        surface.console.print(Text(line, style=style), soft_wrap=True)


def lines(tree: Drawn, surface: Surface) -> Iterator[tuple[str, str]]:
    """Yield a tree as it is drawn on a terminal, each line with its style."""
    width, plain = surface.console.width, surface.ascii
    accounts, glyphs = books.accounts(tree.frames), surface.glyphs
    ids = naming.shortened((frame.frame_id for frame in tree.frames), glyphs.cut)
    for number, line in enumerate(_table(tree.frames, accounts, ids, surface)):
        yield line, "" if number else "bold"
    overdrawn = any(of.overdrawn for of in accounts.values())
    if width >= _BARS_LEAST:
        yield books.legend(plain=plain, overdrawn=overdrawn), "dim"
    faults = tree.faults
    mark = f"conserved {glyphs.good}" if not faults else f"not conserved {glyphs.bad}"
    told = books.equation(accounts[tree.frames[0].frame_id])
    together = len(told) + len(mark) + 3 <= width
    for line in [f"{told}   {mark}"] if together else [*textwrap.wrap(told, width), mark]:
        yield line, "red" if faults else ""
    for fault in faults:
        yield from _wrapped(f"{ids[fault.frame_id]}: {fault.text}", glyphs.bad, width, "red")
    for one in tree.waits:
        yield from _wrapped(f"{ids[one.frame_id]} {one.text}", glyphs.warn, width, "yellow")


def _wrapped(text: str, mark: str, width: int, style: str) -> Iterator[tuple[str, str]]:
    first, *rest = textwrap.wrap(visible.line(text), max(width - len(mark) - 1, 20)) or [""]
    yield f"{mark} {first}", style
    for more in rest:
        yield f"{' ' * len(mark)} {more}", style


def _table(
    frames: Sequence[Frame], accounts: Mapping[str, books.Account], ids: Mapping[str, str], surface: Surface
) -> Iterator[str]:  # fmt: skip
    names = list(_names(frames, ids, plain=surface.ascii))
    statuses = ["status", *(str(frame.status) for frame in frames)]
    columns = _numbers([accounts[frame.frame_id] for frame in frames], frames, plain=surface.ascii)
    taken = 2 + max(map(len, statuses)) + sum(2 + max(map(len, column)) for column in columns)
    bars = surface.console.width >= _BARS_LEAST
    room = max(_NAME_LEAST, surface.console.width - taken - (2 + books.CELLS if bars else 0))
    room = min(room, max(map(_cells, ["frame", *names])))
    shown = [f"{'budget':<{books.CELLS}}"]
    shown += [books.bar(accounts[frame.frame_id], plain=surface.ascii) for frame in frames]
    for number, name in enumerate(["frame", *names]):
        cells = [
            _fitted(name, room, surface.glyphs.cut),
            statuses[number].ljust(max(map(len, statuses))),
        ]
        cells += [shown[number]] if bars else []
        cells += [column[number].rjust(max(map(len, column))) for column in columns]
        yield "  ".join(cells).rstrip()


def _numbers(
    accounts: Sequence[books.Account], frames: Sequence[Frame], *, plain: bool
) -> list[list[str]]:
    """Return the columns of numbers; own and all that was spent where children have spent something."""
    free = [
        f"-{of.overdrawn:,}" if of.overdrawn else f"{of.free:,}" if frame.open else ""
        for of, frame in zip(accounts, frames, strict=True)
    ]
    if all(of.whole == of.own for of in accounts):
        return [["used", *(f"{of.used:,}" for of in accounts)], ["free", *free]]
    every = [f"{of.whole:,}" if of.whole != of.own else "" for of in accounts]
    return [["own", *(f"{of.own:,}" for of in accounts)], ["sum" if plain else "Σ", *every], ["free", *free]]  # fmt: skip


def _names(frames: Sequence[Frame], ids: Mapping[str, str], *, plain: bool) -> Iterator[str]:
    """Yield the first column: lines that lead to a frame, its id and its goal."""
    last, between, along, blank = (
        ("`- ", "|- ", "|  ", "   ") if plain else ("└─ ", "├─ ", "│  ", "   ")
    )
    youngest = {frame.parent_frame_id: frame.frame_id for frame in frames}
    lead: dict[str | None, str] = {None: ""}
    for frame in frames:
        above, is_last = (
            lead.get(frame.parent_frame_id, ""),
            youngest[frame.parent_frame_id] == frame.frame_id,
        )
        root = frame.parent_frame_id is None
        lead[frame.frame_id] = "" if root else above + (blank if is_last else along)
        joint = "" if root else last if is_last else between
        yield f"{above}{joint}{ids[frame.frame_id]}  {visible.line(frame.goal)}"


def _cells(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415 - only a terminal pays for rich

    return cell_len(text)


def _fitted(text: str, room: int, cut: str) -> str:
    """Return the text in exactly so many cells of a terminal."""
    from rich.cells import set_cell_size  # noqa: PLC0415 - only a terminal pays for rich

    if _cells(text) <= room:
        return set_cell_size(text, room)
    return set_cell_size(text, room - len(cut)) + cut
