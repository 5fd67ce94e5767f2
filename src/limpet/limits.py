"""All bounds of Limpet, each with its reason. They are enforced where data enters; they are no tuning parameters."""

from __future__ import annotations

from typing import Final

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""One message, as stored. It leaves room for inline media; a larger one would delay every other writer's commit."""
BLOB_BYTES_MIN: Final = 32 * 1024
"""A text of a message from this size on is stored as a blob, once for all its uses. A blob's rows take half a
kilobyte more, less than 2 % from here on; smaller messages stay one row, read by one query.
"""
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
ESTIMATE_CHARS_MAX: Final = 8 * 1024
"""Characters that a token estimate reads. Of longer text it reads samples, so that an append does not wait for it."""
COUNT_CACHED_CHARS_MIN: Final = 256
"""Shorter texts are not cached: counting them takes no longer than a cache lookup."""
COUNT_CACHED_CHARS_MAX: Final = 16 * 1024
"""Longer texts are not cached: they would take too much memory."""
COUNT_CACHE_ENTRIES: Final = 512
"""Cached token counts of one process, over all counters: at most 8 MiB of ASCII text, 32 MiB of any text."""
MEDIA_HEADER_CHARS: Final = 256 * 1024
"""Base64 characters that are decoded to find an image's size. Photographs have a preview before it."""
IMAGE_SIDE_MAX: Final = 65_535
"""Largest accepted width or height of an image. Image formats end there; more is a forged header."""
IMAGE_CROPS_MAX: Final = 16
"""Largest number of crops that Gemini is assumed to make of one image. It publishes no bound."""
FILE_PAGES_ASSUMED: Final = 100
"""Assumed pages of a file whose pages are unknown."""
FILE_PAGE_BYTES_MIN: Final = 2_000
"""Assumed smallest size of a page, where a file does not state its pages."""
MEDIA_BYTES_PER_SECOND_MIN: Final = 2_000
"""Assumed lowest bit rate of a recording (16 kbit/s) that does not state its length."""
MEDIA_SECONDS_ASSUMED: Final = 600.0
"""Assumed length of a recording that is not part of the message."""
TOKENS_MAX: Final = 2**53
"""A policy's budget, or reported usage. Parts of it are computed as floats, which are exact up to here."""
CALIBRATION_FACTOR_MAX: Final = 4.0
"""How far reported usage may correct a counter, up or (by its inverse) down. Beyond it the report is wrong."""
CALIBRATION_OBSERVATIONS: Final = 32
"""Observations with full weight in a calibration. Older ones fade, because models change under their names."""
SCRUB_WAIT_S: Final = 10.0
"""How long an erasure waits for readers before it postpones emptying the write-ahead log. Writers wait too."""
SCRUB_REPLICA_WAIT_S: Final = 30.0
"""How long an erasure waits for replicas that still need the erased rows; they report every 10 s by default."""
PAGE_SIZE_MAX: Final = 1_000
"""Rows of one listing page."""
FILTER_TERMS_MAX: Final = 20
"""Metadata keys in one listing filter."""
COMMIT_BATCH_MAX: Final = 256
"""Commands decided and committed together. It bounds how long the write lock is held."""
QUEUE_MAX: Final = 10_000
"""Commands that may wait for a commit in one process before further ones are refused."""
RETRIES_MAX: Final = 8
"""How often the engine decides a command again after another writer committed first."""
WRITE_LOCK_WAIT_S: Final = 30.0
"""How long a writer waits for the write lock of another process before StoreBusy names its holder."""
READ_CHUNK: Final = 256
"""Events that lazy readers fetch at a time: it bounds memory and spreads the cost of a query."""
JOURNAL_SEGMENT_BYTES: Final = 4 * 1024 * 1024
"""Size from which a journal segment of a file store gets no more lines. A tool that compares files, or the rewrite
after an erasure, holds one segment at a time.
"""
JOURNAL_PREALLOCATED_BYTES: Final = 64 * 1024
"""Blanks at the end of a file store's journal while it is in use. Lines are written over them, which is faster than
extending the file each time. Closing the store removes them.
"""
BLOB_INLINE_BYTES: Final = 8 * 1024
"""A larger blob of a file store has a file of its own; a smaller one is part of the journal's line."""
JOURNAL_REPLAY_COMMITS: Final = 256
"""Commits of a journal that are applied to its index in one transaction."""
SNAPSHOT_EVERY: Final = 128
"""Events of a stream between two snapshots: opening a session folds at most this many."""
IDEMPOTENCY_KEEP_S: Final = 7 * 86_400
"""How long an idempotency key is kept."""
RETENTION_DAYS_MAX: Final = 1_000_000
"""Largest number of days that ended sessions can be kept: beyond it, keep them for ever."""
CHECKPOINT_PAGES: Final = 1_000
"""Pages in the write-ahead log that trigger a checkpoint."""
WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
"""Size to which a checkpoint shortens the write-ahead log file."""
CACHED_SESSIONS: Final = 1_000
"""Session states kept in memory by one engine."""
CACHE_PAGES_KIB: Final = 8_192
"""Page cache of one SQLite connection."""
READERS_MAX: Final = 4
"""SQLite connections that one process keeps open for reading."""
SERVER_CONNECTIONS: Final = 8
"""Largest number of connections of one process to a server, unless the URL has ?connections=."""
SERVER_CONNECT_S: Final = 10
"""How long connecting to a server may take."""
SERVER_RESPONSE_S: Final = 30.0
"""How long a server may take for one answer, unless the URL has ?timeout_s=."""
REDIS_REWRITE_WAIT_S: Final = 300.0
"""How long an erasure waits for a server to rewrite its files before it postpones the rest."""
CONTINUATION_GRACE_SHARE: Final = 0.1
"""Share of max_messages_per_session by which a session may grow beyond it to reach the end of a turn."""
IDLE_TIMEOUT_S: Final = 86_400.0
"""expire() ends a session that did not change for this long."""
CHAT_CALL_ID_MAX: Final = 40
"""Characters of a tool call's id in an OpenAI Chat request. A longer id is replaced in the request."""
RESPONSES_CALL_ID_MAX: Final = 64
"""Characters of a tool call's id in an OpenAI Responses request."""
ANTHROPIC_CALL_ID_MAX: Final = 64
"""Characters of a tool call's id in an Anthropic request. Anthropic states no length; this one is safe."""
GEMINI_CALL_ID_MAX: Final = 64
"""Characters of a tool call's id in a Gemini request. Gemini states no bound; this one is safe."""
ANTHROPIC_TOOL_NAME_MAX: Final = 128
"""Characters of a tool's name that came from Anthropic and is sent back to it."""
TOOL_NAME_MAX: Final = 64
"""Characters of a tool's name in any request: the smallest bound of all providers."""
LIGHT_CHARS: Final = 2_000
"""Characters of one text that light compaction keeps: its head and its tail."""
ABBREVIATION_CHARS: Final = 60
"""A text is shortened only if that saves more than the note that says so."""
NEWEST_MESSAGES: Final = 10
"""Messages that moderate compaction leaves out of its summary."""
SUMMARY_SHARE: Final = 0.15
"""Part of a budget that an extracted summary may take."""
SUMMARY_SHARE_MAX: Final = 0.5
"""Part of a budget that a written summary may take."""
NEWEST_TURNS_SHARE: Final = 0.6
"""Part of a limit that the newest turns may take beside a summary of the earlier ones."""
SUMMARY_CHARS_MAX: Final = 8_000
"""Characters of an extracted summary."""
SUMMARY_BYTES_MAX: Final = 64 * 1024
"""Bytes of a written summary. It is part of the session's state, which is kept in memory."""
MESSAGE_CACHE_SESSIONS: Final = 256
"""Sessions whose newest messages one engine caches for windows."""
MESSAGE_CACHE_MESSAGES_MAX: Final = 4_000
"""Newest messages cached for one session. A window that reaches further back reads the rest from the store."""
RECORDED_PAGE: Final = 20
"""Default size of a page of recorded windows. Each is read by itself."""
WINDOW_STEP_SHARE: Final = 0.32
"""Part of its budget by which the beginning of a stable window moves when the window is full."""
FRAME_ID_BYTES_MAX: Final = 200
"""A frame id chosen by the caller. Ids of its children begin with it."""
FRAME_TEXT_BYTES_MAX: Final = 16 * 1024
"""A frame's goal or result summary: part of a row that changes with the frame."""
FRAME_JSON_BYTES_MAX: Final = 256 * 1024
"""A frame's inputs or a suspension's payload: part of the tree's state, which is kept in memory."""
FRAME_HANDLES_MAX: Final = 100_000
"""Handles of one frame. All are in memory while the frame is open."""
FRAME_RESULTS_MAX: Final = 10_000
"""Results of one frame: part of the tree's state."""
EXPORT_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""One line of an exported file, which is read at a time: the largest message, or a recorded window."""
IMPORT_FILE_BYTES_MAX: Final = 512 * 1024 * 1024
"""A file of another program with one JSON value, or one chat with a message per line: it is read whole."""
IMPORT_STEP_EVENTS: Final = 1_000
"""Events of an import that are committed together. A longer session stays hidden until its last step."""
IMPORT_STEP_BYTES: Final = 8 * 1024 * 1024
"""Bytes of an import that are committed together, unless a single message is larger."""
IMPORT_CLOCK_SKEW_S: Final = 86_400
"""How far the times of an imported file may be ahead of the local clock."""
FRAMES_CLOSED_KEPT: Final = 32
"""Closed frames that stay in the state of a tree before they are written to rows of their own."""
FRAMES_OPEN_MAX: Final = 1_000
"""Open frames of one tree. Every command on the tree visits them."""
HANDLE_TOKENS: Final = 100
"""Assumed size of a handle without an estimate."""
PACK_TOKENS_MIN: Final = 500
"""The smallest budget of a pack."""
BRIEF_TOKENS: Final = 500
"""Part of a pack's budget reserved for its brief context."""
BREADCRUMB_TOKENS: Final = 40
"""Tokens of a pack reserved for each frame from the root to its own."""
PACK_OVERHEAD: Final = 50
"""Tokens of a pack reserved for the text between its parts."""
SUSPENSION_S: Final = 86_400.0
"""Default time until a suspension expires."""
SUSPENSION_S_MAX: Final = 10 * 366 * 86_400.0
"""Longest time until a suspension expires, if it does: dates stay within a calendar."""
FRAME_TIMEOUT_MS_MAX: Final = 10 * 366 * 86_400_000
"""Longest time limit of a frame, if it has one: dates stay within a calendar."""
CACHED_TREES: Final = 1_000
"""Frame trees kept in memory by one engine."""
FAILURES_KEPT: Final = 100
"""Unhandled failed children that a frame lists, the newest."""
NOTE_BYTES_MAX: Final = 64 * 1024
"""The value of a note. Each change rewrites all of it under the write lock."""
NOTE_NAME_BYTES_MAX: Final = 1_024
"""A note's name: an index entry with room for an id."""
LEASE_S: Final = 30.0
"""How long a lease lasts without renewal before another worker takes over."""
WORKER_POLL_S: Final = 5.0
"""How often a worker looks for work that no event announces: retries and timeouts."""
WORKER_BATCH_DELAY_S: Final = 0.1
"""How long a worker waits after an event, so that several are processed together."""
BACKOFF_S: Final = 1.0
"""The pause after a first failure; it doubles with each further one."""
BACKOFF_S_MAX: Final = 3_600.0
"""The longest pause between retries."""
PURGE_BATCH_SESSIONS: Final = 64
"""Deleted sessions that a worker erases in one step."""
SCRUB_INTERVAL_SESSIONS: Final = 4_096
"""Sessions past their retention that are erased before the files are scrubbed, a multiple of PURGE_BATCH_SESSIONS."""
WORKER_STOP_CHECK_S: Final = 0.1
"""How often a waiting worker checks whether it was stopped."""
WORKER_FINAL_WORK_S: Final = 4.0
"""How long the worker of a closing store finishes due work: the search index and memory of ended sessions."""
WORKER_STOP_S: Final = 5.0
"""How long close waits for its worker. Unfinished work is taken up by the next worker."""
IMPORT_NOTES_MAX: Final = 1_000
"""Notes and omissions that an import report lists; the rest is counted."""
CHAIN_SESSIONS_MAX: Final = 100_000
"""Sessions of one conversation that are followed. A longer chain is a defect."""
FILTER_TERM_CHARS_MAX: Final = 512
"""A metadata key with its value, as JSON, by which listings filter: an index entry."""
HANDLE_CHAIN_MAX: Final = 8
"""Handles that are followed from one to the next: they may form a cycle."""
SUMMARISED_HANDLES_MAX: Final = 256
"""Handles whose content is summarised; older ones are only named in the summary."""
SUMMARY_RECALL_TERMS_MAX: Final = 120
"""Names and numbers that the recall of a summary is measured by: a page can't have all of thousands of messages."""
SUMMARY_SCAN_CHARS_MAX: Final = 20_000
"""Characters of one message that are searched for names and numbers, so that no single output dominates."""
FACT_CHARS_MAX: Final = 300
"""The text of one fact. Longer sentences are found by the archive search."""
FACT_ABOUT_CHARS_MAX: Final = 80
"""The subject of a fact: part of a key."""
FACT_SCAN_CHARS_MAX: Final = 8_000
"""Characters of one message that are searched for facts: a pasted document does not describe its user."""
FACTS_PER_MESSAGE_MAX: Final = 16
"""Facts taken from one message."""
FACT_SOURCES_MAX: Final = 16
"""Sources kept of one fact, the newest."""
SLOT_SOURCES_MAX: Final = 256
"""Sources kept of all facts on one subject, the newest: they are one row."""
PROFILE_FACTS_KEPT: Final = 512
"""Facts of a user that are kept ready for profiles, the most useful: one row, read for each profile."""
PROFILE_FACTS_MAX: Final = 256
"""Facts in one profile. The others replace facts that no longer hold."""
MEMORY_CHUNK: Final = 256
"""Messages that long-term memory ingests in one step: it bounds memory and the work repeated after a crash."""
MEMORY_ROWS: Final = 1_000
"""Rows that the built-in memory reads at a time, and rows of one word that a search examines."""
MEMORY_RESULTS_MAX: Final = 100
"""Results of one search of long-term memory."""
OFFLOAD_TRIES_MAX: Final = 24
"""How often a history is offered to a failing memory engine before it is given up: about half a day."""
REEXTRACTION_TRIES_MAX: Final = 100
"""How often a model is asked again about a history whose facts came from rules: some days at least."""
ARCHIVE_WORD_CHARS: Final = 64
"""The longest word or identifier that the archive indexes."""
ARCHIVE_TERMS_MAX: Final = 4_000
"""Terms indexed of one message, so that one with a whole book does not fill its user's index."""
ARCHIVE_CHARS_MAX: Final = 64 * 1024
"""Characters of one message that are indexed: its beginning and its end."""
ARCHIVE_TOOL_CHARS_MAX: Final = 8 * 1024
"""Characters of one tool input or output that are indexed."""
ARCHIVE_QUERY_CHARS_MAX: Final = 8 * 1024
"""Characters of a query. A whole message can be one."""
ARCHIVE_QUERY_TERMS: Final = 48
"""Terms of a query that are used: the longest, which are usually the rarest."""
ARCHIVE_BATCH: Final = 1_024
"""Events that are indexed in one step: it bounds memory and the work repeated after a crash."""
ARCHIVE_CATCH_UP: Final = 4_096
"""Events that a search indexes first, at most: a fraction of a second. The rest is left to a worker."""
ARCHIVE_HITS_MAX: Final = 100
"""Results of one search. Each message is read."""
ARCHIVE_CACHED_DOCUMENTS: Final = 100_000
"""Documents whose search data an open store caches: about 100 bytes each."""
ARCHIVE_AROUND_MAX: Final = 100
"""Messages before and after a hit that can be opened with it."""
EXCERPT_CHARS: Final = 200
"""Characters of the excerpt of a hit: the passage that fits best."""
EXCERPT_OCCURRENCES_MAX: Final = 500
"""Matches in one message that are considered for the excerpt, the first."""
FACT_QUERY_TERMS: Final = 32
"""Words of a query that facts are searched by, the first."""
MEMORY_PAGES_MAX: Final = 10_000
"""Pages of facts that are read from a memory engine over HTTP."""
MEMORY_CHARS_PER_TOKEN_MAX: Final = 16
"""Characters per token that are accepted in the profile of a memory engine over HTTP."""
MEMORY_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Messages sent to a memory engine in one request, unless a single message is larger."""
MEMORY_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest answer that is read from a memory engine over HTTP."""
MEMORY_TEXT_CHARS_MAX: Final = 4_000
"""Characters accepted of one text of a memory engine over HTTP."""
MEMORY_UPLOADS_MAX: Final = 8
"""Conversations that a memory server receives at once; the oldest upload is ended for a further one."""
EMBED_PIECES_MAX: Final = 128
"""Word pieces of a text that are embedded: the length that the model was trained on."""
EMBED_BATCH_PIECES: Final = 2_048
"""Word pieces that go through the model together, about 40 messages. More are no faster."""
EMBED_PASSAGE_CHARS: Final = 500
"""Size of the passages into which a long message is split for embedding: about what the model takes."""
EMBED_PASSAGES_MAX: Final = 8
"""Passages of one message that are embedded, the first."""
EMBED_EVENTS: Final = 128
"""Events of the log in one step of embedding: some seconds of work."""
EMBED_TEXTS: Final = 16
"""Texts embedded between two renewals of the lease: well under a second."""
VECTOR_BLOCK: Final = 256
"""Vectors in one row of the index store, 100 KB. Each step rewrites the last row."""
VECTOR_CACHE_BYTES: Final = 64 * 1024 * 1024
"""Vectors cached for searches, over all users: 40,000 of them, or the last user's."""
VECTOR_BACKGROUND: Final = 1_024
"""Messages of a user that define what is common in that user's messages."""
MODEL_WINDOW_TOKENS: Final = 32_768
"""Tokens of question and answer together, unless the model adapter is given another number."""
MODEL_TIMEOUT_S: Final = 60.0
"""How long one request to a model may take, from the first byte sent to the last byte read."""
MODEL_RETRIES: Final = 3
"""Retries after a model could not be reached. Each can take a minute."""
MODEL_RETRY_PAUSE_S: Final = 0.5
"""The first pause between two tries; the next ones double."""
MODEL_RETRY_PAUSE_S_MAX: Final = 8.0
"""The longest pause between two tries, unless the endpoint asks for another."""
MODEL_RETRY_AFTER_S_MAX: Final = 60.0
"""The longest pause that an endpoint may ask for. Beyond it the error is raised to the caller."""
MODEL_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes read of an answer. A summary or facts need a thousandth of it."""
MODEL_FORMAT_TOKENS: Final = 32
"""Tokens that a chat format adds to one question and its answer."""
MODEL_CALLS_MAX: Final = 256
"""Requests for one summary, or for the facts of one chunk. A longer text needs a model with a larger window."""
MODEL_OVERLAP_CHARS: Final = 200
"""Overlap of the pieces of a message larger than a window: a shorter passage is whole in one of them."""
SUMMARY_TOKENS: Final = 1_000
"""Default length of a summary that a model writes."""
SUMMARY_PREFIX_CHARS_MAX: Final = 200
"""The first words of a summary. They are in every window."""
FACTS_ANSWER_MAX: Final = 200
"""Facts accepted in one answer of a model."""
BOOTSTRAP_TOKENS: Final = 500
"""Default tokens of a new session's system prompt for the profile of its user, with the fence."""
BOOTSTRAP_TIMEOUT_S: Final = 1.0
"""How long creating a session waits for the profile of its user."""
BOOTSTRAP_REQUESTS_MAX: Final = 8
"""Sessions that may ask a memory engine at once, each in a thread. Others begin without."""
BOOTSTRAP_FAILURES_MAX: Final = 3
"""Failures in a row after which new sessions begin without asking the memory engine for a while."""
BOOTSTRAP_COOLDOWN_S: Final = 30.0
"""How long new sessions then begin without a profile."""
TASK_STEP_S_MAX: Final = 900.0
"""How long one step of background work keeps its lease without renewal."""
EXPIRE_EVERY_S: Final = 60.0
"""How often a worker looks for sessions and frames past their time limit."""
RETAIN_EVERY_S: Final = 3_600.0
"""How often a worker looks for sessions past their retention."""
FUSION_RANK_OFFSET: Final = 60
"""Added to every rank when result lists are merged, so that no first place outweighs all others."""
MIGRATE_ROUNDS_MAX: Final = 8
"""How often a copy catches up with its source before it ends behind it, and says so."""
