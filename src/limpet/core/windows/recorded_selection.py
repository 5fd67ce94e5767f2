"""Recorded selections of windows and packs, and how they are rebuilt byte for byte.

A record refers to messages by number and to texts by hash. Rebuilding reads them again without fitting. The recorded
digest proves that the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import msgspec

from limpet import errors
from limpet.core.formats import codec
from limpet.core.values.context import ContextPriority, Fate, Ledger, LedgerEntry, PackSelection, WindowSelection
from limpet.core.values.messages import Message
from limpet.core.values.validation import Json, freeze
from limpet.core.windows.pack import (
    SOURCE_BREADCRUMBS,
    SOURCE_BRIEF,
    SOURCE_HANDLE,
    SOURCE_MESSAGE,
    SOURCE_SUMMARY,
    ContextPack,
    ContextPackMetadata,
    ContextSegment,
    ConversationMoment,
    FrameBreadcrumb,
    HandleEntry,
    PackDraft,
    PackLedger,
    PackSource,
    SegmentType,
    message_segment,
)
from limpet.core.windows.window import CounterInfo, Window, messages_digest

INLINE_TEXT_CHARS: Final = 256
"""A shorter text is part of the record itself: a hash would need about the same space."""

RULE_IN_RECORDED_PACK: Final = "it was in the recorded pack"

ReadTexts = Callable[[Sequence[str]], Mapping[str, str]]
"""Returns texts that are stored beside the log, by hash."""

ReadMessagesAt = Callable[[ConversationMoment, int, int], Sequence[Message]]
"""Returns the messages of a session version from a first to a last number."""


def pack_selection(pack: ContextPack) -> tuple[PackSelection, tuple[str, ...]]:
    """Return the selection to record of a pack, and the texts to store beside the log."""
    recording, told = _PackRecorder(pack), pack.token_summary
    chosen = PackSelection(
        digest=pack.context_hash, budget=told.budget, used=told.used, counter=told.counter, exact=told.exact,
        level=told.compaction_level, role=pack.metadata.role,
        parts=tuple(freeze(part) for part in recording.parts()), about=freeze(_pack_details(pack)),
    )  # fmt: skip
    return chosen, tuple(recording.texts.values())


class _PackRecorder:
    def __init__(self, pack: ContextPack) -> None:
        self._pack = pack
        self.texts: dict[str, str] = {}

    def parts(self) -> list[dict[str, Json]]:
        """Return the parts of the record; consecutive unaltered messages are one part."""
        crumbs = [[c.frame_id, c.goal, str(c.status), c.depth] for c in self._pack.breadcrumbs]
        parts: list[dict[str, Json]] = [{"kind": "frames", **self._text_or_hash(codec.canonical_json(crumbs).decode())}]
        segments = iter(self._pack.segments)
        for at, source in enumerate(self._pack.sources):
            segment = None if source.kind in (SOURCE_BRIEF, SOURCE_BREADCRUMBS) else next(segments)
            if segment is None or source.kind != SOURCE_MESSAGE or source.altered:
                parts.append(self._message_part(at, source, segment))
                continue
            if parts[-1].get("last") != source.number - 1:
                first = source.number
                parts.append({"kind": SOURCE_MESSAGE, "first": first, "last": 0, "tokens": [], "priorities": []})
            run = parts[-1]
            run["last"] = source.number
            run["tokens"].append(self._pack.sizes[at])
            run["priorities"].append(int(segment.priority))
        return parts

    def _message_part(self, at: int, source: PackSource, segment: ContextSegment | None) -> dict[str, Json]:
        message = self._pack.messages[at]
        part: dict[str, Json] = {"kind": source.kind, "tokens": self._pack.sizes[at]}
        if source.kind in (SOURCE_MESSAGE, SOURCE_SUMMARY):
            text = codec.canonical_json(message.to_dict()).decode()
            part |= {"number": source.number} if source.number else {}
        else:
            text = str(message.content)
            part |= {"id": message.id, "role": message.role, "category": message.category.name}
        if segment is not None:
            part |= {"priority": int(segment.priority), "shortened": segment.shortened}
            part |= {"type": str(segment.segment_type)}
        if source.kind == SOURCE_HANDLE and segment is not None:
            head = text.index("\n") + 1
            part |= {"handle": source.handle_id, "head": head, "size": len(segment.content)}
        if source.sessions:
            part |= {"sessions": source.sessions}
        return part | self._text_or_hash(text)

    def _text_or_hash(self, text: str) -> dict[str, Json]:
        if len(text) < INLINE_TEXT_CHARS:
            return {"text": text}
        name = codec.digest(text.encode()).hex()
        self.texts[name] = text
        return {"hash": name}


def _pack_details(pack: ContextPack) -> dict[str, Json]:
    about: dict[str, Json] = {
        "metadata": msgspec.to_builtins(pack.metadata),
        "overhead": pack.token_summary.breakdown.overhead,
        "timestamp": pack.messages[pack.sources.index(PackSource(SOURCE_BRIEF))].timestamp,
    }
    if pack.conversation_moment is not None:
        about["talked"] = msgspec.to_builtins(pack.conversation_moment)
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


def rebuilt_pack(chosen: PackSelection, texts: ReadTexts, said: ReadMessagesAt) -> ContextPack:
    """Return the recorded pack; raise Corrupt if it differs from the digest, Erased if a part was erased."""
    if not chosen.digest:
        raise errors.Erased("the pack can't be made again: something that was in it was erased.")
    try:
        made = _PackRebuilder(chosen, texts(chosen.hashes), said).rebuild()
    except (LookupError, TypeError, ValueError, msgspec.MsgspecError, errors.Refused) as error:
        raise _corrupt_pack_error(chosen) from error
    if made.context_hash != chosen.digest:
        raise _corrupt_pack_error(chosen)
    return made


def _corrupt_pack_error(chosen: PackSelection) -> errors.Corrupt:
    return errors.Corrupt("a recorded pack can't be made again as it was.", facts={"context_hash": chosen.digest})


class _PackRebuilder:
    def __init__(self, chosen: PackSelection, texts: Mapping[str, str], said: ReadMessagesAt) -> None:
        self._chosen = chosen
        self._texts = texts
        self._read_messages = said
        self._draft = PackDraft()
        self._handles: list[HandleEntry] = []
        self._message_entries: list[LedgerEntry] = []

    def rebuild(self) -> ContextPack:
        chosen, about = self._chosen, self._chosen.about
        talked = about.get("talked")
        moment = msgspec.convert(talked, ConversationMoment) if talked is not None else None
        frames, *parts = chosen.parts
        for part in parts:
            if part["kind"] == SOURCE_MESSAGE and "first" in part:
                assert moment is not None, "what was said was said in a session"
                self._append_run(part, moment)
            else:
                self._append_part(part)
        breadcrumbs = [
            msgspec.convert(dict(zip(FrameBreadcrumb.__struct_fields__, crumb, strict=True)), FrameBreadcrumb)
            for crumb in msgspec.json.decode(self._text(frames))
        ]
        return self._draft.finish(
            msgspec.convert(about["metadata"], ContextPackMetadata),
            tuple(breadcrumbs),
            self._ledger(),
            budget=chosen.budget,
            level=chosen.level,
            counted=CounterInfo(chosen.counter, chosen.exact, about["overhead"]),
            moment=moment,
        )

    def _text(self, part: Mapping[str, Json]) -> str:
        return part["text"] if "text" in part else self._texts[part["hash"]]

    def _append_run(self, part: Mapping[str, Json], moment: ConversationMoment) -> None:
        found = self._read_messages(moment, part["first"], part["last"])
        numbers = range(part["first"], part["last"] + 1)
        for number, message, size, priority in zip(numbers, found, part["tokens"], part["priorities"], strict=True):
            kind = SegmentType.CONVERSATION
            segment = message_segment(message, size, ContextPriority(priority), kind, shortened=False)
            self._draft.append(message, size, PackSource(SOURCE_MESSAGE, None, number), segment)
            self._message_entries.append(_recorded_entry(number, Fate.KEPT, size, message))

    def _append_part(self, part: Mapping[str, Json]) -> None:
        kind, size, text = part["kind"], part["tokens"], self._text(part)
        if kind in (SOURCE_MESSAGE, SOURCE_SUMMARY):
            self._append_altered(part, Message.from_dict(msgspec.json.decode(text)))
            return
        about = self._chosen.about
        fields = {"role": part["role"], "category": part["category"], "id": part["id"]}
        message = Message.from_dict({**fields, "content": text, "timestamp": about["timestamp"]})
        handle_id = part.get("handle")
        altered = kind == SOURCE_HANDLE and part["shortened"]
        sessions = tuple((name, version) for name, version in part.get("sessions", ()))
        source = PackSource(kind, handle_id, 0, altered, sessions)
        if kind in (SOURCE_BRIEF, SOURCE_BREADCRUMBS):
            self._draft.append(message, size, source)
            return
        content = text
        if kind == SOURCE_HANDLE:
            content = text[part["head"] : part["head"] + part["size"]]
            self._handles.append(
                HandleEntry(
                    fate=Fate.SHORTENED if altered else Fate.KEPT, rule=RULE_IN_RECORDED_PACK, tokens=size, used=size,
                    priority=ContextPriority(part["priority"]), handle_id=handle_id,
                )
            )  # fmt: skip
        segment = ContextSegment(
            segment_type=SegmentType(part["type"]), priority=ContextPriority(part["priority"]), content=content,
            estimated_tokens=size, handle_id=handle_id, shortened=part["shortened"],
        )  # fmt: skip
        self._draft.append(message, size, source, segment)

    def _append_altered(self, part: Mapping[str, Json], message: Message) -> None:
        number, size = part.get("number", 0), part["tokens"]
        source = PackSource(part["kind"], None, number, part["kind"] == SOURCE_MESSAGE)
        priority, kind = ContextPriority(part["priority"]), SegmentType(part["type"])
        segment = message_segment(message, size, priority, kind, shortened=part["shortened"])
        self._draft.append(message, size, source, segment)
        if number:
            self._message_entries.append(_recorded_entry(number, Fate.SHORTENED, size, message))

    def _ledger(self) -> PackLedger:
        about = self._chosen.about
        for fate, rule, priority, count, tokens in about["out"]:
            self._handles.append(
                HandleEntry(fate=Fate(fate), rule=rule, priority=ContextPriority(priority), tokens=tokens, count=count)
            )
        return PackLedger(tuple(self._handles), Ledger(tuple(self._message_entries)))


def _recorded_entry(number: int, fate: Fate, size: int, message: Message) -> LedgerEntry:
    return LedgerEntry(number, number, fate, size, size, RULE_IN_RECORDED_PACK, message.category)


RULE_NOT_IN_RECORDED_WINDOW = "it was not in the recorded window"
RULE_IN_RECORDED_WINDOW = "it was in the recorded window"

ReadMessageRange = Callable[[int, int], Sequence[Message]]
"""Returns the messages of the conversation from a first to a last number."""


def window_selection(window: Window, tenant: str, session_id: str) -> WindowSelection:
    """Return the selection to record of a window; raise InvalidRequest for a window of another session."""
    if not isinstance(cast("object", window), Window):
        raise errors.InvalidRequest(f"window is a Window, not {type(window).__name__}.")
    if window.session_id and (window.tenant, window.session_id) != (tenant, session_id):
        raise errors.InvalidRequest(
            "the window was made of another session.", hint="Give the one that this session's window() has made."
        )
    if not window.session_id:
        raise errors.InvalidRequest(
            "the window was made of a list, so there is nothing to find it in.",
            hint="Give one that session.window() has made.",
        )
    shown = [e for e in window.ledger if e.fate in (Fate.KEPT, Fate.SHORTENED)]
    entries = iter(shown)
    parts: list[tuple[int, int] | Mapping[str, Json]] = []
    for at, message in enumerate(window.messages):
        entry = None if at == window.summary_at else next(entries)
        if entry is None or entry.fate is Fate.SHORTENED:
            number = {} if entry is None else {"number": entry.first}
            parts.append(freeze({**number, "message": message.to_dict()}))
        elif parts and isinstance(parts[-1], tuple) and parts[-1][1] == entry.first - 1:
            parts[-1] = (parts[-1][0], entry.first)
        else:
            parts.append((entry.first, entry.first))
    chosen = WindowSelection(
        window.session_id, window.version, window.began, window.budget, window.tokens,
        window.overhead, window.counter, window.exact, window.level, tuple(parts), window.sizes,
        messages_digest(window.messages),
    )  # fmt: skip
    try:
        # The record must be decodable; a window that the caller has altered may not be.
        msgspec.json.decode(msgspec.json.encode(chosen), type=WindowSelection)
    except msgspec.MsgspecError as error:
        raise errors.InvalidRequest(f"the window is not as it was made: {error}.") from error
    return chosen


def rebuilt_window(recorded: WindowSelection, count: int, read: ReadMessageRange, *, tenant: str) -> Window:
    """Return the recorded window of a conversation that had `count` messages.

    Raises Corrupt if it differs from the digest, Erased if a part was erased.
    """
    if not recorded.digest:
        raise errors.Erased(
            "the window can't be made again: a message that was in it was erased.",
            facts={"session": recorded.session_id, "version": recorded.version},
        )
    messages: list[Message] = []
    inside: dict[int, LedgerEntry] = {}
    summary_at = -1
    for part in recorded.parts:
        if isinstance(part, Mapping):
            made = Message.from_dict(cast("Mapping[str, Json]", part["message"]))
            found, numbers = [made], [part["number"]] if "number" in part else []
            fate = Fate.SHORTENED
            if not numbers:
                summary_at = len(messages)
        else:
            found, numbers, fate = list(read(*part)), list(range(part[0], part[1] + 1)), Fate.KEPT
        for number, message in zip(numbers, found, strict=False):
            size = recorded.sizes[len(messages) + number - numbers[0]]
            inside[number] = LedgerEntry(number, number, fate, size, size, RULE_IN_RECORDED_WINDOW, message.category)
        messages += found
    if messages_digest(messages) != recorded.digest:
        raise errors.Corrupt(
            "a recorded window can't be made again as it was.",
            facts={"session": recorded.session_id, "version": recorded.version},
        )
    return Window(
        messages=tuple(messages), sizes=recorded.sizes, tokens=recorded.tokens, budget=recorded.budget,
        ledger=_recorded_ledger(inside, count), level=recorded.level, counter=recorded.counter,
        exact=recorded.exact, overhead=recorded.overhead, summary_at=summary_at,
        tenant=tenant, session_id=recorded.session_id, version=recorded.version, began=recorded.began,
    )  # fmt: skip


def _recorded_ledger(inside: Mapping[int, LedgerEntry], count: int) -> Ledger:
    entries: list[LedgerEntry] = []
    before = 0
    for number in (*sorted(inside), count + 1):
        if number > before + 1:
            entries.append(LedgerEntry(before + 1, number - 1, Fate.LEFT_OUT, 0, 0, RULE_NOT_IN_RECORDED_WINDOW))
        if number in inside:
            entries.append(inside[number])
        before = number
    return Ledger(tuple(entries))
