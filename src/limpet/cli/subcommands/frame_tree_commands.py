"""`limpet frames list` and `limpet frames tree`: frames, their token accounts, and their waiting work.

Checks that the accounts of a tree add up, within each frame and between parents and children.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from limpet import errors
from limpet.cli import exit_codes, hints, output, target
from limpet.cli.options import CommonOptions, Limit, Switch
from limpet.cli.output import Cell, Output, OutputMode
from limpet.core.values.frame_state import Scope, SuspensionStatus, ToolStatus

if TYPE_CHECKING:
    from limpet.core.values.frame_state import Frame, Suspension, ToolRun, TreeState
    from limpet.core.values.validation import Json
    from limpet.wiring import Limpet


ACCOUNT_BAR_CELLS = 20
_ACCOUNT_PARTS = ("used", "reserved", "lent", "overdrawn", "free")
_UNICODE_FILL: Mapping[str, str] = dict(zip(_ACCOUNT_PARTS, "█▒░!·", strict=True))
_ASCII_FILL: Mapping[str, str] = dict(zip(_ACCOUNT_PARTS, "#=+!.", strict=True))
_PART_LABELS: Mapping[str, str] = {"lent": "lent to children"}


class FrameAccount(NamedTuple):
    """The tokens of a frame. `used` is the sum of `own`, spent by itself, and `settled`, spent by its closed children.

    `below` is spent by its open descendants.
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
        """The tokens that the frame spent itself."""
        return self.used - self.settled

    @property
    def with_descendants(self) -> int:
        """The tokens that the frame and all its descendants spent."""
        return self.used + self.below

    def document(self) -> dict[str, Json]:
        """Return the account as JSON."""
        return {
            "total": self.total, "used": self.used, "own": self.own, "by_closed_children": self.settled,
            "by_open_descendants": self.below, "with_descendants": self.with_descendants, "reserved": self.reserved,
            "lent": self.lent, "free": self.free, "overdrawn": self.overdrawn,
        }  # fmt: skip


def frame_account(frame: Frame, below: int = 0) -> FrameAccount:
    """Return the account of a frame whose open descendants used `below` tokens."""
    budget = frame.budget
    return FrameAccount(
        budget.total, budget.used, frame.settled, below, budget.reserved, budget.subcall_allocation,
        budget.available(), budget.overdrawn,
    )  # fmt: skip


def tree_accounts(frames: Sequence[Frame]) -> dict[str, FrameAccount]:
    """Return the account of each frame by id. In `frames`, parents come before children."""
    below = dict.fromkeys((frame.frame_id for frame in frames), 0)
    for frame in reversed(frames):
        # The tokens of a closed child are settled in its parent's account.
        if frame.open and frame.parent_frame_id in below:
            below[frame.parent_frame_id] += frame.budget.used + below[frame.frame_id]
    return {frame.frame_id: frame_account(frame, below[frame.frame_id]) for frame in frames}


def account_bar(of: FrameAccount, *, plain: bool) -> str:
    """Return an account as a bar. Overdrawn tokens are a part of their own."""
    glyphs = _ASCII_FILL if plain else _UNICODE_FILL
    parts = {"used": of.used, "reserved": of.reserved, "lent": of.lent}
    beyond = of.overdrawn
    for name, size in parts.items():
        parts[name] = size - min(beyond, size)
        beyond -= size - parts[name]
    parts |= {"overdrawn": of.overdrawn, "free": of.free}
    shared = output.share_cells(parts, ACCOUNT_BAR_CELLS)
    return "".join(glyphs[name] * count for name, count in shared.items()).ljust(ACCOUNT_BAR_CELLS)


def account_legend(*, plain: bool, overdrawn: bool) -> str:
    """Return the legend of the bars."""
    glyphs = _ASCII_FILL if plain else _UNICODE_FILL
    shown = [name for name in _ACCOUNT_PARTS if overdrawn or name != "overdrawn"]
    return "  ".join(f"{glyphs[name]} {_PART_LABELS.get(name, name)}" for name in shown)


def account_equation(of: FrameAccount) -> str:
    """Return the total of an account as the sum of its parts."""
    closed = f" ({of.settled:,} by children)" if of.settled else ""
    beyond = f" - {of.overdrawn:,} overdrawn" if of.overdrawn else ""
    return (
        f"{of.total:,} = {of.used:,} used{closed} + {of.reserved:,} reserved + {of.lent:,} lent"
        f" + {of.free:,} free{beyond}"
    )


class AccountFault(NamedTuple):
    """A frame whose account does not add up, and the reason."""

    frame_id: str
    text: str


def account_faults(frames: Sequence[Frame], *, closed: bool) -> list[AccountFault]:
    """Return the inconsistencies of the accounts of a tree, within each frame and between parents and children.

    `closed`: `frames` has the closed frames too, so that their tokens can be compared.
    """
    children: dict[str | None, list[Frame]] = {}
    for frame in frames:
        children.setdefault(frame.parent_frame_id, []).append(frame)
    return [
        AccountFault(frame.frame_id, text)
        for frame in frames
        if frame.open
        for text in _faults_of_frame(frame, children.get(frame.frame_id, []), closed=closed)
    ]


def _faults_of_frame(frame: Frame, children: Sequence[Frame], *, closed: bool) -> Iterator[str]:
    of = frame_account(frame)
    if of.total + of.overdrawn != of.used + of.reserved + of.lent + of.free:
        yield f"the parts of its account do not add up to its total of {of.total:,}"
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


class WaitingItem(NamedTuple):
    """A work item that waits: its frame, kind, description and reference."""

    frame_id: str
    kind: str
    text: str
    ref: str = ""

    def document(self) -> dict[str, Json]:
        """Return the item as JSON."""
        return {"frame": self.frame_id, "kind": self.kind, "text": self.text, "ref": self.ref or None}


def waiting_items(tree: TreeState, now_us: int) -> list[WaitingItem]:
    """Return the waiting work items of a tree, frame by frame."""
    return [found for frame in tree.frames.values() for found in _items_of_frame(tree, frame, now_us)]


def _items_of_frame(tree: TreeState, frame: Frame, now_us: int) -> Iterator[WaitingItem]:
    if frame.suspension is not None:
        yield _suspension_item(frame, frame.suspension, now_us)
    for tool in frame.tools:
        if tool.status is ToolStatus.UNKNOWN:
            what = f"does not know the outcome of {tool.name} ({tool.effect}): resolve it"
            yield WaitingItem(frame.frame_id, "unknown_tool", what, tool.tool_id)
    deadline = tree.deadline_of(frame.frame_id)
    if deadline is not None and deadline <= now_us:
        what = f"is overdue since {output.duration((now_us - deadline) / 1e6)}"
        yield WaitingItem(frame.frame_id, "overdue", what)
    for child in frame.failures:
        what = f"has a failed child that was not handled: {child}"
        yield WaitingItem(frame.frame_id, "failed_child", what, child)


def _suspension_item(frame: Frame, standing: Suspension, now_us: int) -> WaitingItem:
    what, ref = suspension_subject(frame, standing), standing.suspension_id
    status = current_status(standing, now_us)
    if status is SuspensionStatus.WAITING:
        text = f"waits for approval ({what}), {expiry_text(standing, now_us)}"
        return WaitingItem(frame.frame_id, "approval", text, ref)
    text = f"can't continue: its suspension ({what}) is {status}; suspend it again"
    return WaitingItem(frame.frame_id, f"suspension_{status}", text, ref)


def tool_of_suspension(frame: Frame, standing: Suspension) -> ToolRun | None:
    """Return the tool of a suspension: the one that its purpose names, else the first that has not started yet."""
    named = [tool for tool in frame.tools if standing.purpose in (tool.name, tool.tool_id)]
    meant = [tool for tool in frame.tools if tool.status is ToolStatus.INTENT]
    return next(iter(named or meant), None)


def suspension_subject(frame: Frame | None, standing: Suspension) -> str:
    """Return the tool of a suspension with its effect; without a tool, the purpose or the reason."""
    tool = tool_of_suspension(frame, standing) if frame else None
    if tool is None:
        return standing.purpose or standing.reason
    return f"{tool.name}, {tool.effect}"


def current_status(standing: Suspension, now_us: int) -> SuspensionStatus:
    """Return the status of a suspension at a time; a suspension that was not decided in time is expired."""
    over = standing.expires_us is not None and standing.expires_us <= now_us
    if over and standing.status is SuspensionStatus.WAITING:
        return SuspensionStatus.EXPIRED
    return standing.status


def expiry_text(standing: Suspension, now_us: int) -> str:
    """Return when a suspension expires, as text."""
    if standing.expires_us is None:
        return "never expires"
    return f"expires in {output.duration((standing.expires_us - now_us) / 1e6)}"


@dataclass(frozen=True, kw_only=True)
class FrameListOptions(CommonOptions):
    """Which frames to list. Every given condition must hold."""

    actor: str | None = None
    """Only frames of this actor."""
    session: str | None = None
    """Only frames of this session: its id, a prefix of it, or @last."""
    all: Switch = False
    """Also closed frames."""
    limit: Limit = 50


def list_frames(wanted: FrameListOptions = FrameListOptions()) -> None:
    """List open frames, newest first.

    Example: limpet frames list --actor planner
    """
    surface = Output(wanted)
    with target.open_store(wanted) as lp:
        session = target.session_id_or_reference(lp, wanted.session)
        scope = Scope(wanted.actor, session) if wanted.actor else None
        rows = lp.index.list_frames(scope, open_only=not wanted.all, limit=target.ALL_ROWS)
    found = [frame for frame in rows if session in (None, frame.scope.session_id)]
    found.sort(key=lambda frame: (frame.created_us, frame.frame_id), reverse=True)
    shown = found[: wanted.limit]
    document: Json = {"frames": [frame_summary(frame) for frame in shown], "count": len(found)}
    if surface.print_data(document, map(_frame_row, shown)):
        if surface.mode is OutputMode.JSON:
            return
    elif shown:
        _print_frames(surface, shown)
    else:
        surface.note("No frame matches." if wanted.all else "No open frame matches.")
    if len(found) > len(shown):
        given = [("--actor", wanted.actor), ("--session", wanted.session), ("--limit", len(found))]
        words = [*hints.given_options(given), *["--all"][: wanted.all]]
        command = hints.command_line("frames list", *words, on=wanted.store_options)
        surface.note(f"There are {len(found):,} frames. To list all: {command}")


def frame_summary(frame: Frame) -> dict[str, Json]:
    """Return the fields of a frame that every JSON document has."""
    scope = frame.scope
    return {
        "id": frame.frame_id,
        "root": frame.root_id,
        "parent": frame.parent_frame_id,
        "depth": frame.depth,
        "actor": scope.actor_id,
        "session": scope.session_id,
        "thread": scope.thread_id,
        "goal": frame.goal,
        "status": str(frame.status),
        "budget": _budget_document(frame),
        "tools_in_progress": len(frame.tools),
        "tool_calls": frame.tool_calls,
        "created_at": frame.created_at,
        "completed_at": frame.completed_at,
    }


def _budget_document(frame: Frame) -> dict[str, Json]:
    told = frame_account(frame).document()
    # Only a tree has the numbers of the descendants.
    return {name: told[name] for name in told if "descendants" not in name}


def _frame_row(frame: Frame) -> tuple[object, ...]:
    of, scope = frame_account(frame), frame.scope
    return (
        frame.frame_id, scope.actor_id, scope.session_id, frame.status, frame.depth, of.total, of.used,
        of.reserved, of.lent, of.free, frame.created_at, frame.goal,
    )  # fmt: skip


def _print_frames(surface: Output, frames: list[Frame]) -> None:
    ids = target.short_ids((frame.frame_id for frame in frames), surface.symbols.cut)
    rows = [_frame_cells(frame, ids[frame.frame_id]) for frame in frames]
    surface.print_table(["ID", "ACTOR", "STATUS", ">USED", ">FREE", "BEGUN", "GOAL"], rows)


def _frame_cells(frame: Frame, short: str) -> list[Cell]:
    of = frame_account(frame)
    return [
        (short, "cyan"),
        frame.scope.actor_id,
        (str(frame.status), STATUS_STYLES.get(frame.status, "dim")),
        f"{of.used:,}",
        (_free_text(of, frame), "red" if of.overdrawn else ""),
        output.relative_time(frame.created_at),
        frame.goal,
    ]


def _free_text(of: FrameAccount, frame: Frame) -> str:
    return f"-{of.overdrawn:,}" if of.overdrawn else f"{of.free:,}" if frame.open else ""


STATUS_STYLES = {"active": "green", "waiting": "", "suspended": "yellow", "failed": "red"}
"""The style of each status; others are dim."""


_NAME_WIDTH_MIN = 16
_BARS_WIDTH_MIN = 72
"""The smallest width of a terminal that shows bars."""


class FrameTreeView(NamedTuple):
    """A tree to show: its frames, parents first; whether closed frames are included; its waiting work items."""

    frames: Sequence[Frame]
    complete: bool
    waiting: Sequence[WaitingItem]

    @property
    def faults(self) -> list[AccountFault]:
        """The inconsistencies of its accounts."""
        return account_faults(self.frames, closed=self.complete)


def show_trees(
    reference: Annotated[str, Parameter(name="ACTOR|FRAME")],
    /,
    *,
    all: Switch = False,  # noqa: A002 - the name of the option
    common: CommonOptions = CommonOptions(),
) -> int:
    """Show the trees of an actor's open frames, or of one frame: status, tokens, and waiting approvals.

    Checks that the tokens add up, also between parents and children. Exit 7 if they do not.

    Example: limpet frames tree planner

    Args:
        reference: An actor, or a frame: its id, a prefix of it, @last, or @last~2.
        all: Also closed frames.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        found = [_tree_view(lp, tree, closed=all) for tree in _find_trees(lp, reference)]
    return print_trees(surface, found, reference, common)


def print_trees(surface: Output, found: Sequence[FrameTreeView], reference: str, common: CommonOptions) -> int:
    """Print trees. Return exit code 7 if the accounts of a tree do not add up."""
    if surface.mode is OutputMode.JSON:
        surface.print_json({"trees": [_tree_document(tree) for tree in found]})
    elif surface.mode is OutputMode.PIPE:
        for tree in found:
            _print_tree_rows(surface, tree)
    else:
        for number, tree in enumerate(found):
            if number:
                surface.console.print()
            _print_tree(surface, tree)
    if not found:
        surface.note(f"{reference} has no open frame.")
    if any(one.kind == "approval" for tree in found for one in tree.waiting):
        surface.note(f"to list the approvals: {hints.command_line('suspensions list', on=common.store_options)}")
    return exit_codes.DAMAGE if any(tree.faults for tree in found) else exit_codes.DONE


def _find_trees(lp: Limpet, reference: str) -> list[TreeState]:
    """Return the tree of the frame, or the trees of the actor's open frames, that a reference names; newest first."""
    try:
        return [lp.index.get_tree(lp.index.get_frame(reference).frame_id)]
    except errors.FrameNotFound:
        pass
    mine = lp.index.list_frames(Scope(reference), limit=target.ALL_ROWS)
    if mine:
        newest = sorted(mine, key=lambda frame: frame.created_us, reverse=True)
        roots = dict.fromkeys(frame.root_id for frame in newest)
        return [lp.index.get_tree(root_id) for root_id in roots]
    rows = target.all_frames(lp)
    if any(row.scope.actor_id == reference for row in rows):
        return []
    try:
        return [lp.index.get_tree(target.match_id(reference, [row.frame_id for row in rows], "frame"))]
    except exit_codes.CommandFailure as failure:
        if failure.problem.exit != exit_codes.NOT_FOUND:
            raise
        what = f"there is no actor and no frame {reference!r}."
        raise exit_codes.CommandFailure(failure.problem._replace(what=what)) from failure


def _tree_view(lp: Limpet, tree: TreeState, *, closed: bool) -> FrameTreeView:
    known, whole = dict(tree.frames), closed or not tree.frames
    if whole:
        rows = lp.index.list_frames(open_only=False, limit=target.ALL_ROWS)
        for row in rows:
            if row.root_id == tree.root_id and not row.open:
                known.setdefault(row.frame_id, row)
    waits = waiting_items(tree, time.time_ns() // 1000)
    return FrameTreeView(tuple(_in_drawing_order(known.values(), tree.root_id)), whole, waits)


def _in_drawing_order(frames: Iterable[Frame], root_id: str) -> Iterator[Frame]:
    """Yield the frames of a tree in depth-first order, older siblings first."""
    children: dict[str | None, list[Frame]] = {}
    for frame in sorted(frames, key=lambda one: (one.created_us, one.frame_id)):
        children.setdefault(frame.parent_frame_id, []).append(frame)
    ahead = [frame for frame in children.get(None, []) if frame.frame_id == root_id]
    while ahead:
        frame = ahead.pop()
        yield frame
        ahead += reversed(children.get(frame.frame_id, []))


def _tree_document(tree: FrameTreeView) -> dict[str, Json]:
    accounts, faults = tree_accounts(tree.frames), tree.faults
    return {
        "root": tree.frames[0].frame_id if tree.frames else None,
        "closed_included": tree.complete,
        "conserved": not faults,
        "faults": [{"frame": fault.frame_id, "text": fault.text} for fault in faults],
        "frames": [{**frame_summary(frame), "budget": accounts[frame.frame_id].document()} for frame in tree.frames],
        "waits": [one.document() for one in tree.waiting],
    }


def _print_tree_rows(surface: Output, tree: FrameTreeView) -> None:
    accounts = tree_accounts(tree.frames)
    for frame in tree.frames:
        of = accounts[frame.frame_id]
        surface.print_row(
            frame.depth, frame.frame_id, frame.parent_frame_id, frame.scope.actor_id, frame.status, of.total,
            of.used, of.own, of.with_descendants, of.reserved, of.lent, of.free, of.overdrawn, frame.goal,
        )  # fmt: skip
    for one in tree.waiting:
        surface.note(f"! {one.frame_id} {one.text}")
    for fault in tree.faults:
        surface.note(f"! {fault.frame_id}: {fault.text}")


def _print_tree(surface: Output, tree: FrameTreeView) -> None:
    for line, style in tree_lines(tree, surface):
        surface.print_line(line, style)


def tree_lines(tree: FrameTreeView, surface: Output) -> Iterator[tuple[str, str]]:
    """Yield the lines of a tree on a terminal, each with its style."""
    width, plain = surface.console.width, surface.ascii
    accounts, glyphs = tree_accounts(tree.frames), surface.symbols
    ids = target.short_ids((frame.frame_id for frame in tree.frames), glyphs.cut)
    for number, line in enumerate(_table_lines(tree.frames, accounts, ids, surface)):
        yield line, "" if number else "bold"
    overdrawn = any(of.overdrawn for of in accounts.values())
    if width >= _BARS_WIDTH_MIN:
        yield account_legend(plain=plain, overdrawn=overdrawn), "dim"
    faults = tree.faults
    mark = f"conserved {glyphs.good}" if not faults else f"not conserved {glyphs.bad}"
    told = account_equation(accounts[tree.frames[0].frame_id])
    together = len(told) + len(mark) + 3 <= width
    for line in [f"{told}   {mark}"] if together else [*textwrap.wrap(told, width), mark]:
        yield line, "red" if faults else ""
    for fault in faults:
        yield from _wrapped_lines(f"{ids[fault.frame_id]}: {fault.text}", glyphs.bad, width, "red")
    for one in tree.waiting:
        yield from _wrapped_lines(f"{ids[one.frame_id]} {one.text}", glyphs.warn, width, "yellow")


def _wrapped_lines(text: str, mark: str, width: int, style: str) -> Iterator[tuple[str, str]]:
    first, *rest = textwrap.wrap(output.escape_line(text), max(width - len(mark) - 1, 20)) or [""]
    yield f"{mark} {first}", style
    for more in rest:
        yield f"{' ' * len(mark)} {more}", style


def _table_lines(
    frames: Sequence[Frame], accounts: Mapping[str, FrameAccount], ids: Mapping[str, str], surface: Output
) -> Iterator[str]:  # fmt: skip
    names = list(_name_column(frames, ids, plain=surface.ascii))
    statuses = ["status", *(str(frame.status) for frame in frames)]
    columns = _number_columns([accounts[frame.frame_id] for frame in frames], frames, plain=surface.ascii)
    taken = 2 + max(map(len, statuses)) + sum(2 + max(map(len, column)) for column in columns)
    bars = surface.console.width >= _BARS_WIDTH_MIN
    room = max(_NAME_WIDTH_MIN, surface.console.width - taken - (2 + ACCOUNT_BAR_CELLS if bars else 0))
    room = min(room, max(map(output.text_width, ["frame", *names])))
    shown = [f"{'budget':<{ACCOUNT_BAR_CELLS}}"]
    shown += [account_bar(accounts[frame.frame_id], plain=surface.ascii) for frame in frames]
    for number, name in enumerate(["frame", *names]):
        cells = [output.fit_width(name, room, surface.symbols.cut), statuses[number].ljust(max(map(len, statuses)))]
        cells += [shown[number]] if bars else []
        cells += [column[number].rjust(max(map(len, column))) for column in columns]
        yield "  ".join(cells).rstrip()


def _number_columns(accounts: Sequence[FrameAccount], frames: Sequence[Frame], *, plain: bool) -> list[list[str]]:
    """Return the number columns: used, or own and sum if descendants have spent tokens; and free."""
    free = [_free_text(of, frame) for of, frame in zip(accounts, frames, strict=True)]
    if all(of.with_descendants == of.own for of in accounts):
        return [["used", *(f"{of.used:,}" for of in accounts)], ["free", *free]]
    every = [f"{of.with_descendants:,}" if of.with_descendants != of.own else "" for of in accounts]
    return [["own", *(f"{of.own:,}" for of in accounts)], ["sum" if plain else "Σ", *every], ["free", *free]]  # fmt: skip


def _name_column(frames: Sequence[Frame], ids: Mapping[str, str], *, plain: bool) -> Iterator[str]:
    """Yield the first column: branches of the tree, the frame's id and goal."""
    last, between, along, blank = ("`- ", "|- ", "|  ", "   ") if plain else ("└─ ", "├─ ", "│  ", "   ")
    youngest = {frame.parent_frame_id: frame.frame_id for frame in frames}
    lead: dict[str | None, str] = {None: ""}
    for frame in frames:
        above, is_last = (lead.get(frame.parent_frame_id, ""), youngest[frame.parent_frame_id] == frame.frame_id)
        root = frame.parent_frame_id is None
        lead[frame.frame_id] = "" if root else above + (blank if is_last else along)
        joint = "" if root else last if is_last else between
        yield f"{above}{joint}{ids[frame.frame_id]}  {output.escape_line(frame.goal)}"
