-- Every statement that a store runs after it is open, by name. `tenant = %(tenant)s` is said in each, and row-level
-- security says it again.

-- name: tenant
SELECT set_config('limpet.tenant', %(tenant)s, true);
-- name: register
SELECT set_config('limpet.register', 'on', true);
-- name: tenants
SELECT tenant FROM heads WHERE position > 0;
-- name: eventless
SELECT tenant FROM heads WHERE position <= 0;
-- name: noting
SELECT tenant FROM heads WHERE noted > 0;
-- name: head
SELECT position, link, epoch FROM heads WHERE tenant = %(tenant)s;
-- name: stream_by_name
  AND s.name = %(name)s
-- name: stream_by_number
  AND s.number = %(number)s
-- name: stream
SELECT s.number, s.name, s.first,
       coalesce((SELECT e.version FROM events AS e WHERE e.tenant = %(tenant)s AND e.stream = s.number
                 ORDER BY e.version DESC LIMIT 1), s.first - 1) AS version,
       ARRAY(SELECT unnest(ARRAY[b.stretch, b.first, b.source, b.version]) FROM bases AS b
             WHERE b.tenant = %(tenant)s AND b.stream = s.number ORDER BY b.first) AS bases, s.mark
FROM streams AS s WHERE s.tenant = %(tenant)s
-- name: streams
  AND s.number > %(after)s ORDER BY s.number LIMIT %(limit)s
-- name: own
SELECT s.*, e.position, e.stream, e.version, e.header, e.payload, e.salt, e.digest, e.link, s.name, e.ordinal,
       e.notice, e.cause, e.stand_in
FROM ({stream}) AS s LEFT JOIN LATERAL (
    SELECT * FROM events AS o WHERE o.tenant = %(tenant)s AND o.stream = s.number
      AND o.version BETWEEN %(low)s AND %(high)s ORDER BY o.version {direction} LIMIT %(limit)s
) AS e ON true ORDER BY e.version
-- name: feed
-- The name is looked up for each: how many come is not known when this is planned, and all streams would be read.
SELECT e.position, e.stream, e.version, e.header, e.payload, e.salt, e.digest, e.link,
       (SELECT s.name FROM streams AS s WHERE s.tenant = %(tenant)s AND s.number = e.stream), e.ordinal,
       e.notice, e.cause, e.stand_in
FROM events AS e WHERE e.tenant = %(tenant)s AND e.position > %(after)s ORDER BY e.position LIMIT %(limit)s
-- name: version_at
SELECT version_at(%(tenant)s, %(name)s, %(position)s)
-- name: claims
SELECT stretch, claim, version FROM claims
WHERE tenant = %(tenant)s AND stretch = ANY (%(stretches)s) AND claim = ANY (%(claims)s)
-- name: claims_of
SELECT count(*) FROM claims WHERE tenant = %(tenant)s AND stretch = ANY (%(stretches)s)
-- name: forks
SELECT s.name, b.version FROM bases AS b JOIN streams AS s ON s.tenant = %(tenant)s AND s.number = b.stream
WHERE b.tenant = %(tenant)s AND b.source = %(number)s AND b.stream <> b.source ORDER BY b.stretch
-- name: key
SELECT key, command_hash, first, last, time_us FROM keys WHERE tenant = %(tenant)s AND key = %(key)s
-- name: keys
SELECT key, command_hash, first, last, time_us FROM keys
WHERE tenant = %(tenant)s AND key > %(after)s ORDER BY key LIMIT %(limit)s
-- name: keys_of
SELECT key FROM keys WHERE tenant = %(tenant)s
  AND (%(positions)s::bigint[])[width_bucket(last, %(positions)s::bigint[])] >= first
-- name: forget_keys
WITH gone AS (DELETE FROM keys WHERE tenant = %(tenant)s AND time_us < %(before)s RETURNING 1)
SELECT count(*) FROM gone
-- name: projection
SELECT kind, id, owner, status, time_us, lookup, terms, document, mark FROM projections
WHERE tenant = %(tenant)s AND kind = %(kind)s AND id = %(id)s
-- name: projections
SELECT kind, id, owner, status, time_us, lookup, terms, document, mark FROM projections
WHERE tenant = %(tenant)s AND (kind, id) > (%(kind)s, %(id)s) ORDER BY kind, id LIMIT %(limit)s
-- name: query
SELECT kind, id, owner, status, time_us, lookup, terms, document, mark FROM projections AS p
WHERE p.tenant = %(tenant)s AND p.kind = %(kind)s
-- name: query_since
  AND p.time_us >= %(since)s AND p.moment >= %(since)s >> 20
-- name: query_until
  AND p.time_us <= %(until)s AND p.moment <= %(until)s >> 20
-- name: query_after
  AND (p.time_us, p.id) < (%(after_time)s, %(after_id)s) AND p.moment <= %(after_time)s >> 20
-- name: query_owner
  AND p.owner = %(owner)s
-- name: query_status
  AND p.status = %(status)s
-- name: query_lookup
  AND p.lookup = %(lookup)s AND p.lookup <> ''
-- name: query_no_lookup
  AND p.lookup = %(lookup)s
-- name: query_terms
  AND p.id IN (SELECT t.id FROM terms AS t WHERE t.tenant = %(tenant)s AND t.kind = %(kind)s
               AND t.term = ANY (%(terms)s) GROUP BY t.id HAVING count(*) = cardinality(%(terms)s))
-- name: query_page
ORDER BY p.moment DESC, p.time_us DESC, p.id DESC LIMIT %(limit)s OFFSET %(offset)s
-- name: snapshot
SELECT n.version, n.fold, n.state, n.mark FROM snapshots AS n
JOIN streams AS s ON s.tenant = %(tenant)s AND s.number = n.stream
WHERE n.tenant = %(tenant)s AND s.name = %(name)s
-- name: blobs
SELECT hash, content FROM blobs WHERE tenant = %(tenant)s AND hash = ANY (%(hashes)s)
-- name: every_blob
SELECT hash, content FROM blobs WHERE tenant = %(tenant)s AND hash > %(after)s ORDER BY hash LIMIT %(limit)s
-- name: uses
SELECT u.position, u.hash FROM uses AS u WHERE u.tenant = %(tenant)s AND u.position > %(after)s
  AND u.position <= coalesce((SELECT l.position FROM uses AS l WHERE l.tenant = %(tenant)s
                              AND l.position > %(after)s ORDER BY l.position OFFSET %(limit)s LIMIT 1),
                             9223372036854775807)
ORDER BY u.position, u.hash
-- name: unused
SELECT b.hash FROM blobs AS b WHERE b.tenant = %(tenant)s AND b.hash = ANY (%(hashes)s) AND NOT EXISTS (
    SELECT 1 FROM uses AS u JOIN events AS e ON e.tenant = %(tenant)s AND e.position = u.position
    WHERE u.tenant = %(tenant)s AND u.hash = b.hash AND e.stream <> ALL (coalesce(%(but)s::bigint[], '{}'))
)
-- name: note
SELECT name, value, version, mark FROM notes WHERE tenant = %(tenant)s AND name = %(name)s
-- name: notes
SELECT name, value, version, mark FROM notes
WHERE tenant = %(tenant)s AND name >= %(prefix)s AND name > %(after)s
  AND substr(name, 1, length(%(prefix)s)) = %(prefix)s
ORDER BY name LIMIT %(limit)s
-- name: noted
SELECT coalesce((SELECT noted FROM heads WHERE tenant = %(tenant)s), 0)
-- name: put_note
SELECT put_note(%(tenant)s, %(name)s, %(expected)s, %(noted)s, %(value)s, %(mark)s)
-- name: hold
SELECT at_position FROM hold(%(tenant)s, %(position)s, %(link)s, %(epoch)s)
-- name: clear_claims
DELETE FROM claims WHERE tenant = %(tenant)s
-- name: clear_uses
DELETE FROM uses WHERE tenant = %(tenant)s
-- name: clear_terms
DELETE FROM terms WHERE tenant = %(tenant)s
-- name: clear_projections
DELETE FROM projections WHERE tenant = %(tenant)s
-- name: clear_snapshots
DELETE FROM snapshots WHERE tenant = %(tenant)s
-- name: next_epoch
UPDATE heads SET epoch = epoch + 1 WHERE tenant = %(tenant)s
-- name: notify
SELECT pg_notify(%(channel)s, %(news)s)
-- name: pending
SELECT value FROM store WHERE name = 'pending'
-- name: lock_pending
SELECT value FROM store WHERE name = 'pending' FOR UPDATE
-- name: set_pending
UPDATE store SET value = %(value)s WHERE name = 'pending'
-- name: add_pending
-- Where nothing was to be locked, an erasure may have come in between: its part stays.
INSERT INTO store AS s (name, value) VALUES ('pending', %(value)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value || s.value
-- name: clear_pending
DELETE FROM store WHERE name = 'pending'
-- name: kinds
SELECT 'new_event'::regtype::oid, 'new_claim'::regtype::oid, 'new_projection'::regtype::oid
-- name: append
SELECT append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
-- name: apply
-- Answers as `append` does.
SELECT CASE WHEN a.at_position = -1 THEN 'taken'
            WHEN a.at_position IS NOT NULL THEN concat_ws(' ', a.at_position, encode(a.at_link, 'hex'), a.at_epoch)
            WHEN is_wanted($1, $4) THEN 'wanted' ELSE 'ok' END
FROM (SELECT) AS once LEFT JOIN apply({arguments}) AS a ON true
-- name: seek
SELECT seek(%(tenant)s, %(number)s, %(low)s, %(high)s, %(ordinal)s)
-- name: heads
SELECT tenant, position, link FROM heads WHERE position > 0 ORDER BY tenant
-- name: size
SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
-- name: census
SELECT kind, status, sum(count)::bigint FROM census() GROUP BY kind, status
