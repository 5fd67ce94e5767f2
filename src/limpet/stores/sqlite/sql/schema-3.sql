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

-- Every frame that was ever pushed, as its log says, with how it stands: open, suspended, or how it ended. What
-- it used is NULL as long as that is known in the state of its tree only: while it is open, and shortly after.
CREATE VIEW frames AS
WITH pushed AS (
    SELECT t.number, t.name AS tenant, CAST(e.payload AS TEXT) AS json,
           json_extract(CAST(e.header AS TEXT), '$[3]') AS time_us, substr(s.name, 8) AS root_id
    FROM events AS e JOIN streams AS s ON s.key = e.stream JOIN tenants AS t ON t.number = s.tenant
    WHERE json_extract(CAST(e.header AS TEXT), '$[1]') = 'frame.pushed' AND e.payload IS NOT NULL
), named AS (
    SELECT *, json_extract(json, '$.frame_id') AS frame_id FROM pushed
), popped AS (
    SELECT s.tenant AS number, json_extract(CAST(e.payload AS TEXT), '$.frame_id') AS frame_id,
           json_extract(CAST(e.payload AS TEXT), '$.status') AS status,
           json_extract(CAST(e.header AS TEXT), '$[3]') AS time_us
    FROM events AS e JOIN streams AS s ON s.key = e.stream
    WHERE json_extract(CAST(e.header AS TEXT), '$[1]') = 'frame.popped' AND e.payload IS NOT NULL
)
SELECT n.tenant, n.frame_id, n.root_id, json_extract(n.json, '$.parent_frame_id') AS parent_frame_id,
       json_extract(n.json, '$.scope.actor_id') AS actor_id,
       json_extract(n.json, '$.scope.session_id') AS session_id,
       json_extract(n.json, '$.scope.thread_id') AS thread_id,
       json_extract(n.json, '$.goal') AS goal, json_extract(n.json, '$.budget.total') AS total,
       coalesce(c.status,
                CASE WHEN EXISTS (SELECT 1 FROM suspended_frames AS f
                                  WHERE f.tenant = n.tenant AND f.frame_id = n.frame_id)
                     THEN 'suspended' ELSE 'open' END) AS status,
       CASE WHEN p.status <> 'open'
            THEN coalesce(json_extract(CAST(p.document AS TEXT), '$.budget.used'), 0) END AS used,
       strftime('%Y-%m-%dT%H:%M:%fZ', n.time_us / 1e6, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', c.time_us / 1e6, 'unixepoch') AS completed_at
FROM named AS n
LEFT JOIN popped AS c ON c.number = n.number AND c.frame_id = n.frame_id
LEFT JOIN projections AS p ON p.tenant = n.number AND p.kind = 'frame' AND p.id = n.frame_id;

-- Frames that stand still, and whether they can still be resumed: `waiting`, or `expired` or `revoked`. The right to
-- resume one is nowhere in the store, only its hash in the log.
CREATE VIEW suspended_frames AS
WITH every AS (
    SELECT p.tenant AS number, t.name AS tenant, p.id, p.owner, p.status, p.time_us,
           CAST(p.document AS TEXT) AS json,
           json_extract(CAST(p.document AS TEXT), '$.frame_id') AS frame_id,
           row_number() OVER (PARTITION BY p.tenant, json_extract(CAST(p.document AS TEXT), '$.frame_id')
                              ORDER BY p.time_us DESC, p.id DESC) AS back
    FROM projections AS p JOIN tenants AS t ON t.number = p.tenant
    WHERE p.kind = 'suspension'
)
SELECT tenant, id AS suspension_id, frame_id, owner AS actor_id, status,
       json_extract(json, '$.reason') AS suspension_reason, json_extract(json, '$.purpose') AS purpose,
       json_extract(json, '$.payload') AS payload,
       strftime('%Y-%m-%dT%H:%M:%fZ', time_us / 1e6, 'unixepoch') AS suspended_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', json_extract(json, '$.expires_us') / 1e6, 'unixepoch') AS expires_at
FROM every WHERE back = 1 AND status IN ('waiting', 'expired', 'revoked');
