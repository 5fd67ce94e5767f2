"""Session files of Penguin: a session with its messages, and the index that a folder of them has.

Nothing in such a file is a reason to fail: what Limpet has no place for goes into the session's metadata.
Its messages are read by `lenient`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from limpet import errors
from limpet.core.values.json_values import EMPTY, Json
from limpet.core.values.session_state import DERIVED_METADATA
from limpet.wire.chats import Chat, fingerprint, moment, usable_id, usable_title
from limpet.wire.lenient import as_object

SESSION: Final = frozenset({"id", "messages", "created_at", "last_active", "metadata"})
"""Fields of a session that have a place."""

_COUNTED: Final = frozenset({*DERIVED_METADATA, "token_count", "created_at", "last_active"})
"""What an index or a session's metadata says that is worked out again."""


def is_session(value: Json) -> bool:
    """Whether a JSON value looks like a session of Penguin's."""
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):  # pyright: ignore[reportUnknownMemberType]
        return False
    given = cast("dict[str, Json]", value)
    return "last_active" in given or str(given.get("id", "")).startswith("session_")


def session(value: Json, index: Mapping[str, Json] = EMPTY) -> Chat:
    """Return a session of Penguin's; raise InvalidRequest if the value is none."""
    given = cast("dict[str, Json]", value) if isinstance(value, dict) else {}
    messages = given.get("messages")
    if not isinstance(messages, list):
        raise errors.InvalidRequest("it is no session: it has no list of messages.")
    listed = cast("list[Json]", messages)
    name = usable_id(given.get("id")) or f"session_{fingerprint(listed)}"
    entry = index.get(name)
    known = {**as_object(entry), **as_object(given.get("metadata"))}
    kept = {key: item for key, item in known.items() if key not in _COUNTED}
    rest = {key: item for key, item in given.items() if key not in SESSION and item}
    if rest:
        kept["penguin"] = rest
    return Chat(
        id=name,
        messages=listed,
        title=usable_title(known.get("title")),
        metadata=kept,
        created_us=moment(given.get("created_at")),
        active_us=moment(given.get("last_active")),
        continued_from=usable_id(known.get("continued_from")),
        continued_to=usable_id(known.get("continued_to")),
        penguin=True,
    )
