-- What the file store asks of its index beyond what every SQLite store does, by name.

-- name: point
SELECT value FROM store WHERE name = 'journal';
-- name: put_point
INSERT INTO store (name, value) VALUES ('journal', ?) ON CONFLICT DO UPDATE SET value = excluded.value;
-- name: clear_truth
DELETE FROM tenants; DELETE FROM streams; DELETE FROM events; DELETE FROM keys; DELETE FROM blobs;
DELETE FROM bases; DELETE FROM notes; DELETE FROM erased; DELETE FROM store WHERE name = 'pending';
-- name: put_tenant
INSERT INTO tenants (number, name, mark) VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE SET name = excluded.name, mark = excluded.mark;
-- name: put_stream
INSERT INTO streams (key, tenant, name, mark) VALUES (?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET name = excluded.name, mark = excluded.mark;
-- name: put_event
INSERT INTO events (key, stream, version, header, payload, salt, digest, link) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET payload = excluded.payload, salt = excluded.salt;
-- name: put_base
INSERT INTO bases (key, stream, first, source, version, mark) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING;
-- name: put_key
INSERT INTO keys (tenant, key, command_hash, first, last, time_us, mark) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, key) DO UPDATE SET command_hash = excluded.command_hash, first = excluded.first,
    last = excluded.last, time_us = excluded.time_us, mark = excluded.mark;
-- name: drop_key
DELETE FROM keys WHERE tenant = ? AND key = ?;
-- name: drop_blob
DELETE FROM blobs WHERE tenant = ? AND hash = ?;
-- name: put_gone
INSERT INTO erased (event, notice, cause, payload, mark) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (event) DO UPDATE SET notice = excluded.notice, cause = excluded.cause, payload = excluded.payload,
    mark = excluded.mark;
-- name: put_todo
INSERT INTO store (name, value) VALUES ('pending', ?) ON CONFLICT DO UPDATE SET value = excluded.value;
-- name: key_row
SELECT 1 FROM keys WHERE tenant = ? AND key = ? AND first = ? AND last = ? AND time_us = ?;
-- name: blob_row
SELECT 1 FROM blobs WHERE tenant = ? AND hash = ?;
-- name: has_blob
SELECT 1 FROM blobs WHERE hash = ? LIMIT 1;
-- name: gone_row
SELECT notice, cause, payload FROM erased WHERE event = ?;
-- name: is_blank
SELECT payload IS NULL FROM events WHERE key = ?;
-- name: untouched
-- Whether a stream has that link at a version, and no event of it, or of what it goes on from, was erased.
WITH RECURSIVE line (key) AS (
    SELECT s.key FROM tenants AS t JOIN streams AS s ON s.tenant = t.number AND s.name = ?2
    JOIN events AS e ON e.stream = s.key AND e.version = ?3
    WHERE t.name = ?1 AND lower(hex(e.link)) = ?4
    UNION SELECT b.source FROM line AS l JOIN bases AS b ON b.stream = l.key
)
SELECT EXISTS (SELECT 1 FROM line) AND NOT EXISTS (
    SELECT 1 FROM line AS l CROSS JOIN events AS e ON e.stream = l.key CROSS JOIN erased AS x ON x.event = e.key
);
