-- Every statement the store runs after it is open, by name.

-- name: tenant_number
SELECT number FROM tenants WHERE name = ?;
-- name: add_tenant
INSERT INTO tenants (number, name, mark) VALUES (?, ?, ?);
-- name: tenants_max
SELECT max(number) FROM tenants;
-- name: tenants
SELECT number, name FROM tenants ORDER BY number;
-- name: stream_key
SELECT key FROM streams WHERE tenant = ? AND name = ?;
-- name: stream_name
SELECT name FROM streams WHERE key = ?;
-- name: add_stream
INSERT INTO streams (key, tenant, name, mark) VALUES (?, ?, ?, ?);
-- name: stream_version
SELECT version FROM events WHERE stream = ? ORDER BY version DESC LIMIT 1;
-- name: stream_extent
SELECT (SELECT version FROM events WHERE stream = ?1 ORDER BY version DESC LIMIT 1),
       EXISTS (SELECT 1 FROM bases WHERE stream = ?1);
-- name: stream_first
SELECT version FROM events WHERE stream = ? ORDER BY version LIMIT 1;
-- name: bases_of
SELECT mark, key, stream, first, source, version FROM bases WHERE stream = ? ORDER BY first;
-- name: add_base
INSERT INTO bases (key, stream, first, source, version, mark) VALUES (?, ?, ?, ?, ?, ?);
-- name: head
SELECT key, link FROM events WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1;
-- name: link_at
SELECT link FROM events WHERE key = ?;
-- name: link_of
SELECT link FROM events WHERE stream = ? AND version = ?;
-- name: add_event
INSERT INTO events (key, stream, version, header, payload, salt, digest, link) VALUES (?, ?, ?, ?, ?, ?, ?, ?);
-- name: read_stream
SELECT key, stream, version, header, payload, salt, digest, link FROM events
WHERE stream = ? AND version > ? AND version <= ? ORDER BY version LIMIT ?;
-- name: read_stream_back
SELECT key, stream, version, header, payload, salt, digest, link FROM events
WHERE stream = ? AND version > ? AND version <= ? ORDER BY version DESC LIMIT ?;
-- name: read_feed
SELECT key, stream, version, header, payload, salt, digest, link FROM events
WHERE key > ? AND key <= ? ORDER BY key LIMIT ?;
-- name: blobs
SELECT hash, content FROM blobs WHERE tenant = ? AND hash IN (SELECT unhex(value) FROM json_each(?));
-- name: add_blob
INSERT INTO blobs (tenant, hash, content) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET content = excluded.content WHERE blobs.content <> excluded.content;
-- name: add_blob_use
INSERT INTO blob_uses (event, hash) VALUES (?, ?);
-- name: blobs_count
SELECT count(*) FROM blobs;
-- name: every_blob
SELECT hash, content FROM blobs;
-- name: lost_blobs
SELECT u.event, u.hash FROM blob_uses AS u LEFT JOIN blobs AS b ON b.tenant = u.event >> 40 AND b.hash = u.hash
WHERE b.hash IS NULL LIMIT 100;
-- name: strayed_uses
SELECT count(*) FROM blob_uses AS u LEFT JOIN events AS e ON e.key = u.event WHERE e.key IS NULL;
-- name: event_key
SELECT key FROM events WHERE stream = ? AND version = ?;
-- name: header_at
SELECT key, stream, version, header, payload, salt, digest, link FROM events WHERE stream = ? AND version = ?;
-- name: claim
SELECT version FROM claims WHERE stream = ? AND claim = ?;
-- name: claims_among
SELECT stream, version FROM claims WHERE claim = ? AND stream IN (SELECT value FROM json_each(?));
-- name: add_claim
INSERT INTO claims (stream, claim, version) VALUES (?, ?, ?);
-- name: key
SELECT command_hash, first, last FROM keys WHERE tenant = ? AND key = ?;
-- name: add_key
INSERT INTO keys (tenant, key, command_hash, first, last, time_us, mark) VALUES (?, ?, ?, ?, ?, ?, ?);
-- name: forget_keys
DELETE FROM keys WHERE tenant = ? AND time_us < ?;
-- name: projection
SELECT tenant, kind, id, owner, status, moment, time_us, lookup, terms, document, mark FROM projections
WHERE tenant = ? AND kind = ? AND id = ?;
-- name: put_projection
INSERT INTO projections (tenant, kind, id, owner, status, moment, time_us, lookup, terms, document, mark)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET owner = excluded.owner, status = excluded.status, moment = excluded.moment,
    time_us = excluded.time_us,
    lookup = excluded.lookup, terms = excluded.terms, document = excluded.document, mark = excluded.mark;
-- name: add_projection
INSERT INTO projections (tenant, kind, id, owner, status, moment, time_us, lookup, terms, document, mark)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;
-- name: reshape
UPDATE projections SET owner = ?, status = ?, moment = ?, time_us = ?, lookup = ?, document = ?, mark = ?
WHERE tenant = ? AND kind = ? AND id = ? AND terms = ?;
-- name: touch_projection
UPDATE projections SET time_us = ?, document = ?, mark = ? WHERE tenant = ? AND kind = ? AND id = ?
  AND owner = ? AND status = ? AND moment = ? AND lookup = ? AND terms = ?;
-- name: drop_projection
DELETE FROM projections WHERE tenant = ? AND kind = ? AND id = ?;
-- name: add_term
INSERT INTO projection_terms (tenant, kind, term, id) VALUES (?, ?, ?, ?);
-- name: drop_term
DELETE FROM projection_terms WHERE tenant = ? AND kind = ? AND term = ? AND id = ?;
-- name: query
SELECT tenant, kind, id, owner, status, moment, time_us, lookup, terms, document, mark FROM projections AS p
WHERE p.tenant = :tenant AND p.kind = :kind AND p.time_us >= :since AND p.time_us <= :until
  AND p.moment BETWEEN :since >> 20 AND min(:until, :after_time) >> 20
  AND (p.time_us, p.id) < (:after_time, :after_id)
-- name: query_owner
  AND p.owner = :owner
-- name: query_status
  AND p.status = :status
-- name: query_lookup
  AND p.lookup = :lookup AND p.lookup <> ''
-- name: query_no_lookup
  AND p.lookup = :lookup
-- name: query_terms
  AND p.id IN (SELECT id FROM projection_terms WHERE tenant = :tenant AND kind = :kind
               AND term IN (SELECT value FROM json_each(:terms))
               GROUP BY id HAVING count(*) = :terms_count)
-- name: query_page
ORDER BY p.moment DESC, p.time_us DESC, p.id DESC LIMIT :limit OFFSET :offset;
-- name: snapshot
SELECT s.version, s.fold, s.state, s.mark, e.link FROM snapshots AS s
JOIN events AS e ON e.stream = s.stream AND e.version = s.version WHERE s.stream = ?;
-- name: put_snapshot
INSERT INTO snapshots (stream, version, fold, state, mark) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version, fold = excluded.fold, state = excluded.state,
    mark = excluded.mark;
-- name: holes
SELECT stream, count(*), max(version) FROM events GROUP BY stream HAVING count(*) <> max(version) LIMIT 100;
-- name: holes_beside_bases
SELECT e.stream, count(*) + coalesce(b.first - 1, 0), max(e.version) FROM events AS e
LEFT JOIN bases AS b ON b.stream = e.stream AND b.source <> b.stream
GROUP BY e.stream HAVING count(*) + coalesce(b.first - 1, 0) <> max(e.version) LIMIT 100;
-- name: strayed_bases
SELECT count(*) FROM bases AS b
LEFT JOIN events AS e ON e.key = b.key AND e.stream = b.stream AND e.version = b.first
LEFT JOIN streams AS s ON s.key = b.source AND s.key >> 40 = b.stream >> 40
WHERE e.key IS NULL OR s.key IS NULL OR b.version >= b.first OR (b.source = b.stream) = (b.key = b.stream);
-- name: counts
SELECT kind, status, count(*) FROM projections GROUP BY kind, status;
-- name: store_id
SELECT value FROM store WHERE name = 'id';
-- name: marked_tenants
SELECT mark, number, name FROM tenants;
-- name: marked_streams
SELECT mark, key, tenant, name FROM streams;
-- name: marked_bases
SELECT mark, key, stream, first, source, version FROM bases;
-- name: marked_keys
SELECT mark, tenant, key, command_hash, first, last, time_us FROM keys;
-- name: streams_of
SELECT key, name FROM streams WHERE tenant = ? AND key > ? ORDER BY key LIMIT 500;
-- name: schema
SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name;
-- name: clear_derived
DELETE FROM claims; DELETE FROM projections; DELETE FROM projection_terms; DELETE FROM snapshots; DELETE FROM blob_uses;
-- name: integrity_of
SELECT integrity_check FROM pragma_integrity_check(?);
-- name: rebuilt
SELECT value FROM store WHERE name = 'rebuilt';
-- name: count_rebuild
INSERT INTO store (name, value) VALUES ('rebuilt', 1) ON CONFLICT DO UPDATE SET value = value + 1;
-- name: marked_projections
SELECT mark, tenant, kind, id, owner, status, moment, time_us, lookup, terms, document FROM projections;
-- name: note
SELECT name, version, value, mark FROM notes WHERE tenant = ? AND name = ?;
-- name: put_note
INSERT INTO notes (tenant, name, version, value, mark) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version, value = excluded.value, mark = excluded.mark;
-- name: drop_note
DELETE FROM notes WHERE tenant = ? AND name = ?;
-- name: notes
SELECT name, version, value, mark FROM notes
WHERE tenant = ? AND name >= ? AND name > ? ORDER BY name LIMIT ?;
-- name: marked_notes
SELECT mark, tenant, name, version, value FROM notes;
-- name: stand_ins
SELECT event, notice, cause, payload, mark FROM erased WHERE event IN (SELECT value FROM json_each(?));
-- name: every_erased
SELECT x.event, x.notice, x.cause, x.payload, x.mark, e.stream, e.digest, e.payload IS NULL FROM erased AS x
LEFT JOIN events AS e ON e.key = x.event ORDER BY x.notice, x.event;
-- name: event_at
SELECT key, stream, version, header, payload, salt, digest, link FROM events WHERE key = ?;
-- name: unexplained
SELECT e.key, e.version FROM events AS e LEFT JOIN erased AS x ON x.event = e.key
WHERE e.payload IS NULL AND x.event IS NULL LIMIT 100;
-- name: own_events
SELECT key, header, digest, payload IS NULL FROM events WHERE stream = ? ORDER BY key;
-- name: blank_event
UPDATE events SET payload = NULL, salt = NULL WHERE key = ?;
-- name: put_erased
INSERT INTO erased (event, notice, cause, payload, mark) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET cause = excluded.cause, payload = excluded.payload, mark = excluded.mark;
-- name: erased_row
SELECT notice FROM erased WHERE event = ?;
-- name: rename_stream
UPDATE streams SET name = ?, mark = ? WHERE key = ?;
-- name: stretches_of
SELECT key FROM bases WHERE stream = ?;
-- name: forks_of
SELECT s.name, b.version FROM bases AS b JOIN streams AS s ON s.key = b.stream
WHERE b.source = ? AND b.stream <> b.source ORDER BY b.key;
-- name: hashes_of
SELECT DISTINCT lower(hex(hash)) FROM blob_uses WHERE event IN (SELECT key FROM events WHERE stream = ?);
-- name: drop_claims
DELETE FROM claims WHERE stream IN (SELECT value FROM json_each(?));
-- name: drop_snapshot
DELETE FROM snapshots WHERE stream = ?;
-- name: drop_uses
DELETE FROM blob_uses WHERE event IN (SELECT key FROM events WHERE stream = ?);
-- name: drop_keys
DELETE FROM keys WHERE tenant = ?1
  AND EXISTS (SELECT 1 FROM erased WHERE event BETWEEN (?1 << 40) + first AND (?1 << 40) + last);
-- name: drop_blobs
DELETE FROM blobs WHERE tenant = ?1 AND hash IN (SELECT unhex(value) FROM json_each(?2))
  AND hash NOT IN (SELECT hash FROM blob_uses WHERE event BETWEEN ?1 << 40 AND (?1 << 40) + 1099511627775);
-- name: put_pending
INSERT INTO store (name, value) VALUES ('pending', ?)
ON CONFLICT DO UPDATE SET value = CAST(value || excluded.value AS BLOB);
-- name: set_pending
UPDATE store SET value = ? WHERE name = 'pending';
-- name: pending
SELECT value FROM store WHERE name = 'pending';
-- name: clear_pending
DELETE FROM store WHERE name = 'pending';
-- name: gone_events
SELECT x.event, x.cause, e.stream, e.link FROM erased AS x JOIN events AS e ON e.key = x.event
ORDER BY x.cause, e.stream, x.event;
-- name: put_listed
INSERT INTO store (name, value) VALUES ('listed', ?) ON CONFLICT DO UPDATE SET value = excluded.value;
-- name: listed
SELECT value FROM store WHERE name = 'listed';
-- name: copy
SELECT e.key, e.stream, e.version, e.header, e.payload, e.salt, e.digest, e.link,
       s.name, s.mark, s.tenant, b.mark, b.key, b.stream, b.first, b.source, b.version,
       x.mark, x.event, x.notice, x.cause, x.payload,
       (SELECT json_group_array(lower(hex(hash))) FROM blob_uses WHERE event = e.key)
FROM events AS e LEFT JOIN streams AS s ON s.key = e.stream LEFT JOIN bases AS b ON b.key = e.key
LEFT JOIN erased AS x ON x.event = e.key
WHERE e.key > ? AND e.key <= ? ORDER BY e.key LIMIT ?;
-- name: copy_keys
SELECT key, command_hash, first, last, time_us, mark FROM keys WHERE tenant = ? AND key > ? ORDER BY key LIMIT ?;
-- name: whole_key
SELECT key, command_hash, first, last, time_us, mark FROM keys WHERE tenant = ? AND key = ?;
-- name: known_blobs
SELECT lower(hex(hash)) FROM blobs WHERE tenant = ? AND hash IN (SELECT unhex(value) FROM json_each(?));
-- name: hashes_of_event
SELECT lower(hex(hash)) FROM blob_uses WHERE event = ?;
-- name: drop_uses_of_event
DELETE FROM blob_uses WHERE event = ?;
