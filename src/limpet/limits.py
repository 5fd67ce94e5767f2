"""Every bound of Limpet, with its reason. Enforced where data enters; nothing here is tuning."""

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
SCRUB_WAIT_S: Final = 10.0
"""How long an erasure waits for readers before it leaves the emptying of the log to later. Writers wait meanwhile."""
SCRUB_REPLICA_WAIT_S: Final = 30.0
"""How long an erasure waits for replicas that keep what was erased: they tell every 10 s by default what they need."""
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
SEGMENT_BYTES: Final = 4 * 1024 * 1024
"""A segment of a file store's journal that is larger gets no further line: what a program that shows differences,
or a rewriting after an erasure, has to hold at a time."""
JOURNAL_ROOM_BYTES: Final = 64 * 1024
"""Blanks that a file store's journal ends with while it is in use: lines are written over them, which is quicker than
to make the file longer each time. Whoever closes the store takes them away."""
BLOB_INLINE_BYTES: Final = 8 * 1024
"""A blob of a file store that is larger has a file of its own; smaller ones stand in the journal's line."""
CATCH_UP_COMMITS: Final = 256
"""Commits of a journal that are brought into its index in one transaction."""
SNAPSHOT_EVERY: Final = 128
"""Events of a stream between two snapshots: a cold open folds at most this many."""
IDEMPOTENCY_KEEP_S: Final = 7 * 86_400
"""How long a caller's idempotency key is remembered."""
RETENTION_DAYS_MAX: Final = 1_000_000
"""For how long ended sessions can be kept before they go: longer than any clock reaches is for ever."""

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

SERVER_CONNECTIONS: Final = 8
"""Connections to a server that one process keeps at most; ?connections= in a URL says otherwise."""

SERVER_CONNECT_S: Final = 10
"""How long a server may take to let a connection in."""

SERVER_ANSWER_S: Final = 30.0
"""How long a server may take for one answer before it counts as slow; ?timeout_s= in a URL says otherwise."""

REDIS_REWRITE_S: Final = 300.0
"""How long an erasure waits until a server has rewritten its files, before it leaves that to later."""

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
EXPORT_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A line of an exported file: the largest message, or a recorded window with much in it. One is read at a time."""
IMPORT_FILE_BYTES_MAX: Final = 512 * 1024 * 1024
"""A file of another program that holds one JSON value, or one chat with a message a line: it is read whole."""
IMPORT_STEP_EVENTS: Final = 1_000
"""Events of an import that are committed together: others wait as long. A session with more is whole only with its last."""
IMPORT_STEP_BYTES: Final = 8 * 1024 * 1024
"""Bytes of an import that are committed together, unless one message has more."""
IMPORT_AHEAD_S: Final = 86_400
"""How far the times of an imported file may be ahead of the clock here: clocks differ, and zones are mistaken."""
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
PURGE_SESSIONS: Final = 64
"""Deleted sessions that a worker erases in one step: others wait as long."""
SCRUB_SESSIONS: Final = 4_096
"""Outlived sessions that are erased before files are scrubbed of them all, a multiple of PURGE_SESSIONS: they are listed in one row."""
WORKER_SLICE_S: Final = 0.1
"""How long a worker waits without a look at whether it is to stop."""
WORKER_LAST_S: Final = 4.0
"""How long the worker of a store that is closed goes on with what is due: the index, and memory of what ended."""
WORKER_STOP_S: Final = 5.0
"""How long closing waits for its worker in all; what is under way then is taken up again by whoever comes next."""
IMPORT_NOTES_MAX: Final = 1_000
"""Notes, and things left out, that the report of an import keeps of each; what is beyond is counted."""
CHAIN_SESSIONS_MAX: Final = 100_000
"""Sessions of one conversation that are followed from one to the next. A longer chain is a defect, not a conversation."""
TERM_CHARS_MAX: Final = 512
"""A key of a session's metadata with its value, as JSON, that listings filter by: it is an index entry."""
HANDLE_STEPS_MAX: Final = 8
"""Handles that are followed from one to the next: they may point at one another in a circle."""
SUMMARISED_HANDLES_MAX: Final = 256
"""Handles whose content goes into a summary; those that are older still are only named in it."""
SUMMARY_MARKS_MAX: Final = 120
"""Marks that a summary is asked about: a page of text can't have all that thousands of messages said."""
SUMMARY_SCAN_CHARS_MAX: Final = 20_000
"""Of one message, how much is looked through for marks: a huge output must not decide over what people said."""
FACT_CHARS_MAX: Final = 300
"""The text of one fact. A longer sentence is a story, and is found in the archive."""
FACT_ABOUT_CHARS_MAX: Final = 80
"""What a fact is about, in characters: it is part of a key."""
FACT_SCAN_CHARS_MAX: Final = 8_000
"""What is looked at of one message for facts. Who pastes a document does not speak of themself in it."""
FACTS_PER_MESSAGE_MAX: Final = 16
"""Facts taken from one message."""
FACT_SOURCES_MAX: Final = 16
"""Sources kept of one fact, the newest. A fact that is said every day needs no more."""
SLOT_SOURCES_MAX: Final = 256
"""Sources kept of all that was ever said about one thing, the newest: they are one row."""
PROFILE_FACTS_KEPT: Final = 512
"""Facts of a user that stand ready for a profile, the most useful. They are one row, read for each profile."""
PROFILE_FACTS_MAX: Final = 256
"""Facts in one profile. The others kept are there to take the place of those that cease to be true."""
MEMORY_CHUNK: Final = 256
"""Messages that long-term memory takes in one step: bounds memory, and what is done again after a crash."""
MEMORY_ROWS: Final = 1_000
"""Rows that the built-in memory reads at a time; of a word in the facts of a user it looks at so many."""
RECALLED_MAX: Final = 100
"""Things that one search of long-term memory returns at most."""
OFFLOAD_TRIES_MAX: Final = 24
"""Times a history is offered to a memory engine that fails before somebody has to look: about half a day."""
STAND_IN_TRIES_MAX: Final = 100
"""Times a model is asked about a history in which rules stand in for it, some days at least, before that is left so."""
ARCHIVE_WORD_CHARS: Final = 64
"""The longest word or identifier that the archive finds a message by. What is longer is hardly typed."""
ARCHIVE_TERMS_MAX: Final = 4_000
"""Terms that one message is found by: one with a whole book in it must not fill its user's index."""
ARCHIVE_CHARS_MAX: Final = 64 * 1024
"""Of what one message says, how much the archive reads: its beginning, and its end."""
ARCHIVE_TOOL_CHARS_MAX: Final = 8 * 1024
"""Of what one tool gave, or was given, how much the archive reads. Outputs run long, and say little at length."""
ARCHIVE_QUERY_CHARS_MAX: Final = 8 * 1024
"""A query to the archive. A whole message can be one."""
ARCHIVE_QUERY_TERMS: Final = 48
"""Terms of a query that count: the longest, which are the rarest as a rule. Each is looked for in every segment."""
ARCHIVE_BATCH: Final = 1_024
"""Events that are taken into the archive in one step: bounds memory, and what is done again after a kill."""
ARCHIVE_CATCH_UP: Final = 4_096
"""Events that a search takes into the archive first, at most: a fraction of a second. More is a worker's."""
ARCHIVE_HITS_MAX: Final = 100
"""Messages that one search gives back. Each is read."""
ARCHIVE_KEPT: Final = 100_000
"""Documents of which an open store keeps in memory what every search needs: about 100 bytes of each."""
ARCHIVE_AROUND_MAX: Final = 100
"""Messages before and after one that are opened with it."""
EXCERPT_CHARS: Final = 200
"""What a hit shows of its message: the passage that fits best."""
EXCERPT_OCCURRENCES_MAX: Final = 500
"""Places in one message, the first, among which the passage is looked for that fits best."""
FACT_QUERY_TERMS: Final = 32
"""Words of a query, the first, that facts are looked for by."""
MEMORY_PAGES_MAX: Final = 10_000
"""Pages of facts that a memory engine over HTTP may give before it is taken to have no end."""
MEMORY_CHARS_PER_TOKEN_MAX: Final = 16
"""Characters of a profile for each token that such an engine says it has: more is not believed."""
MEMORY_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Messages sent to a memory engine in one request, unless one message alone has more."""
MEMORY_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest answer that is read from a memory engine over HTTP."""
MEMORY_TEXT_CHARS_MAX: Final = 4_000
"""What is taken of one text that a memory engine over HTTP gives back."""
MEMORY_UPLOADS_MAX: Final = 8
"""Conversations that a memory server takes at the same time; the one that has waited longest is broken off."""
EMBED_PIECES_MAX: Final = 128
"""Word pieces of a text that are embedded: what the model was trained on. Twice as many find no more."""
EMBED_BATCH_PIECES: Final = 2_048
"""Word pieces that go through the model together, 40 messages or so: more are no quicker."""
EMBED_PASSAGE_CHARS: Final = 500
"""What a long message is parted into to be embedded: about as much as the model takes."""
EMBED_PASSAGES_MAX: Final = 8
"""Passages of one message that are embedded, the first: a pasted book must not bury what people said."""
EMBED_EVENTS: Final = 128
"""Events of the log that one step of embedding goes through: some seconds of work at most."""
EMBED_TEXTS: Final = 16
"""Texts that are embedded between two signs of life: well under a second."""
VECTOR_BLOCK: Final = 256
"""Vectors in one row of the shelf, 100 KB: the last row is written anew with every step."""
VECTOR_CACHE_BYTES: Final = 64 * 1024 * 1024
"""Vectors kept in memory for searching, over all users: 40,000 of them, or the user asked last."""
VECTOR_BACKGROUND: Final = 1_024
"""Messages of a user by which it is judged what is said all the time."""
MODEL_WINDOW: Final = 32_768
"""Tokens that question and answer of a model may have together, unless its adapter is told. Most take more."""
MODEL_TIMEOUT_S: Final = 60.0
"""How long one try of asking a model may take, from the first byte sent to the last one read."""
MODEL_RETRIES: Final = 3
"""Further tries after a model could not be reached. Each is a minute at worst that somebody waits."""
MODEL_PAUSE_S: Final = 0.5
"""The first pause between two tries; the next ones double."""
MODEL_PAUSE_S_MAX: Final = 8.0
"""The longest pause between two tries that nobody asked for."""
MODEL_RETRY_AFTER_S_MAX: Final = 60.0
"""The longest pause that an endpoint may ask for. With a longer one the caller decides what to do meanwhile."""
MODEL_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""What is read of an answer. A model that writes a summary or facts needs a thousandth of it."""
MODEL_FORMAT_TOKENS: Final = 32
"""What a chat format puts around one question and its answer."""
MODEL_CALLS_MAX: Final = 256
"""Questions for one summary, or for the facts of one chunk. A longer text takes a model with a larger window."""
MODEL_OVERLAP_CHARS: Final = 200
"""By how much the pieces of a message overlap that is larger than a window: what is shorter is whole in one of them."""
SUMMARY_TOKENS: Final = 1_000
"""How long a summary may be that a model writes, unless another number is asked for."""
SUMMARY_PREFIX_CHARS_MAX: Final = 200
"""The words that a summary begins with. They go into every window."""
FACTS_ANSWER_MAX: Final = 200
"""Facts in one answer of a model. More than that is not about what it was shown."""
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

RETAIN_EVERY_S: Final = 3_600.0
"""How often a worker looks for sessions that are kept no longer."""

FUSION_RANK: Final = 60
"""What is added to every rank where two lists are made one, so that no first place outweighs all others."""

MIGRATE_ROUNDS_MAX: Final = 8
"""How often a copy of a store follows what its source got meanwhile before it is left behind, and says so."""
