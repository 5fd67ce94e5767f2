-- The file beside a store that holds what is derived from its log: search index and memory.

-- name: shelf_schema
CREATE TABLE IF NOT EXISTS rows (
    book  TEXT NOT NULL,
    key   BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (book, key)
) WITHOUT ROWID;
-- name: get
SELECT key, value FROM rows WHERE book = ? AND key IN (SELECT unhex(value) FROM json_each(?));
-- name: get_one
SELECT value FROM rows WHERE book = ? AND key = ?;
-- name: scan
SELECT key, value FROM rows WHERE book = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?;
-- name: scan_back
SELECT key, value FROM rows WHERE book = ? AND key >= ? AND key < ? ORDER BY key DESC LIMIT ?;
-- name: lasts
SELECT (
    SELECT value FROM rows
    WHERE book = ?1 AND key >= unhex(span.value ->> 0) AND key < unhex(span.value ->> 1)
    ORDER BY key DESC LIMIT 1
) FROM json_each(?2) AS span ORDER BY span.key;
-- name: put
INSERT INTO rows (book, key, value) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value;
-- name: drop
DELETE FROM rows WHERE book = ? AND key >= ? AND key < ?;
-- name: create
BEGIN EXCLUSIVE;
-- name: begin
BEGIN IMMEDIATE;
-- name: commit
COMMIT;
-- name: rollback
ROLLBACK;
-- name: vacuum
VACUUM;
