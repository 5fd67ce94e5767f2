-- The guard of a tenant. It guards no data: what is written is compared anyhow.

-- name: tell
SELECT pg_notify(%(channel)s, '0 ' || %(tenant)s)
-- name: patience
SELECT set_config('lock_timeout', %(timeout)s, false)
-- name: take
SELECT pg_advisory_lock(hashtextextended(%(channel)s || ' ' || %(tenant)s, 1))
-- name: give_back
SELECT pg_advisory_unlock(hashtextextended(%(channel)s || ' ' || %(tenant)s, 1))
