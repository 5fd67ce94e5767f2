-- What is done after an erasure, by the owner.

-- name: erasures
SELECT id, tenant FROM erasures ORDER BY id
-- name: scrubbed
DELETE FROM erasures WHERE id = ANY (%(ids)s)
-- name: partitions
SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%(table)s) AND EXISTS (
    SELECT 1 FROM unnest(%(tenants)s::text[]) AS t (tenant)
    WHERE satisfies_hash_partition(i.inhparent, 8, right(c.relname, 1)::int, t.tenant COLLATE "C")
) ORDER BY 1
-- name: every_partition
SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%(table)s) ORDER BY 1
-- name: may_vacuum
SELECT pg_has_role(current_user, c.relowner, 'USAGE')
    OR CASE WHEN current_setting('server_version_num')::int >= 170000
            THEN has_table_privilege(c.oid, 'MAINTAIN') ELSE false END
FROM pg_class AS c WHERE c.oid = to_regclass(%(part)s)
-- name: now
-- Without its epoch: others' are told so, too.
SELECT pg_current_xact_id()::xid::text
-- name: older
-- Whatever keeps rows of this database's tables that are gone, here and on replicas: transactions, prepared ones too;
-- and what replicas let no database drop (hot_standby_feedback), which is told by a connection that belongs to none,
-- or kept by a slot. A slot's catalog_xmin keeps rows of the catalog only.
SELECT EXISTS (
    SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND (age(backend_xmin) > age(%(marker)s::xid) OR age(backend_xid) > age(%(marker)s::xid))
) OR EXISTS (
    SELECT 1 FROM pg_prepared_xacts WHERE database = current_database() AND age(transaction) > age(%(marker)s::xid)
), EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname IS NULL AND age(backend_xmin) > age(%(marker)s::xid))
OR EXISTS (SELECT 1 FROM pg_replication_slots WHERE age(xmin) > age(%(marker)s::xid))
-- name: hurry
SET lock_timeout = '200ms'
-- name: insist
-- Longer than deadlock_timeout is by default: after that the server ends an autovacuum that is in the way.
SET lock_timeout = '1500ms'
-- name: rest
SELECT pg_sleep(0.05 + random() * 0.2)
