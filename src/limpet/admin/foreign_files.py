"""Converts files of other programs (Penguin, OpenAI) to an export file, which is then imported.

A chat that cannot be converted is skipped with its reason and does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, cast

import msgspec

from limpet import errors, limits
from limpet.admin.export import ExportWriter
from limpet.core.formats import codec, export_format, foreign_chats
from limpet.core.formats.foreign_chats import ForeignChat
from limpet.core.rules import import_rules, session_rules
from limpet.core.rules.import_rules import ImportTerms, SessionReplay
from limpet.core.rules.session_rules import checked_metadata
from limpet.core.values import events as e
from limpet.core.values import ids
from limpet.core.values.messages import Message
from limpet.core.values.session_state import DERIVED_METADATA
from limpet.core.values.validation import EMPTY, Json
from limpet.sessions.requests import checked_policy

PENGUIN_INDEX: Final = "session_index.json"
"""The file in which Penguin lists its sessions."""

replace = msgspec.structs.replace


class SkippedSource(msgspec.Struct, frozen=True):
    """A file, a line or a session that was not imported, and the reason."""

    source: str
    reason: str


class ImportNotes:
    """The notes and skipped sources of an import, up to a limit."""

    def __init__(self) -> None:
        self.skipped: list[SkippedSource] = []
        self.texts: list[str] = []
        self.more = 0

    def skip(self, source: object, reason: str) -> None:
        if len(self.skipped) < limits.IMPORT_NOTES_MAX:
            self.skipped.append(SkippedSource(str(source), reason))
        else:
            self.more += 1

    def note(self, text: str) -> None:
        if len(self.texts) < limits.IMPORT_NOTES_MAX:
            self.texts.append(text)
        else:
            self.more += 1


def detect_format(path: Path) -> str:
    """Return the format of a file or folder: limpet, penguin or openai; raise InvalidRequest if it is unknown."""
    if path.is_dir():
        return "penguin"
    with path.open("rb") as file:
        first = file.readline(limits.EXPORT_LINE_BYTES_MAX + 1)
    if not first.strip():
        raise errors.DamagedFile(f"{path} is empty.", facts={"file": str(path)})
    head = foreign_chats.decode_json_lossy(first)
    if isinstance(head, dict) and head.get("line") == "limpet-export":  # pyright: ignore[reportUnknownMemberType]
        return "limpet"
    if foreign_chats.is_chat(head) or foreign_chats.is_message(head) or isinstance(head, list):
        return "penguin" if foreign_chats.is_penguin_session(head) else "openai"
    if b'"limpet-export"' in first[:100]:
        return "limpet"
    return "penguin" if foreign_chats.is_penguin_session(_read_json(path)) else "openai"


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > limits.IMPORT_FILE_BYTES_MAX:
        raise errors.TooLarge(
            f"{path} has {size:,} bytes; at most {limits.IMPORT_FILE_BYTES_MAX:,} are read at once.",
            hint="Write one chat a line (JSONL): such files may have any size.",
            facts={"bytes": size, "bytes_max": limits.IMPORT_FILE_BYTES_MAX},
        )


def _read_json(path: Path) -> Json:
    _check_size(path)
    try:
        return foreign_chats.decode_json(path.read_bytes())
    except foreign_chats.UnreadableJson as error:
        raise errors.DamagedFile(f"{path} {error}.", facts={"file": str(path)}) from error


def penguin_chats(path: Path, notes: ImportNotes) -> Iterator[ForeignChat]:
    """Yield the sessions of a file, or of a folder with its index; note those that can't be read."""
    if not path.is_dir():
        yield foreign_chats.parse_penguin_session(_read_json(path), _read_index(path.parent))
        return
    own = (path / "journal").is_dir() and (path / "sessions").is_dir()
    for found in sorted(path.rglob("*.json")):
        if found.name == PENGUIN_INDEX or not found.is_file():
            continue
        if own and found.parent == path / "sessions":
            # A store of files lies in the same folder: these are made from its log.
            continue
        try:
            yield foreign_chats.parse_penguin_session(_read_with_backup(found, notes), _read_index(found.parent))
        except errors.Refused as error:
            notes.skip(found, error.message)


def _read_with_backup(path: Path, notes: ImportNotes) -> Json:
    try:
        return _read_json(path)
    except errors.DamagedFile:
        for backup in (path.with_name(f"{path.name}.bak"), path.with_suffix(".bak")):
            if backup.is_file():
                value = _read_json(backup)
                notes.note(f"{path} is damaged; its backup {backup.name} was read.")
                return value
        raise


def _read_index(folder: Path) -> dict[str, Json]:
    index = folder / PENGUIN_INDEX
    try:
        return foreign_chats.object_or_empty(_read_json(index)) if index.is_file() else {}
    except (OSError, errors.Refused):
        # An index only repeats what is in the files.
        return {}


def openai_chats(path: Path, notes: ImportNotes) -> Iterator[ForeignChat]:
    """Yield the chats of a file: one JSON value, or a line for each chat or each message."""
    with path.open("rb") as file:
        first = foreign_chats.decode_json_lossy(file.readline(limits.EXPORT_LINE_BYTES_MAX + 1))
        several = bool(file.readline(1))
        if first is None or isinstance(first, list) or not several:
            values = foreign_chats.split_chats(_read_json(path))
            if len(values) == 1:
                yield foreign_chats.parse_chat(values[0])
            else:
                yield from _parse_chats(((f"{path}, chat {n:,}", value) for n, value in enumerate(values, 1)), notes)
        elif foreign_chats.is_message(first) and not foreign_chats.is_chat(first):
            _check_size(path)
            yield foreign_chats.parse_chat({"messages": [value for _, value in _line_values(file, path, notes)]})
        else:
            lines = _line_values(file, path, notes)
            yield from _parse_chats(((f"{path}:{n}", _chat_of_line(value)) for n, value in lines), notes)


def _parse_chats(found: Iterable[tuple[str, Json]], notes: ImportNotes) -> Iterator[ForeignChat]:
    for source, value in found:
        try:
            yield foreign_chats.parse_chat(value)
        except errors.Refused as error:
            notes.skip(source, error.message)


def _chat_of_line(value: Json) -> Json:
    return cast("Json", {"messages": value}) if isinstance(value, list) else value


def _line_values(file: BinaryIO, path: Path, notes: ImportNotes) -> Iterator[tuple[int, Json]]:
    file.seek(0)
    number = 0
    while data := file.readline(limits.EXPORT_LINE_BYTES_MAX + 1):
        number += 1
        if len(data) > limits.EXPORT_LINE_BYTES_MAX:
            raise errors.TooLarge(f"line {number:,} of {path} is longer than any line may be.")
        if data.strip():
            try:
                yield number, foreign_chats.decode_json(data)
            except foreign_chats.UnreadableJson as error:
                notes.skip(f"{path}:{number}", f"it {error}.")


READERS: Final[dict[str, Callable[[Path, ImportNotes], Iterator[ForeignChat]]]] = {
    "openai": openai_chats,
    "penguin": penguin_chats,
}


def convert(found: Iterator[ForeignChat], made: ExportWriter, notes: ImportNotes, *, now_us: int, file_us: int) -> None:
    """Write chats as sessions of an export file; note those that can't be converted."""
    names: set[str] = set()
    made.write_line(export_format.HeaderLine())
    for chat in _link_continuations(found):
        try:
            if chat.id in names:
                raise errors.DuplicateSession("its id comes twice.")
            events = _chat_events(chat, notes, now_us=now_us, file_us=min(file_us, now_us))
            _check_chat(chat, events, now_us)
        except (errors.Refused, errors.Conflict) as error:
            notes.skip(chat.id, error.message)
            continue
        names.add(chat.id)
        made.write_line(export_format.SessionLine(chat.id))
        for fact, time_us in events:
            made.write_event(fact, time_us)
    made.close()


def _link_continuations(found: Iterator[ForeignChat]) -> Iterator[ForeignChat]:
    """Link sessions to those that they continue, if these came before."""
    places: dict[str, tuple[str, int]] = {}
    for chat in found:
        if chat.continued_from:
            root, index = places.get(chat.continued_from, (chat.continued_from, 0))
            chat.root_id, chat.continuation_index = root, index + 1
        if chat.continued_to:
            places[chat.id] = (chat.root_id or chat.id, chat.continuation_index)
        yield chat


def _chat_events(
    chat: ForeignChat, notes: ImportNotes, *, now_us: int, file_us: int
) -> list[tuple[export_format.ExportedEvent, int]]:
    def note(text: str) -> None:
        notes.note(f"{chat.id}: {text}")

    began = min(chat.created_us, now_us)
    read = [_convert_message(chat, number, value, note) for number, value in enumerate(chat.messages, 1)]
    messages = list(import_rules.repair_messages((m for m in read if m is not None), note))
    if not messages and not chat.penguin:
        raise errors.InvalidRequest("it has no messages.")
    times = [foreign_chats.parse_time_us(message.timestamp) for message in messages]
    time_us = began or min((t for t in times if t), default=0) or chat.active_us or file_us
    time_us = min(time_us, now_us)
    created = e.SessionCreatedEvent(
        id=chat.id, user_id=chat.user_id, title=chat.title, metadata=_convert_metadata(chat, note),
        root_id=chat.root_id, continued_from=chat.continued_from, continuation_index=chat.continuation_index,
    )  # fmt: skip
    events: list[tuple[export_format.ExportedEvent, int]] = [(created, time_us)]
    for message, said_us in zip(messages, times, strict=True):
        time_us = min(max(time_us, said_us), now_us)
        said = message if said_us else replace(message, timestamp=ids.iso(time_us))
        events.append((session_rules.counted_message_event(said), time_us))
    if chat.continued_to:
        events.append((e.SessionContinuedEvent(chat.continued_to), time_us))
    return events


def _convert_message(chat: ForeignChat, number: int, value: Json, note: Callable[[str], None]) -> Message | None:
    name = f"message {number}"
    parse = foreign_chats.parse_message if chat.penguin else import_rules.accept_message
    message = parse(value, note, name=name)
    if message is None:
        return None
    given = foreign_chats.object_or_empty(value)
    if foreign_chats.usable_id(given.get("id")) != message.id:
        message = replace(message, id=f"msg_{foreign_chats.fingerprint([chat.id, number])}")
    said = given.get("timestamp")
    return replace(message, timestamp=said if foreign_chats.parse_time_us(said) else ids.iso(0))


def _convert_metadata(chat: ForeignChat, note: Callable[[str], None]) -> dict[str, Json]:
    kept = {k: v for k, v in chat.metadata.items() if k not in DERIVED_METADATA}
    try:
        return cast("dict[str, Json]", checked_metadata(kept))
    except errors.Refused as error:
        note(f"its metadata was left out: {error.message}")
        return {}


def _check_chat(chat: ForeignChat, events: Sequence[tuple[export_format.ExportedEvent, int]], now_us: int) -> None:
    terms = ImportTerms(latest_us=now_us, check_policy=checked_policy, names=EMPTY, version_offsets=EMPTY)
    replay = SessionReplay(chat.id, terms, events=len(events))
    for fact, time_us in events:
        replay.apply(fact, time_us, hidden=False)
        if isinstance(fact, e.MessageAddedEvent):
            codec.encode_message(fact.message)
    replay.finish()
