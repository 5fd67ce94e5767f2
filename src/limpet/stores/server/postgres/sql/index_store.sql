-- The table beside a store that holds what is derived from its log: search index and memory.

-- name: get
SELECT key, value FROM shelf WHERE book = %(book)s AND key = ANY (%(keys)s)
-- name: scan
SELECT key, value FROM shelf WHERE book = %(book)s AND key >= %(first)s AND key < %(last)s ORDER BY key LIMIT %(limit)s
-- name: scan_back
SELECT key, value FROM shelf WHERE book = %(book)s AND key >= %(first)s AND key < %(last)s
ORDER BY key DESC LIMIT %(limit)s
-- name: lasts
SELECT (SELECT s.value FROM shelf AS s WHERE s.book = %(book)s AND s.key >= span.first AND s.key < span.last
        ORDER BY s.key DESC LIMIT 1)
FROM unnest(%(firsts)s::bytea[], %(lasts)s::bytea[]) WITH ORDINALITY AS span (first, last, at) ORDER BY span.at
-- name: alone
SELECT pg_advisory_xact_lock(hashtextextended(%(channel)s, 2))
-- name: expected
SELECT s.value FROM unnest(%(books)s::bytea[], %(keys)s::bytea[]) WITH ORDINALITY AS e (book, key, at)
LEFT JOIN shelf AS s ON s.book = e.book AND s.key = e.key ORDER BY e.at
-- name: put
INSERT INTO shelf (book, key, value) SELECT * FROM unnest(%(books)s::bytea[], %(keys)s::bytea[], %(values)s::bytea[])
ON CONFLICT (book, key) DO UPDATE SET value = excluded.value
-- name: drop
DELETE FROM shelf WHERE book = %(book)s AND key >= %(first)s AND key < %(last)s
-- name: truncate
TRUNCATE shelf
-- name: clear
DELETE FROM shelf
-- name: size
SELECT CASE WHEN EXISTS (SELECT FROM shelf) THEN pg_total_relation_size('shelf') ELSE 0 END
