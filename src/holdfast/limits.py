"""Every bound of Holdfast, with its reason. Enforced where data enters; nothing here is tuning."""

from __future__ import annotations

from typing import Final

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""One message, as stored. Room for inline media; a larger one stalls every other writer's commit."""

BLOB_BYTES_MIN: Final = 32 * 1024
"""A text of a message that is larger is a blob, kept once. Its rows take half a kilobyte more, which is
less than 2 % from here on; ordinary messages stay one row, read by one query."""

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
"""Characters that a token estimate looks at. Of longer text it takes slices: an append must not wait for it."""

COUNT_CACHED_CHARS_MIN: Final = 256
"""Shorter text is counted anew: that takes no longer than looking it up."""

COUNT_CACHED_CHARS_MAX: Final = 16 * 1024
"""Longer text is counted anew: the cache would hold on to too much of it."""

COUNT_CACHE_ENTRIES: Final = 512
"""Texts whose counts one process remembers, over all counters: at most 8 MiB of ASCII, 32 of anything."""

MEDIA_HEADER_CHARS: Final = 256 * 1024
"""Base64 text that is decoded to find an image's size. Camera pictures carry a preview before it."""

IMAGE_SIDE_MAX: Final = 65_535
"""Width or height that is believed of an image. Formats end there; a larger one is a forged header."""

IMAGE_CROPS_MAX: Final = 16
"""Crops of one image that Gemini is taken to make at most. It publishes no bound."""

FILE_PAGES_ASSUMED: Final = 100
"""Pages that a file is taken to have at most, where it can't be seen from here or does not tell."""

FILE_PAGE_BYTES_MIN: Final = 2_000
"""Bytes that a page takes at least, where a file does not tell its pages."""

MEDIA_BYTES_PER_SECOND_MIN: Final = 2_000
"""Bytes a second (16 kbit/s) that a recording takes at least, where it does not tell its length."""

MEDIA_SECONDS_ASSUMED: Final = 600.0
"""Length of a recording that can't be seen from here."""

TOKENS_MAX: Final = 2**53
"""A policy's budget, or what a provider charged. Parts of it are taken, and up to here floats are exact."""

CALIBRATION_FACTOR_MAX: Final = 4.0
"""How far reported usage may correct a counter, up or (by its inverse) down. Beyond it something else is wrong."""

CALIBRATION_MEMORY: Final = 32
"""Observations that weigh in a calibration; older ones fade, since models change under their names."""

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

ANTHROPIC_TOOL_NAME_MAX: Final = 128
"""A tool's name that came from Anthropic and goes back there, in characters."""

TOOL_NAME_MAX: Final = 64
"""A tool's name going out to any provider, in characters: the smallest bound among them."""

LIGHT_CHARS: Final = 2_000
"""What light compaction leaves of one text: its head and tail."""

ABBREVIATION_CHARS: Final = 60
"""A text is not shortened to save less than the words that say so."""

NEWEST_MESSAGES: Final = 10
"""Messages that moderate compaction leaves out of its summary."""

SUMMARY_SHARE: Final = 0.15
"""The part of a budget that a summary may take."""

SUMMARY_SHARE_MAX: Final = 0.5
"""The part of a budget that a summary may take which somebody else wrote."""

SUMMARY_LEAVES: Final = 0.6
"""The part of a limit that the newest rounds may take beside a summary of what came before them."""

SUMMARY_CHARS_MAX: Final = 8_000
"""The longest summary that is made without a model."""

SUMMARY_BYTES_MAX: Final = 64 * 1024
"""A summary that somebody else wrote. It is part of the session's state, which is kept in memory."""

CACHED_TAILS: Final = 256
"""Sessions whose newest messages one engine keeps in memory for windows."""

TAIL_MESSAGES_MAX: Final = 4_000
"""Newest messages kept for one session; a window that reaches further back reads them again."""

RECORDED_PAGE: Final = 20
"""Recorded windows on a page unless another number is asked for. Each is read by itself."""

WINDOW_STEP: Final = 0.32
"""By which part of its budget the beginning of a stable window moves on when the window is full."""

FRAME_ID_BYTES_MAX: Final = 200
"""A frame's id that a caller chooses. The ids of its children begin with it, and are ids too."""

FRAME_TEXT_BYTES_MAX: Final = 16 * 1024
"""A frame's goal, or the summary of its result: they are in a row that changes with the frame."""

FRAME_JSON_BYTES_MAX: Final = 256 * 1024
"""A frame's inputs, or what a suspension asks about. They are part of the tree's state, kept in memory."""

FRAME_HANDLES_MAX: Final = 100_000
"""Handles of one frame. All are in memory while the frame is open."""

FRAME_RESULTS_MAX: Final = 10_000
"""Results of one frame. They are part of the tree's state."""

FRAMES_CLOSED_KEPT: Final = 32
"""Frames that a tree keeps after they closed, if they are small, before they are written in rows of their own."""

FRAMES_OPEN_MAX: Final = 1_000
"""Open frames of one tree. Each step of the tree looks at them."""

HANDLE_TOKENS: Final = 100
"""What a handle is taken to have that nobody has counted."""

PACK_TOKENS_MIN: Final = 500
"""The smallest budget that a pack is assembled for."""

BRIEF_TOKENS: Final = 500
"""The part of a pack's budget that is kept for its brief context."""

BREADCRUMB_TOKENS: Final = 40
"""What a pack sets aside for each frame between the root and its own."""

PACK_OVERHEAD: Final = 50
"""What a pack sets aside for what holds its pieces together."""

SUSPENSION_S: Final = 86_400.0
"""How long a suspension can be resumed unless another time is given."""

SUSPENSION_S_MAX: Final = 10 * 366 * 86_400.0
"""How long a suspension may wait at most, unless it waits without end: moments stay within a calendar."""

FRAME_TIMEOUT_MS_MAX: Final = 10 * 366 * 86_400_000
"""A frame's time limit, unless it has none: moments stay within a calendar."""

CACHED_TREES: Final = 1_000
"""Frame trees kept in memory by one engine."""

FAILURES_KEPT: Final = 100
"""Failed children that a frame remembers until somebody has dealt with them, the newest."""

NOTE_BYTES_MAX: Final = 64 * 1024
"""A note's value. Notes change in place, and each change writes the whole of one under the turn."""

NOTE_NAME_BYTES_MAX: Final = 1_024
"""A note's name: room for an id and what it is about. It is an index entry."""

LEASE_S: Final = 30.0
"""How long a worker that is not heard of keeps its work before another takes it over."""

WORKER_LOOK_S: Final = 5.0
"""How often a worker looks for work that no event announces: retries, and sessions whose time is up."""

WORKER_PAUSE_S: Final = 0.1
"""How long a worker lets news gather before it goes to work again."""

BACKOFF_S: Final = 1.0
"""How long work that has failed once is left alone; twice as long after each further failure."""

BACKOFF_S_MAX: Final = 3_600.0
"""How long work that keeps failing is left alone at most."""

OFFLOAD_TRIES_MAX: Final = 24
"""Times a history is offered to a memory engine that fails before somebody has to look: about half a day."""

BOOTSTRAP_TOKENS: Final = 500
"""Of a new session's system prompt may be what is known of its user, fence included."""

BOOTSTRAP_TIMEOUT_S: Final = 1.0
"""How long a new session waits for what is known of its user. A person is waiting too."""

BOOTSTRAP_ASKING_MAX: Final = 8
"""Sessions that may ask a memory engine at the same time. Each takes a thread; the others begin without."""

BOOTSTRAP_FAILURES_MAX: Final = 3
"""Times in a row that a memory engine may fail or be late before new sessions begin without asking it."""

BOOTSTRAP_REST_S: Final = 30.0
"""For how long they do."""

STEP_S_MAX: Final = 900.0
"""How long one step of background work keeps its lease without a sign of life: a model may take its time."""

EXPIRE_EVERY_S: Final = 60.0
"""How often a worker looks for sessions and frames whose time is up."""

RECALL_MAX: Final = 100
"""Things that one search of memory returns at most."""

FUSION_RANK: Final = 60
"""What is added to every rank where two lists are made one, so that no first place outweighs all others."""
