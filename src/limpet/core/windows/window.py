"""`Window`: the messages of a session that a model sees now, with their ledger.

Builds the items of a window from messages, fits them, compares and explains windows, and plans cuts. Building a
window never changes messages. Cuts are rare and deep, so that the prefix of the prompt stays the same between two cuts
and a provider can cache it.
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
"""What most messages are: neither a call nor a result."""

MESSAGE_LINE_CHARS = 80
"""What is shown of a message where each has one line."""

_RULE_BY_CATEGORY = {MessageCategory.SYSTEM: "system message", MessageCategory.CONTEXT: fitter.RULE_CONTEXT}


class WindowMessage(msgspec.Struct, frozen=True):
    """A message of a conversation with its number, from 1, and its tokens.

    `original_size` is its size in the conversation if it comes altered, else 0. `cut_turn_question`: it is the question
    of a turn whose beginning was cut.
    """

    number: int
    message: Message
    tokens: int
    original_size: int = 0
    cut_turn_question: bool = False


class WindowGap(msgspec.Struct, frozen=True):
    """Messages of a conversation that are too old to be looked at: how many, and about their size.

    `summarised`: the summary stands for them.
    """

    first: int
    count: int
    tokens: int
    summarised: bool = False


class WindowSummary(msgspec.Struct, frozen=True):
    """The summary that a session has, as a message, and the numbers that it stands for."""

    first: int
    last: int
    message: Message
    tokens: int


WindowPart = WindowMessage | WindowGap | WindowSummary


class CounterInfo(msgspec.Struct, frozen=True):
    """Who counted: the counter's name, whether it is exact, and tokens that a request takes besides."""

    name: str
    exact: bool = True
    overhead: int = 0


ItemCache = MutableMapping[int, ContextItem]
"""Items that were made before, by the number of their first message."""


def window_items(
    parts: Sequence[WindowPart], *, keep_prompt: bool = True, known: ItemCache | None = None
) -> list[ContextItem]:
    """Return what a window is fitted from: groups with their priorities, in order, and gaps.

    Groups from before the current turn never change: what is in `known` is taken from there, and what
    is made is put there. It must be of the same conversation, counted in the same way.
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
            # A group is found by what comes after its beginning.
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
    """Return the hash of all that the messages of a window say."""
    return codec.digest(codec.canonical_json([message.to_dict() for message in messages])).hex()


class WindowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How one window became another. `same` messages at the beginning are equal, and a provider can cache them.

    `common` of them are in both, wherever; `gone_at` and `new_at` say where the others stand in their windows.
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
        """The part of the other window's tokens that its beginning has in common with this one."""
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
    """What fits: the messages in order, and the account of every message of the conversation.

    `sizes` are the tokens of each message; `tokens` includes what a request takes besides (`overhead`),
    and is never above `budget`. `summary_at` is where the summary stands among them, if there is one;
    `tenant`, `session_id`, `version` and `began` say of which moment of which session it is, if of any;
    `plain` is its counter, and what that gives for all of it without correction and margin.
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
        """The hash of all that its messages say: equal for windows that are the same byte for byte."""
        return messages_digest(self.messages)

    def explain(self, number: int | None = None) -> str:
        """Say in words what is in it and what is not, and why; or what became of one message."""
        return _explain_window(self) if number is None else _explain_message(self, number)

    def diff(self, other: Window) -> WindowDifference:
        """Return what another window has that this one has not, and the other way round."""
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
            same=same,
            same_tokens=sum(other.sizes[:same]),
            tokens=tokens,
            common=len(after) - len(new),
            common_tokens=tokens - sum(other.sizes[at] for at in new),
            gone=tuple(self.messages[at] for at in gone),
            new=tuple(other.messages[at] for at in new),
            gone_at=gone,
            new_at=new,
        )

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
    """Return the window of a conversation; raise ContextOverflow if what must be in it does not fit."""
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
        messages=fitted.messages,
        sizes=fitted.sizes,
        tokens=fitted.tokens + counted.overhead,
        budget=budget,
        ledger=fitted.ledger,
        level=fitted.level,
        counter=counted.name,
        exact=counted.exact,
        overhead=counted.overhead,
        summary_at=fitted.summary_at,
    )


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
    # Of a recorded window only what was in it is known: what was not has no size here.
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
    message = summary.stub_tool_output(piece.message)
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
    groups = values_messages.group_messages([piece.message for piece in pieces])
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
    return msgspec.structs.replace(stands, last=last, tokens=count(stands.message()))
