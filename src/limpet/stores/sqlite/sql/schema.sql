-- Version 1 of a Limpet store; later versions are built on it by `schema-2.sql` and on. Never changed.
-- `docs/internals/format.md` explains every table.
-- A tenant's number fills the upper bits of its positions and stream keys, so that one integer
-- primary key orders each tenant's log by itself: key = tenant << 40 | number within the tenant.
-- `mark` is a checksum over the other columns of a row that no digest covers.

CREATE TABLE store (
    name  TEXT NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE tenants (
    number INTEGER PRIMARY KEY,
    name   TEXT NOT NULL UNIQUE,
    mark   BLOB NOT NULL
);

-- A stream's number is the position of its first event.
CREATE TABLE streams (
    key    INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    name   TEXT NOT NULL,
    mark   BLOB NOT NULL,
    UNIQUE (tenant, name)
);

CREATE TABLE events (
    key     INTEGER PRIMARY KEY,
    stream  INTEGER NOT NULL,
    version INTEGER NOT NULL,
    header  BLOB NOT NULL,
    payload BLOB,
    salt    BLOB,
    digest  BLOB NOT NULL,
    link    BLOB NOT NULL
);
CREATE UNIQUE INDEX events_of_stream ON events (stream, version);

-- By claim first: ids that sort by time then meet in one page, whichever streams they belong to.
CREATE TABLE claims (
    claim   TEXT NOT NULL,
    stream  INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (claim, stream)
) WITHOUT ROWID;

CREATE TABLE keys (
    tenant       INTEGER NOT NULL,
    key          TEXT NOT NULL,
    command_hash BLOB NOT NULL,
    first        INTEGER NOT NULL,
    last         INTEGER NOT NULL,
    time_us      INTEGER NOT NULL,
    mark         BLOB NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX keys_by_time ON keys (tenant, time_us);

-- `moment` is time_us >> 20, about a second: a row that changes many times within one keeps its
-- place in every index. Rows of one moment are sorted by time when they are read.
CREATE TABLE projections (
    tenant   INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    id       TEXT NOT NULL,
    owner    TEXT NOT NULL,
    status   TEXT NOT NULL,
    moment   INTEGER NOT NULL,
    time_us  INTEGER NOT NULL,
    lookup   TEXT NOT NULL,
    terms    TEXT NOT NULL,
    document BLOB NOT NULL,
    mark     BLOB NOT NULL,
    PRIMARY KEY (tenant, kind, id)
) WITHOUT ROWID;
CREATE INDEX projections_by_owner  ON projections (tenant, kind, owner, moment);
CREATE INDEX projections_by_time   ON projections (tenant, kind, moment, status);
CREATE INDEX projections_by_lookup ON projections (tenant, kind, lookup, moment) WHERE lookup <> '';

CREATE TABLE projection_terms (
    tenant INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    term   TEXT NOT NULL,
    id     TEXT NOT NULL,
    PRIMARY KEY (tenant, kind, term, id)
) WITHOUT ROWID;

CREATE TABLE snapshots (
    stream   INTEGER PRIMARY KEY,
    version  INTEGER NOT NULL,
    fold     INTEGER NOT NULL,
    state    BLOB NOT NULL,
    mark     BLOB NOT NULL
);

-- For people with a SQLite shell. Read-only by nature; Limpet itself never uses them.
CREATE VIEW sessions AS
SELECT t.name AS tenant, p.id, nullif(p.owner, '') AS user_id, p.status,
       json_extract(CAST(p.document AS TEXT), '$.title') AS title,
       coalesce(json_extract(CAST(p.document AS TEXT), '$.message_count'), 0) AS message_count,
       strftime('%Y-%m-%dT%H:%M:%fZ', p.time_us / 1e6, 'unixepoch') AS last_active
FROM projections AS p JOIN tenants AS t ON t.number = p.tenant
WHERE p.kind = 'session';

CREATE VIEW messages AS
SELECT t.name AS tenant, substr(s.name, 9) AS session_id, e.version,
       json_extract(CAST(e.payload AS TEXT), '$.id') AS id,
       coalesce(json_extract(CAST(e.payload AS TEXT), '$.role'),
                json_extract(CAST(e.payload AS TEXT), '$.openai.role'),
                json_extract(CAST(e.payload AS TEXT), '$.anthropic.role')) AS role,
       coalesce(json_extract(CAST(e.payload AS TEXT), '$.content'),
                json_extract(CAST(e.payload AS TEXT), '$.openai.content'),
                json_extract(CAST(e.payload AS TEXT), '$.anthropic.content')) AS content,
       CAST(e.payload AS TEXT) AS json
FROM events AS e JOIN streams AS s ON s.key = e.stream JOIN tenants AS t ON t.number = s.tenant
WHERE json_extract(CAST(e.header AS TEXT), '$[1]') = 'session.message_added' AND e.payload IS NOT NULL;
