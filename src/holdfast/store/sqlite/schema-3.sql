-- From version 2 of a store to version 3: streams that go on from a version of a stream.

-- A stretch of a stream, from its version `first` on, and what comes before it: version `version` of
-- the stream `source`, or of the stream itself if it was rewound. `key` is that of its first event;
-- claims that are made in it have this key for their stream. The first stretch of a stream that was
-- not forked has no row, and its claims have the stream's key.
CREATE TABLE bases (
    key     INTEGER PRIMARY KEY,
    stream  INTEGER NOT NULL,
    first   INTEGER NOT NULL,
    source  INTEGER NOT NULL,
    version INTEGER NOT NULL,
    mark    BLOB NOT NULL,
    UNIQUE (stream, first)
);
