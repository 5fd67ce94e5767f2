"""From a pack to what is recorded of it, and back: the same pack, byte for byte.

Texts are referred to by their hashes, messages of a conversation by their numbers, so recording a pack
again costs what its references take. Rebuilding replays what was chosen; it never chooses, nor asks
anybody for content. The hash says whether that worked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from limpet import errors
from limpet.context.finishing import breakdown, token_summary
from limpet.context.packed import (
    BREADCRUMBS,
    BRIEF,
    HANDLE,
    SAID,
    SUMMARY,
    ContextPack,
    Source,
    Talked,
    context_hash,
)
from limpet.context.summary import text_of
from limpet.core.formats import codec
from limpet.core.values.context import ContextPriority, Fate, Ledger, LedgerEntry
from limpet.core.values.json_values import Json, freeze
from limpet.core.values.messages import Message
from limpet.core.values.pack_parts import (
    ContextPackMetadata,
    ContextSegment,
    FrameBreadcrumb,
    HandleEntry,
    PackLedger,
    PackSelection,
    SegmentType,
)

INLINE_CHARS: Final = 256
"""A shorter text stands in the record itself: a reference would take about as much."""

RECORDED: Final = "it was in the recorded pack"

Texts = Callable[[Sequence[str]], Mapping[str, str]]
"""Texts that are kept beside the log, by their hashes."""

Said = Callable[[Talked, int, int], Sequence[Message]]
"""Messages of a conversation by their numbers, first and last, as it was at a moment."""


def selection(pack: ContextPack) -> tuple[PackSelection, tuple[str, ...]]:
    """Return what has to be recorded of a pack, and the texts that are kept beside the log."""
    recording = _Recording(pack)
    told = pack.token_summary
    chosen = PackSelection(
        digest=pack.context_hash,
        budget=told.budget,
        used=told.used,
        counter=told.counter,
        exact=told.exact,
        level=told.compaction_level,
        role=pack.metadata.role,
        parts=tuple(freeze(part) for part in recording.parts()),
        about=freeze(_about(pack)),
    )
    return chosen, tuple(recording.texts.values())


class _Run:
    """Messages that follow on one another in a conversation, and that are in a pack as they are."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.tokens: list[int] = []
        self.priorities: list[int] = []

    def part(self) -> Iterator[dict[str, Json]]:
        """Yield what is recorded of them."""
        last = self.first + len(self.tokens) - 1
        yield {
            "kind": SAID, "first": self.first, "last": last,
            "tokens": self.tokens, "priorities": self.priorities,
        }  # fmt: skip


class _Recording:
    """The parts of a pack, in order, and the texts that they refer to."""

    def __init__(self, pack: ContextPack) -> None:
        self._pack = pack
        self.texts: dict[str, str] = {}

    def parts(self) -> Iterator[dict[str, Json]]:
        """Yield what there is to record, messages that follow on one another in one part."""
        crumbs = [[c.frame_id, c.goal, str(c.status), c.depth] for c in self._pack.breadcrumbs]
        yield {"kind": "frames", **self._kept(codec.canonical_json(crumbs).decode())}
        segments = iter(self._pack.segments)
        run: _Run | None = None
        for at, source in enumerate(self._pack.sources):
            segment = None if source.kind in (BRIEF, BREADCRUMBS) else next(segments)
            if segment is None or source.kind != SAID or source.altered:
                yield from run.part() if run else ()
                run = None
                yield self._made(at, source, segment)
                continue
            if run is None or source.number != run.first + len(run.tokens):
                yield from run.part() if run else ()
                run = _Run(source.number)
            run.tokens.append(self._pack.sizes[at])
            run.priorities.append(int(segment.priority))
        yield from run.part() if run else ()

    def _made(self, at: int, source: Source, segment: ContextSegment | None) -> dict[str, Json]:
        message = self._pack.messages[at]
        part: dict[str, Json] = {"kind": source.kind, "tokens": self._pack.sizes[at]}
        if source.kind in (SAID, SUMMARY):
            text = codec.canonical_json(message.to_dict()).decode()
            part |= {"number": source.number} if source.number else {}
        else:
            text = str(message.content)
            part |= {"id": message.id, "role": message.role, "category": message.category.name}
        if segment is not None:
            part |= {"priority": int(segment.priority), "shortened": segment.shortened}
            part |= {"type": str(segment.segment_type)}
        if source.kind == HANDLE and segment is not None:
            head = text.index("\n") + 1
            part |= {"handle": source.handle_id, "head": head, "size": len(segment.content)}
        if source.sessions:
            part |= {"sessions": source.sessions}
        return part | self._kept(text)

    def _kept(self, text: str) -> dict[str, Json]:
        if len(text) < INLINE_CHARS:
            return {"text": text}
        name = codec.digest(text.encode()).hex()
        self.texts[name] = text
        return {"hash": name}


def _about(pack: ContextPack) -> dict[str, Json]:
    about: dict[str, Json] = {
        "metadata": msgspec.to_builtins(pack.metadata),
        "overhead": pack.token_summary.breakdown.overhead,
        "timestamp": pack.messages[pack.sources.index(Source(BRIEF))].timestamp,
    }
    if pack.talked is not None:
        about["talked"] = msgspec.to_builtins(pack.talked)
    sums: dict[tuple[str, str, int], list[int]] = {}
    for entry in pack.ledger:
        if entry.fate in (Fate.LEFT_OUT, Fate.SUMMARISED):
            found = sums.setdefault((str(entry.fate), entry.rule, int(entry.priority)), [0, 0])
            found[0] += entry.count
            found[1] += entry.tokens
    about["out"] = [[*key, *found] for key, found in sums.items()]
    talk = pack.ledger.conversation.left_out()
    about["unsaid"] = [[rule, count, size] for rule, (count, size) in talk.items()]
    return about


def rebuilt(chosen: PackSelection, texts: Texts, said: Said) -> ContextPack:
    """Return the pack that was recorded; raise Corrupt if it can't be made again as it was, Erased if some of it was."""
    if not chosen.digest:
        raise errors.Erased("the pack can't be made again: something that was in it was erased.")
    try:
        made = _Rebuilding(chosen, texts(chosen.hashes), said).pack()
    except (LookupError, TypeError, ValueError, msgspec.MsgspecError, errors.Refused) as error:
        raise _corrupt(chosen) from error
    if made.context_hash != chosen.digest:
        raise _corrupt(chosen)
    return made


def _corrupt(chosen: PackSelection) -> errors.Corrupt:
    return errors.Corrupt(
        "a recorded pack can't be made again as it was.", facts={"context_hash": chosen.digest}
    )


class _Rebuilding:
    """A recorded pack in the making."""

    def __init__(self, chosen: PackSelection, texts: Mapping[str, str], said: Said) -> None:
        self._chosen = chosen
        self._texts = texts
        self._said = said
        self._messages: list[Message] = []
        self._sizes: list[int] = []
        self._sources: list[Source] = []
        self._segments: list[ContextSegment] = []
        self._handles: list[HandleEntry] = []
        self._inside: list[LedgerEntry] = []

    def pack(self) -> ContextPack:
        """Return the pack."""
        chosen, about = self._chosen, self._chosen.about
        talked = about.get("talked")
        moment = msgspec.convert(talked, Talked) if talked is not None else None
        frames, *parts = chosen.parts
        for part in parts:
            if part["kind"] == SAID and "first" in part:
                assert moment is not None, "what was said was said in a session"
                self._run(part, moment)
            else:
                self._made(part)
        brief = self._messages[self._sources.index(Source(BRIEF))]
        metadata = msgspec.convert(about["metadata"], ContextPackMetadata)
        made = ContextPack(
            metadata=metadata,
            brief_context=str(brief.content),
            breadcrumbs=tuple(
                msgspec.convert(
                    dict(zip(FrameBreadcrumb.__struct_fields__, crumb, strict=True)),
                    FrameBreadcrumb,
                )
                for crumb in msgspec.json.decode(self._text(frames))
            ),
            segments=tuple(self._segments),
            token_summary=token_summary(
                chosen.budget,
                breakdown(self._sources, self._sizes, about["overhead"]),
                chosen.level,
                counter=chosen.counter,
                exact=chosen.exact,
            ),
            context_hash="",
            ledger=self._ledger(),
            messages=tuple(self._messages),
            sizes=tuple(self._sizes),
            sources=tuple(self._sources),
            talked=moment,
        )
        digest = context_hash(metadata.frame_id, made)
        return msgspec.structs.replace(made, context_hash=digest)

    def _text(self, part: Mapping[str, Json]) -> str:
        return part["text"] if "text" in part else self._texts[part["hash"]]

    def _put(self, message: Message, size: int, source: Source) -> None:
        self._messages.append(message)
        self._sizes.append(size)
        self._sources.append(source)

    def _run(self, part: Mapping[str, Json], moment: Talked) -> None:
        found = self._said(moment, part["first"], part["last"])
        numbers = range(part["first"], part["last"] + 1)
        for number, message, size, priority in zip(
            numbers, found, part["tokens"], part["priorities"], strict=True
        ):
            self._put(message, size, Source(SAID, None, number))
            self._segments.append(
                _of_message(message, size, ContextPriority(priority), SegmentType.CONVERSATION)
            )
            self._inside.append(_entry(number, Fate.KEPT, size, message))

    def _made(self, part: Mapping[str, Json]) -> None:
        kind, size, text = part["kind"], part["tokens"], self._text(part)
        if kind in (SAID, SUMMARY):
            self._altered(part, Message.from_dict(msgspec.json.decode(text)))
            return
        about = self._chosen.about
        fields = {"role": part["role"], "category": part["category"], "id": part["id"]}
        message = Message.from_dict({**fields, "content": text, "timestamp": about["timestamp"]})
        handle_id = part.get("handle")
        altered = kind == HANDLE and part["shortened"]
        sessions = tuple((name, version) for name, version in part.get("sessions", ()))
        self._put(message, size, Source(kind, handle_id, 0, altered, sessions))
        if kind in (BRIEF, BREADCRUMBS):
            return
        content = text
        if kind == HANDLE:
            content = text[part["head"] : part["head"] + part["size"]]
            self._handles.append(
                HandleEntry(
                    fate=Fate.SHORTENED if altered else Fate.KEPT, rule=RECORDED, tokens=size, used=size,
                    priority=ContextPriority(part["priority"]), handle_id=handle_id,
                )
            )  # fmt: skip
        self._segments.append(
            ContextSegment(
                segment_type=SegmentType(part["type"]),
                priority=ContextPriority(part["priority"]),
                content=content,
                estimated_tokens=size,
                handle_id=handle_id,
                shortened=part["shortened"],
            )
        )

    def _altered(self, part: Mapping[str, Json], message: Message) -> None:
        number, size = part.get("number", 0), part["tokens"]
        self._put(message, size, Source(part["kind"], None, number, part["kind"] == SAID))
        made = _of_message(
            message, size, ContextPriority(part["priority"]), SegmentType(part["type"])
        )
        self._segments.append(msgspec.structs.replace(made, shortened=part["shortened"]))
        if number:
            self._inside.append(_entry(number, Fate.SHORTENED, size, message))

    def _ledger(self) -> PackLedger:
        about = self._chosen.about
        for fate, rule, priority, count, tokens in about["out"]:
            self._handles.append(
                HandleEntry(
                    fate=Fate(fate), rule=rule, priority=ContextPriority(priority), tokens=tokens,
                    count=count,
                )
            )  # fmt: skip
        return PackLedger(tuple(self._handles), Ledger(tuple(self._inside)))


def _of_message(
    message: Message, size: int, priority: ContextPriority, kind: SegmentType
) -> ContextSegment:
    told = kind is SegmentType.SUMMARY
    return ContextSegment(
        segment_type=kind,
        priority=priority,
        content=text_of(message),
        estimated_tokens=size,
        message_id=None if told else message.id,
    )


def _entry(number: int, fate: Fate, size: int, message: Message) -> LedgerEntry:
    return LedgerEntry(number, number, fate, size, size, RECORDED, message.category)
