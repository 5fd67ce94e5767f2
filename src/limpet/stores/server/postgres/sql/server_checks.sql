-- What is asked and done when a store is opened.

-- name: server
SELECT current_setting('server_version_num'), current_setting('server_encoding'), pg_is_in_recovery(),
       current_setting('transaction_read_only')::boolean, current_setting('fsync')::boolean,
       current_setting('full_page_writes')::boolean, current_setting('synchronous_commit')
-- name: is_there
-- Somebody else may have a table by that name: ours is known by its columns.
SELECT count(*) = 2 AND bool_and((attname, atttypid) IN (('name', 'text'::regtype), ('value', 'bytea'::regtype)))
FROM pg_attribute WHERE attrelid = to_regclass('store') AND attnum > 0 AND NOT attisdropped
-- name: schema
SELECT true FROM pg_namespace WHERE nspname = %(name)s
-- name: hidden
SELECT EXISTS (SELECT 1 FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid
               WHERE n.nspname = %(schema)s AND NOT has_schema_privilege(n.oid, 'USAGE'))
-- name: user
SELECT quote_ident(current_user)
-- name: may_create_schema
SELECT has_database_privilege(current_database(), 'CREATE')
-- name: is_used
SELECT EXISTS (SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
               WHERE n.nspname = current_schema())
-- name: version
SELECT value FROM store WHERE name = 'schema'
-- name: set_version
INSERT INTO store (name, value) VALUES ('schema', %(version)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
-- name: lock
SELECT pg_advisory_lock(hashtextextended(%(name)s, 0))
-- name: unlock
SELECT pg_advisory_unlock(hashtextextended(%(name)s, 0))
-- name: hurry_in_transaction
SET LOCAL lock_timeout = '200ms'
-- name: isolation
SELECT current_user, r.rolsuper OR r.rolbypassrls,
       EXISTS (SELECT 1 FROM pg_class AS c WHERE c.relnamespace = current_schema()::regnamespace
               AND c.relkind IN ('r', 'p') AND pg_has_role(current_user, c.relowner, 'MEMBER')),
       current_schema() IS NULL,
       ARRAY(SELECT t.name FROM unnest(%(tables)s::text[]) AS t (name)
             JOIN pg_class AS c ON c.relname = t.name AND c.relnamespace = current_schema()::regnamespace
             WHERE NOT (c.relrowsecurity AND c.relforcerowsecurity)),
       ARRAY(SELECT t.name FROM unnest(%(tables)s::text[]) AS t (name) WHERE to_regclass(t.name) IS NULL)
FROM pg_roles AS r WHERE r.rolname = current_user
-- name: anything
SELECT EXISTS (SELECT 1 FROM heads) OR EXISTS (SELECT 1 FROM streams) OR EXISTS (SELECT 1 FROM bases)
    OR EXISTS (SELECT 1 FROM events) OR EXISTS (SELECT 1 FROM claims) OR EXISTS (SELECT 1 FROM keys)
    OR EXISTS (SELECT 1 FROM blobs) OR EXISTS (SELECT 1 FROM uses) OR EXISTS (SELECT 1 FROM projections)
    OR EXISTS (SELECT 1 FROM terms) OR EXISTS (SELECT 1 FROM snapshots) OR EXISTS (SELECT 1 FROM notes)
