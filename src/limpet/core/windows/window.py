"""`Window`: the messages of a session that a model sees now, with their ledger.

Builds the items of a window from messages, fits them, compares and explains windows, and plans cuts. Cuts are rare and
deep, so that the prefix of the prompt does not change between two cuts and a provider can cache it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import anthropic, codec, gemini, openai
from limpet.core.values import messages as values_messages
from limpet.core.values.context import (
    PRIORITY_OF_CATEGORY,
    CompactionLevel,
    ContextPriority,
    Fate,
    Ledger,
    priority_of_metadata,
)
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.session_state import Cut, Summary, WindowPolicy
from limpet.core.values.validation import EMPTY
from limpet.core.windows import fitter, summary
from limpet.core.windows.fitter import ContextItem, CountMessage

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam


RULE_PROMPT = "initial system prompt"
RULE_QUESTION = "current question"
RULE_OPEN_CALLS = "calls that wait for their results"
_SINGLE_MESSAGE = values_messages.MessageGroup(0, 0)
"""The group of a message without calls and results; a constant, because most messages are such."""

MESSAGE_LINE_CHARS = 80
"""Characters of a message that is shown on one line."""

_RULE_BY_CATEGORY = {MessageCategory.SYSTEM: "system message", MessageCategory.CONTEXT: fitter.RULE_CONTEXT}


class WindowMessage(msgspec.Struct, frozen=True):
    """A message of a conversation with its number, from 1, and its tokens.

    `original_size` is the size before an alteration, 0 for an unaltered message. `cut_turn_question`: the message is the
    question of a turn that a cut divides.
    """

    number: int
    message: Message
    tokens: int
    original_size: int = 0
    cut_turn_question: bool = False


class WindowGap(msgspec.Struct, frozen=True):
    """Old messages of a conversation that are not read: their number and approximate tokens.

    `summarised`: the summary covers them.
    """

    first: int
    count: int
    tokens: int
    summarised: bool = False


class WindowSummary(msgspec.Struct, frozen=True):
    """The summary of a session as a message, and the message numbers that it covers."""

    first: int
    last: int
    message: Message
    tokens: int


WindowPart = WindowMessage | WindowGap | WindowSummary


class CounterInfo(msgspec.Struct, frozen=True):
    """A counter's name, whether it is exact, and the tokens of a request beside its messages."""

    name: str
    exact: bool = True
    overhead: int = 0


ItemCache = MutableMapping[int, ContextItem]
"""Cached items by the number of their first message."""


def window_items(
    parts: Sequence[WindowPart], *, keep_prompt: bool = True, known: ItemCache | None = None
) -> list[ContextItem]:
    """Return the items of a window, in order: groups with their priorities, gaps and the summary.

    Groups before the current turn never change and are cached in `known`, which must belong to the same conversation
    and counter.
    """
    question = len(parts) - 1
    while question >= 0 and not _is_user_message(parts[question]):
        question -= 1
    messages: list[Message | None] = []
    made: list[ContextItem] = []
    at, end = 0, len(parts)
    before: ItemCache = {} if known is None else known
    while at < end:
        part = parts[at]
        if not isinstance(part, WindowMessage):
            made.append(_gap_item(part) if isinstance(part, WindowGap) else _summary_item(part))
            at += 1
            continue
        found = before.get(part.number)
        if found is not None and (after := at + len(found.messages)) <= question:
            made.append(found)
            at = after
            continue
        said = part.message
        alone = not said.tool_calls and said.role != "tool"
        if not alone and not messages:
            # group_at reads the messages after the beginning of the group.
            messages = [None] * at
            messages += [one.message if isinstance(one, WindowMessage) else None for one in parts[at:]]
        group = _SINGLE_MESSAGE if alone else values_messages.group_at(messages, at)
        last = at if alone else group.last
        if at == question:
            priority, rule = ContextPriority.CRITICAL, RULE_QUESTION
        elif part.cut_turn_question:
            priority, rule = ContextPriority.HIGH, fitter.RULE_CUT_TURN_QUESTION
        else:
            priority, rule = _priority_and_rule(part, group, keep_prompt=keep_prompt)
        pieces = cast("Sequence[WindowMessage]", parts[at : last + 1])
        if not alone and not group.fault:
            priority, rule = max((priority, rule), *map(_own_priority, pieces))
        item = _message_item(pieces, priority, rule, barred=bool(group.fault), now=at >= question)
        if known is not None and part.number > 1 and last < question and not group.fault:
            item = known[part.number] = fitter.with_cached_view(item)
        made.append(item)
        at = last + 1
    return made


def _is_user_message(part: WindowPart) -> bool:
    return isinstance(part, WindowMessage) and part.message.role == "user"


def _gap_item(gap: WindowGap) -> ContextItem:
    rule, low = fitter.RULE_NO_ROOM, ContextPriority.BACKGROUND
    return ContextItem(
        gap.first, (), (gap.tokens,), gap.tokens, low, rule, excluded=True, gap_count=gap.count, summarised=gap.summarised
    )  # fmt: skip


def _summary_item(part: WindowSummary) -> ContextItem:
    size, count = part.tokens, part.last - part.first + 1
    high, rule = ContextPriority.HIGH, fitter.RULE_SUMMARY_OF_CUT
    return ContextItem(part.first, (part.message,), (size,), size, high, rule, gap_count=count, summarised=True)


def _message_item(
    pieces: Sequence[WindowMessage], priority: ContextPriority, rule: str, *, barred: bool, now: bool
) -> ContextItem:
    first = pieces[0]
    asks = first.message.role == "user"
    if len(pieces) == 1:
        messages, tokens, size = (first.message,), (first.tokens,), first.tokens
        whole = (first.original_size,)
    else:
        messages = tuple([piece.message for piece in pieces])
        tokens = tuple([piece.tokens for piece in pieces])
        size = sum(tokens)
        whole = tuple([piece.original_size for piece in pieces])
    whole = whole if any(whole) else ()
    return ContextItem(first.number, messages, tokens, size, priority, rule, barred, asks, now, 0, False, whole)


def _priority_and_rule(
    piece: WindowMessage, group: values_messages.MessageGroup, *, keep_prompt: bool
) -> tuple[ContextPriority, str]:
    message = piece.message
    if group.fault:
        return ContextPriority.BACKGROUND, group.fault
    if group.open:
        return ContextPriority.CRITICAL, RULE_OPEN_CALLS
    if message.role == "system" and piece.number == 1:
        return (ContextPriority.CRITICAL, RULE_PROMPT) if keep_prompt else (ContextPriority.MEDIUM, "")
    if message.metadata and (chosen := priority_of_metadata(message.metadata)):
        return chosen
    return PRIORITY_OF_CATEGORY[message.category], _RULE_BY_CATEGORY.get(message.category, "")


def _own_priority(piece: WindowMessage) -> tuple[ContextPriority, str]:
    chosen = priority_of_metadata(piece.message.metadata) if piece.message.metadata else None
    return chosen or (ContextPriority.BACKGROUND, "")


def messages_digest(messages: Sequence[Message]) -> str:
    """Return the hash of all fields of messages."""
    return codec.digest(codec.canonical_json([message.to_dict() for message in messages])).hex()


class WindowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two windows. The first `same` messages are equal, and a provider can cache them.

    `common` messages are in both windows at any place. `gone_at` and `new_at` are the indices of the other messages.
    """

    same: int
    same_tokens: int
    tokens: int
    common: int
    common_tokens: int
    gone: tuple[Message, ...]
    new: tuple[Message, ...]
    gone_at: tuple[int, ...]
    new_at: tuple[int, ...]

    @property
    def share(self) -> float:
        """The part of the other window's tokens that its equal beginning has."""
        return self.same_tokens / self.tokens if self.tokens else 1.0

    def __str__(self) -> str:
        lines = [f"- {message.id} {_message_line(message)}" for message in self.gone]
        lines += [f"+ {message.id} {_message_line(message)}" for message in self.new]
        lines.append(
            f"the first {self.same:,} messages are the same:"
            f" {self.same_tokens:,} of {self.tokens:,} tokens ({self.share:.0%})"
        )
        return "\n".join(lines)


def _message_key(message: Message) -> tuple[str, str]:
    # The same message can be shortened in one window and whole in another.
    return message.id, summary.message_text(message)


def _message_line(message: Message) -> str:
    return summary.abbreviate(" ".join(summary.message_text(message).split()), MESSAGE_LINE_CHARS)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted messages of a conversation in order, and the ledger of all its messages.

    `sizes` are the tokens of each message; `tokens` includes `overhead`, the tokens of a request beside its messages,
    and is never above `budget`. `summary_at` is the index of the summary, or -1. `tenant`, `session_id`, `version` and
    `began` identify the session and its version, if the window was made of a session. `plain` is the counter's name and
    its count of the whole window without correction and margin.
    """

    messages: tuple[Message, ...]
    sizes: tuple[int, ...]
    tokens: int
    budget: int
    ledger: Ledger
    level: CompactionLevel = CompactionLevel.NONE
    counter: str = ""
    exact: bool = True
    overhead: int = 0
    summary_at: int = -1
    tenant: str = ""
    session_id: str = ""
    version: int = 0
    began: int = 0
    plain: tuple[str, int] = ("", 0)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Window {len(self)} messages, {self.tokens:,} of {self.budget:,} tokens>"

    @property
    def digest(self) -> str:
        """The hash of the messages: equal for windows that are the same byte for byte."""
        return messages_digest(self.messages)

    def explain(self, number: int | None = None) -> str:
        """Return a text that explains the content of the window, or the fate of one message."""
        return _explain_window(self) if number is None else _explain_message(self, number)

    def diff(self, other: Window) -> WindowDifference:
        """Return how `other` differs from this window."""
        if not isinstance(cast("object", other), Window):
            raise errors.InvalidRequest(f"a window differs from a Window, not {type(other).__name__}.")
        before, after = (list(map(_message_key, self.messages)), list(map(_message_key, other.messages)))
        here, there = set(before), set(after)
        same = 0
        for one, two in zip(before, after, strict=False):
            if one != two:
                break
            same += 1
        gone = tuple(at for at, mark in enumerate(before) if mark not in there)
        new = tuple(at for at, mark in enumerate(after) if mark not in here)
        tokens = other.tokens - other.overhead
        return WindowDifference(
            same=same, same_tokens=sum(other.sizes[:same]), tokens=tokens, common=len(after) - len(new),
            common_tokens=tokens - sum(other.sizes[at] for at in new),
            gone=tuple(self.messages[at] for at in gone), new=tuple(other.messages[at] for at in new),
            gone_at=gone, new_at=new,
        )  # fmt: skip

    def to_openai(self) -> list[ChatCompletionMessageParam]:
        """Return the `messages` of an OpenAI Chat Completions call. Raises OpenCalls while calls wait."""
        return openai.to_chat(self.messages)

    def to_openai_responses(self) -> openai.ResponsesRequest:
        """Return `instructions` and `input` of an OpenAI Responses call. Raises OpenCalls while calls wait."""
        return openai.to_responses(self.messages)

    def to_anthropic(self) -> anthropic.AnthropicRequest:
        """Return `system` and `messages` of an Anthropic Messages call. Raises OpenCalls while calls wait."""
        return anthropic.to_anthropic(self.messages)

    def to_gemini(self) -> gemini.GeminiRequest:
        """Return `system_instruction` and `contents` for Gemini. Raises OpenCalls while calls wait."""
        return gemini.to_gemini(self.messages)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(message.role)}</td><td style='text-align:right'>{size:,}</td>"
            f"<td><pre>{html.escape(_message_line(message))}</pre></td></tr>"
            for message, size in zip(self.messages, self.sizes, strict=True)
        )
        told = html.escape(self.explain())
        return f"<pre>{told}</pre><table><tr><th>role</th><th>tokens</th><th></th></tr>{rows}</table>"


def fit_window(
    parts: Sequence[WindowPart],
    budget: int,
    *,
    count: fitter.CountMessage,
    counted: CounterInfo,
    least: CompactionLevel = CompactionLevel.NONE,
    keep_prompt: bool = True,
    shares: fitter.BudgetShares = EMPTY,
    known: ItemCache | None = None,
) -> Window:
    """Return the window of a conversation; raise ContextOverflow if the required messages do not fit."""
    checked_window_budget(budget)
    fitted = fitter.fit(
        window_items(parts, keep_prompt=keep_prompt, known=known),
        budget,
        count=count,
        least=least,
        overhead=counted.overhead,
        shares=shares,
    )
    return Window(
        messages=fitted.messages, sizes=fitted.sizes, tokens=fitted.tokens + counted.overhead, budget=budget,
        ledger=fitted.ledger, level=fitted.level, counter=counted.name, exact=counted.exact,
        overhead=counted.overhead, summary_at=fitted.summary_at,
    )  # fmt: skip


def checked_window_budget(budget: int) -> int:
    """Return the budget; raise InvalidRequest unless it is a number of tokens."""
    if type(cast("object", budget)) is not int or budget <= 0:
        raise errors.InvalidRequest(
            f"a budget is a number of tokens, not {budget!r}.", hint="For example budget=8_000."
        )
    return budget


def _explain_window(window: Window) -> str:
    ledger = window.ledger
    shortened = ledger.messages(Fate.SHORTENED)
    inside = ledger.messages(Fate.KEPT) + shortened
    kind = "exact" if window.exact else "estimated"
    lines = [
        f"{window.tokens:,} of {window.budget:,} tokens ({window.counter}, {kind}), level {window.level.name.lower()}",
        f"  in     {inside:,} messages{f' ({shortened:,} shortened)' if shortened else ''}",
    ]
    if under := ledger.messages(Fate.SUMMARISED):
        size = ledger.tokens(Fate.SUMMARISED)
        lines.append(f"  under  {under:,} messages ({size:,} tokens) under the summary")
    # A recorded window has no sizes of messages outside it.
    lines += [
        f"  out    {messages:,} messages{f' ({size:,} tokens)' if size else ''}: {rule}"
        for rule, (messages, size) in ledger.left_out().items()
    ]
    return "\n".join(lines)


def _explain_message(window: Window, number: int) -> str:
    if type(cast("object", number)) is not int:
        raise errors.InvalidRequest("a message is explained by its number: an int.")
    entry = window.ledger.entry_of(number)
    if entry is None:
        raise errors.MessageNotFound(
            f"the conversation has no message #{number:,}.",
            hint=f"They are numbered from 1 to {window.ledger.messages():,}.",
        )
    what = f"#{number:,} is {entry.fate}"
    if entry.count > 1:
        what += f" with all of #{entry.first:,}–#{entry.last:,}"
    size = f"{entry.tokens:,} tokens"
    if entry.fate is Fate.SHORTENED:
        was = f"from {entry.tokens:,} " if entry.tokens != entry.used else ""
        size = f"{was}to {entry.used:,} tokens"
    told = f" ({size})" if entry.tokens else ""
    return f"{what}{told}: {entry.rule}"


class CutInput(msgspec.Struct, frozen=True):
    """The content of a session's window before a cut.

    `pieces` are its messages in order, with new ones, without always visible ones, which take `fixed` tokens. `room` is
    the policy's budget without the overhead.
    """

    pieces: Sequence[WindowMessage]
    fixed: int
    room: int
    cut: Cut | None = None
    summary: Summary | None = None


def is_cut_due(tokens: int, room: int, policy: WindowPolicy, left: int = 0) -> bool:
    """Whether a window of `tokens` tokens exceeds the policy's high-water mark.

    If the last cut `left` more than the mark, the next cut waits until as many tokens were added as a cut removes: a
    plan for each append would be useless.
    """
    high = room * policy.high
    return tokens > (high if left <= high else left + room * (policy.high - policy.low))


def plan_cut(live: CutInput, policy: WindowPolicy, count: CountMessage) -> tuple[Cut, Summary | None] | None:
    """Return the cut down to the low-water mark and the summary of the removed messages; None if nothing can go.

    Tool outputs before the current turn are replaced first, then whole turns are removed, the oldest first. Only a turn
    that is too large by itself is cut between its groups; its question stays. The cut's tokens are those of the
    remaining messages and of the earlier summary.
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
    """Return the tokens of the summary in windows: a summary for larger windows is shortened."""
    told = live.summary.tokens if live.summary else 0
    if told > policy.budget * limits.SUMMARY_SHARE_MAX:
        return min(told, int(live.room * limits.SUMMARY_SHARE))
    return told


def _current_question(pieces: Sequence[WindowMessage]) -> int:
    """Return the number of the newest user message; 0 if there is none."""
    return next((piece.number for piece in reversed(pieces) if piece.message.role == "user"), 0)


def _stub_if_smaller(piece: WindowMessage, turn: int, count: CountMessage) -> WindowMessage:
    if piece.message.role != "tool" or piece.number >= turn or piece.original_size:
        return piece
    message = summary.stub_tool_output(piece.message)
    size = count(message)
    if message is piece.message or size >= piece.tokens:
        return piece
    return WindowMessage(piece.number, message, size, piece.tokens)


def _cut_start(
    pieces: Sequence[WindowMessage], turn: int, size: int, policy: WindowPolicy, room: int
) -> tuple[int, int]:
    """Return the index at which the window begins after the cut, and its tokens then."""
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
    """Return the indices at which a window may begin: questions, and groups of the current turn."""
    groups = values_messages.group_messages([piece.message for piece in pieces])
    starts = [group.first for group in groups]
    return [at for at in starts if at and (pieces[at].message.role == "user" or pieces[at].number > turn)]


def _summarise_cut(
    out: Sequence[WindowMessage], last: int, policy: WindowPolicy, live: CutInput, count: CountMessage
) -> Summary:
    before = live.summary
    if before and before.last and live.cut and before.last < live.cut.first - 1:
        # Messages between the earlier summary and the cut have no summary: a common range would include them.
        before = None
    numbers = [(piece.number, piece.number) for piece in out]
    chars = int(live.room * limits.SUMMARY_SHARE) * 2
    said = [piece.message for piece in out]
    language, prefix = policy.summary or "en", policy.summary_prefix
    stands = summary.summarise_messages(said, numbers, chars=chars, language=language, prefix=prefix, before=before)
    return msgspec.structs.replace(stands, last=last, tokens=count(stands.message()))
