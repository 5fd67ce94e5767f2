"""A pack: what a model sees of a frame's work, with the account of it. It never changes."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import msgspec

from limpet import errors
from limpet.core.formats import codec
from limpet.core.values.context import Fate
from limpet.core.values.json_values import Json, thaw
from limpet.core.values.messages import Message
from limpet.core.values.pack_parts import (
    ContextPackMetadata,
    ContextSegment,
    FrameBreadcrumb,
    HandleEntry,
    PackLedger,
    TokenSummary,
)

BRIEF: Final = "brief"
BREADCRUMBS: Final = "breadcrumbs"
HANDLE: Final = "handle"
EVIDENCE_SUMMARY: Final = "evidence summary"
SAID: Final = "said"
SUMMARY: Final = "summary"


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a message of a pack is from: the brief, the breadcrumbs, a handle, the conversation, a summary.

    `number` is that of a message in its conversation; `altered`, if it comes shortened. `sessions` are
    those, each at a version, that evidence was copied from.
    """

    kind: str
    handle_id: str | None = None
    number: int = 0
    altered: bool = False
    sessions: tuple[tuple[str, int], ...] = ()


class Talked(msgspec.Struct, frozen=True):
    """The moment of the session that a pack's conversation is of."""

    session_id: str
    version: int
    began: int


class ContextPack(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a frame, fitted: `messages` in order, the pieces they are made of, and their account.

    `sizes` are the tokens of each message, `sources` where each is from. `context_hash` is the same for
    packs that say the same. What `token_summary` counts as used is never above its budget, unless the
    pack was allowed to overflow, and says so.
    """

    metadata: ContextPackMetadata
    brief_context: str
    breadcrumbs: tuple[FrameBreadcrumb, ...]
    segments: tuple[ContextSegment, ...]
    token_summary: TokenSummary
    context_hash: str
    ledger: PackLedger
    messages: tuple[Message, ...]
    sizes: tuple[int, ...]
    sources: tuple[Source, ...]
    talked: Talked | None = None

    def __repr__(self) -> str:
        told = self.token_summary
        return (
            f"<ContextPack of {self.metadata.frame_id}, {len(self.segments)} segments,"
            f" {told.used:,} of {told.budget:,} tokens>"
        )

    def to_openai(self) -> list[dict[str, Json]]:
        """Return the `messages` of an OpenAI Chat Completions call. Raises OpenCalls while calls wait."""
        return _renderers().to_chat(self.messages)

    def to_openai_responses(self) -> dict[str, Json]:
        """Return `instructions` and `input` of an OpenAI Responses call. Raises OpenCalls while calls wait."""
        return _renderers().to_responses(self.messages)

    def to_anthropic(self) -> dict[str, Json]:
        """Return `system` and `messages` of an Anthropic Messages call. Raises OpenCalls while calls wait."""
        return _renderers().to_anthropic(self.messages)

    def to_gemini(self) -> dict[str, Json]:
        """Return `system_instruction` and `contents` for Gemini. Raises OpenCalls while calls wait."""
        return _renderers().to_gemini(self.messages)

    def to_dict(self) -> dict[str, Json]:
        """Return all that there is to say of it as plain JSON, priorities and levels by their names."""
        told = msgspec.to_builtins(self.token_summary)
        told["compaction_level"] = self.token_summary.compaction_level.label
        return {
            "metadata": msgspec.to_builtins(self.metadata),
            "brief_context": self.brief_context,
            "breadcrumbs": [msgspec.to_builtins(crumb) for crumb in self.breadcrumbs],
            "segments": [_named(segment) for segment in self.segments],
            "token_summary": told,
            "context_hash": self.context_hash,
            "ledger": [_named(entry) for entry in self.ledger.handles],
            "messages": [thaw(message.to_dict()) for message in self.messages],
        }

    def explain(self, handle_id: str | None = None) -> str:
        """Say in words what is in it and what is not, and why; or what became of one handle."""
        return _explained(self) if handle_id is None else _explained_one(self, handle_id)


def _renderers() -> ModuleType:
    # Imported here: whoever only stores and counts does not pay for four providers' formats.
    from limpet.core import formats  # noqa: PLC0415

    return formats


def _named(one: ContextSegment | HandleEntry) -> dict[str, Json]:
    made: dict[str, Any] = msgspec.to_builtins(one)
    return {**made, "priority": one.priority.label}


def context_hash(frame_id: str, pack: ContextPack) -> str:
    """Return the hash of all that a model sees in a pack, who counted it, and what its pieces are."""
    pieces = [[s.segment_type, s.handle_id, s.message_id, s.shortened] for s in pack.segments]
    crumbs = [[c.frame_id, c.status, c.depth] for c in pack.breadcrumbs]
    told = pack.token_summary
    whole = {
        "frame": frame_id,
        "counter": told.counter,
        "level": told.compaction_level.label,
        "breadcrumbs": crumbs,
        "segments": pieces,
        "messages": [message.to_dict() for message in pack.messages],
    }
    return codec.digest(codec.canonical_json(whole)).hex()


def _explained(pack: ContextPack) -> str:
    told, ledger = pack.token_summary, pack.ledger
    kind = "exact" if told.exact else "estimated"
    over = ", over its budget" if told.overflow else ""
    parts = told.breakdown
    said = [s for s in pack.segments if s.message_id is not None]
    shown = [s for s in pack.segments if s.handle_id is not None]
    short = sum(s.shortened for s in shown)
    lines = [
        f"{told.used:,} of {told.budget:,} tokens ({told.counter}, {kind}),"
        f" level {told.compaction_level.label}{over}",
        f"  brief         {parts.brief:,}",
        f"  breadcrumbs   {parts.breadcrumbs:,}: {len(pack.breadcrumbs):,} frames",
        f"  conversation  {parts.conversation:,}: {len(said):,} messages",
        f"  evidence      {parts.evidence:,}: {len(shown):,} handles"
        f"{f' ({short:,} shortened)' if short else ''}",
        f"  overhead      {parts.overhead:,}",
    ]
    if under := ledger.count(Fate.SUMMARISED):
        lines.append(f"  under  {under:,} handles under the summary")
    lines += [
        f"  out    {count:,} handles ({size:,} tokens): {rule}"
        for rule, (count, size) in ledger.left_out().items()
    ]
    lines += [
        f"  out    {count:,} messages{f' ({size:,} tokens)' if size else ''}: {rule}"
        for rule, (count, size) in ledger.conversation.left_out().items()
    ]
    return "\n".join(lines)


def _explained_one(pack: ContextPack, handle_id: str) -> str:
    entry = pack.ledger.of(handle_id)
    if entry is None:
        raise errors.HandleNotFound(
            f"the pack has no line for the handle {handle_id!r}.",
            hint="Those that nobody looked at have one line together.",
            facts={"handle": handle_id},
        )
    size = f"{entry.tokens:,} tokens"
    if entry.fate is Fate.SHORTENED:
        size = f"from {entry.tokens:,} to {entry.used:,} tokens"
    return f"{handle_id} is {entry.fate} ({size}, {entry.priority.label}): {entry.rule}"
