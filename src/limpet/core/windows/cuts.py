"""The cut of a session's window: when it is due, where the window then begins, and its summary.

Pure. Cuts are rare and deep, so that the prefix of the prompt stays the same between two cuts and
a provider can cache it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from limpet import limits
from limpet.core.values import messages
from limpet.core.values.session_state import Cut, Summary, WindowPolicy
from limpet.core.windows import short_forms, summary
from limpet.core.windows.fitter import CountMessage
from limpet.core.windows.window import WindowMessage

replace = msgspec.structs.replace


class CutInput(msgspec.Struct, frozen=True):
    """What a session's window is made of before a cut.

    `pieces` are its messages in order, new ones included, without those that always stay, which take
    `fixed` tokens. `room` is what the policy has for all of it.
    """

    pieces: Sequence[WindowMessage]
    fixed: int
    room: int
    cut: Cut | None = None
    summary: Summary | None = None


def is_cut_due(tokens: int, room: int, policy: WindowPolicy, left: int = 0) -> bool:
    """Whether a window of so many tokens has passed the policy's high-water mark.

    `left` is what the last cut left. If that was above the mark already, looking at all of it again
    with each append would be of no use: as much as a cut frees has to come first.
    """
    high = room * policy.high
    return tokens > (high if left <= high else left + room * (policy.high - policy.low))


def plan_cut(live: CutInput, policy: WindowPolicy, count: CountMessage) -> tuple[Cut, Summary | None] | None:
    """Return the cut down to the low-water mark, and the summary of what goes; None if nothing can go.

    The cut's tokens are those of what is left, with the summary that was there before.

    Output of tools from before the current turn goes first, then whole turns, the oldest first. Only a
    turn that is too large by itself is cut between its groups; its question stays in any case.
    """
    turn = _current_question(live.pieces)
    stubs = was = live.cut.stubs if live.cut else 0
    pieces = live.pieces
    if policy.stubs and turn > stubs:
        stubs, pieces = turn, [_stub_if_smaller(piece, turn, count) for piece in pieces]
    size = live.fixed + _summary_tokens(live, policy) + sum(piece.tokens for piece in pieces)
    start, size = _cut_start(pieces, turn, size, policy, live.room)
    if not start and stubs == was:
        return None
    first = pieces[start].number if start else live.cut.first if live.cut else 1
    out = [piece for piece in live.pieces[:start] if piece.number != turn]
    stands = None
    if policy.summary and out:
        stands = _summarise_cut(out, first - 1, policy, live, count)
    asked = turn if turn < first else 0
    return Cut(first, stubs, policy.budget, size, asked), stands


def _summary_tokens(live: CutInput, policy: WindowPolicy) -> int:
    """Return what the summary takes in windows: one that was written for larger ones comes shortened."""
    told = live.summary.tokens if live.summary else 0
    if told > policy.budget * limits.SUMMARY_SHARE_MAX:
        return min(told, int(live.room * limits.SUMMARY_SHARE))
    return told


def _current_question(pieces: Sequence[WindowMessage]) -> int:
    """Return the number of the current question; 0 if nobody asked anything."""
    asked = (piece.number for piece in reversed(pieces) if piece.message.role == "user")
    return next(asked, 0)


def _stub_if_smaller(piece: WindowMessage, turn: int, count: CountMessage) -> WindowMessage:
    if piece.message.role != "tool" or piece.number >= turn or piece.original_size:
        return piece
    message = short_forms.stub_tool_output(piece.message)
    size = count(message)
    if message is piece.message or size >= piece.tokens:
        return piece
    return WindowMessage(piece.number, message, size, piece.tokens)


def _cut_start(
    pieces: Sequence[WindowMessage], turn: int, size: int, policy: WindowPolicy, room: int
) -> tuple[int, int]:
    """Return the index at which the window begins, and what it has then."""
    low, high = room * policy.low, room * policy.high
    start = 0
    for at in _cut_boundaries(pieces, turn):
        # Cutting into the current turn is the last resort.
        enters = pieces[at].number > turn >= pieces[start].number
        if size <= (high if enters else low):
            break
        size -= sum(p.tokens for p in pieces[start:at] if p.number != turn)
        start = at
    return start, size


def _cut_boundaries(pieces: Sequence[WindowMessage], turn: int) -> list[int]:
    """Return where a window may begin: at questions, and in the current turn at its groups."""
    groups = messages.group_messages([piece.message for piece in pieces])
    starts = [group.first for group in groups]
    return [at for at in starts if at and (pieces[at].message.role == "user" or pieces[at].number > turn)]


def _summarise_cut(
    out: Sequence[WindowMessage], last: int, policy: WindowPolicy, live: CutInput, count: CountMessage
) -> Summary:
    before = live.summary
    if before and before.last and live.cut and before.last < live.cut.first - 1:
        # Messages in between went without a summary: one that spans them would claim too much.
        before = None
    numbers = [(piece.number, piece.number) for piece in out]
    chars = int(live.room * limits.SUMMARY_SHARE) * 2
    said = [piece.message for piece in out]
    language, prefix = policy.summary or "en", policy.summary_prefix
    stands = summary.summarise_messages(said, numbers, chars=chars, language=language, prefix=prefix, before=before)
    return replace(stands, last=last, tokens=count(stands.message()))
