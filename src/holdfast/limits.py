"""Every bound of Holdfast, with its reason. Enforced where data enters; nothing here is tuning."""

from __future__ import annotations

from typing import Final

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""One message, as stored. Room for inline media; a larger one stalls every other writer's commit."""

METADATA_BYTES_MAX: Final = 64 * 1024
"""A session's metadata. It is part of the session's row, which every append rewrites."""

TITLE_BYTES_MAX: Final = 1024
"""A session's title: one line that a list shows."""

ID_BYTES_MAX: Final = 256
"""Ids of tenants, sessions, users, messages, calls and idempotency keys: they are index entries."""

DEPTH_MAX: Final = 64
"""Nesting of any JSON value. Far above real tool arguments, far below the interpreter's recursion."""

NUMBER_BITS_MAX: Final = 8_192
"""Size of a whole number. Python refuses to write much larger ones as text."""

BATCH_MESSAGES_MAX: Final = 10_000
"""Messages in one add_messages: they are decided and committed as one step."""

ESTIMATE_CHARS_MAX: Final = 32 * 1024
"""Characters that a token estimate looks at. Of longer text it takes slices: an append must not wait for it."""

PAGE_SIZE_MAX: Final = 1_000
"""Rows of one listing page."""

FILTER_TERMS_MAX: Final = 20
"""Metadata keys in one listing filter."""

COMMIT_BATCH_MAX: Final = 256
"""Commands decided and committed together: bounds how long the turn is held."""

QUEUE_MAX: Final = 10_000
"""Commands that may wait for a commit in one process before submitting blocks or is refused."""

RETRIES_MAX: Final = 8
"""Times the engine decides a command anew after losing a race. Each loss means another's progress."""

TURN_WAIT_S: Final = 30.0
"""How long a writer waits for another process to pass the turn before StoreBusy names the holder."""

READ_CHUNK: Final = 256
"""Events fetched at a time by lazy readers: bounds memory, amortises the query."""

SNAPSHOT_EVERY: Final = 128
"""Events of a stream between two snapshots: a cold open folds at most this many."""

IDEMPOTENCY_KEEP_S: Final = 7 * 86_400
"""How long a caller's idempotency key is remembered."""

CHECKPOINT_PAGES: Final = 1_000
"""Pages in the write-ahead log that trigger a checkpoint."""

WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
"""What a checkpoint leaves of an overgrown write-ahead log file."""

CACHED_SESSIONS: Final = 1_000
"""Session states kept in memory by one engine."""

CACHE_PAGES_KIB: Final = 8_192
"""Page cache of one SQLite connection."""

READERS_MAX: Final = 4
"""SQLite connections that one process keeps open for reading."""

CONTINUE_GRACE: Final = 0.1
"""Share of max_messages_per_session by which a session may overrun to reach the end of its turn."""

IDLE_TIMEOUT_S: Final = 86_400.0
"""A session that nobody touched for this long is ended by expire()."""

CHAT_CALL_ID_MAX: Final = 40
"""A tool call's id in an OpenAI Chat request, in characters. A longer one is replaced going out."""

RESPONSES_CALL_ID_MAX: Final = 64
"""A tool call's id in an OpenAI Responses request, in characters."""

ANTHROPIC_CALL_ID_MAX: Final = 64
"""A tool call's id in an Anthropic request. It names characters, no length: this is ours, to be safe."""

GEMINI_CALL_ID_MAX: Final = 64
"""A tool call's id in a Gemini request. It states no bound: this is ours, to be safe."""

TOOL_NAME_MAX: Final = 64
"""A tool's name going out to any provider, in characters: the smallest bound among them."""
