"""How a person names a frame or a suspension, and how their ids are shown where there is little room.

A name is the whole id, any beginning of it that no other has, @last, @last~2, or an id as it is shown:
its beginning, an ellipsis, its end.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from limpet import errors
from limpet.cli import exits, figures, references, visible

if TYPE_CHECKING:
    from limpet.core.values.frame_state import Frame, Suspension, ToolRun
    from limpet.wiring import Limpet

ALL = sys.maxsize
"""As many as there are."""

_WHOLE = 12
_HEAD = _TAIL = 4
_SHOWN = 3
_LAST = re.compile(r"@last(?:~(\d{1,9}))?")
_CUT = re.compile(r"…|\.\.\.")


def shortened(ids: Iterable[str], cut: str) -> dict[str, str]:
    """Return how ids are shown: short ones whole, of long ones the beginning and as much of the end as it takes."""
    known = list(dict.fromkeys(ids))
    return {id_: visible.line(_short(id_, known, cut)) for id_ in known}


def _short(id_: str, known: Sequence[str], cut: str) -> str:
    if len(id_) <= _WHOLE:
        return id_
    # A child's id is that of its root and a number, which says little alone.
    head, number = id_[:_HEAD], len(id_) - len(id_.partition(".")[0])
    for size in range(_TAIL + number, len(id_) - _HEAD):
        tail = id_[-size:]
        if sum(one.startswith(head) and one.endswith(tail) for one in known) == 1:
            return f"{head}{cut}{tail}"
    return id_


def frame(lp: Limpet, reference: str) -> Frame:
    """Return the frame that a reference names, open or closed."""
    if not _LAST.fullmatch(reference):
        with contextlib.suppress(errors.FrameNotFound):
            return lp.index.get_frame(reference)
    rows = every(lp)
    return lp.index.get_frame(one_of(reference, [row.frame_id for row in rows], "frame"))


def every(lp: Limpet) -> list[Frame]:
    """Return the frames of a tenant, open and closed, newest first."""
    rows = lp.index.list_frames(open_only=False, limit=ALL)
    return sorted(rows, key=lambda row: (row.created_us, row.frame_id), reverse=True)


def suspension(lp: Limpet, reference: str) -> Suspension:
    """Return the suspension that a reference names, waiting or ended."""
    if not _LAST.fullmatch(reference):
        with contextlib.suppress(errors.SuspensionNotFound):
            return lp.index.get_suspension(reference)
    rows = lp.index.list_suspensions(waiting=False, limit=ALL)
    found = one_of(reference, [row.suspension_id for row in rows], "suspension")
    return lp.index.get_suspension(found)


def tool(of: Frame, reference: str) -> ToolRun:
    """Return the tool in progress that a reference names: by its id, or by its name if only one has it."""
    by_name = [one for one in of.tools if one.name == reference]
    if len(by_name) == 1:
        return by_name[0]
    found = one_of(reference, [one.tool_id for one in of.tools], "tool", of.frame_id)
    return next(one for one in of.tools if one.tool_id == found)


def session(lp: Limpet, reference: str | None) -> str | None:
    """Return the id of the session that a reference names; one that the store does not know stays as it is."""
    if reference is None:
        return None
    try:
        return references.session(lp, reference).id
    except exits.Failure as failure:
        if failure.problem.exit != exits.NOT_FOUND or _LAST.fullmatch(reference):
            raise
        return reference


def one_of(reference: str, ids: Sequence[str], noun: str, within: str = "") -> str:
    """Return the one id that a reference names, among ids with the newest first; raise Failure if it names none."""
    last = _LAST.fullmatch(reference)
    if last:
        back = int(last[1] or 0)
        if back < len(ids):
            return ids[back]
        raise exits.Failure(_unknown(reference, len(ids), noun, within))
    found = [id_ for id_ in ids if _fits(reference, id_)]
    if reference in found:
        return reference
    if len(found) == 1:
        return found[0]
    raise exits.Failure(
        _ambiguous(reference, found, noun, within) if found else _unknown(reference, len(ids), noun, within)
    )  # fmt: skip


def _fits(reference: str, id_: str) -> bool:
    head, *tails = _CUT.split(reference, maxsplit=1)
    fits = id_.startswith(head) and len(id_) >= len(head) + sum(map(len, tails))
    return fits and all(id_.endswith(tail) for tail in tails) if tails else id_.startswith(head)


_LISTS = {"frame": ("frames list", "--all"), "suspension": ("suspensions list", "--all")}


def _ambiguous(reference: str, found: Sequence[str], noun: str, within: str) -> exits.Problem:
    more = " and more" if len(found) > _SHOWN else ""
    return exits.Problem(
        exits.USAGE,
        "ambiguous_id",
        f"{reference!r} names more than one {noun}.",
        f"It could be {', '.join(found[:_SHOWN])}{more}.",
        "Give more of the id, or list them:",
        command=_LISTS.get(noun, ("frames show",)),
        named=within,
    )


def _unknown(reference: str, seen: int, noun: str, within: str) -> exits.Problem:
    kind = {"suspension": errors.SuspensionNotFound, "tool": errors.ToolNotFound}
    where = f" in progress of {within}" if within else ""
    return exits.Problem(
        exits.NOT_FOUND,
        kind.get(noun, errors.FrameNotFound).code,
        f"there is no {noun} {reference!r}{where}.",
        f"Of {figures.count(seen, noun)}, none has an id that it names.",
        "",
        {noun: reference},
        _LISTS.get(noun, ("frames show",)),
        named=within,
    )
