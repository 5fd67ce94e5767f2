-- Who uses a store. Run by the owner after every migration; it may be run again.

-- name: role
SELECT true FROM pg_roles WHERE rolname = %(role)s
-- name: may_create_roles
SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user
-- name: may_set_role
SELECT pg_has_role(current_user, %(role)s, CASE WHEN current_setting('server_version_num')::int >= 160000
                                               THEN 'SET' ELSE 'MEMBER' END)
-- name: might
SELECT rolsuper OR rolbypassrls, pg_has_role(rolname, current_user, 'MEMBER') FROM pg_roles WHERE rolname = %(role)s
-- name: create_role
CREATE ROLE {role} NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS
-- name: join_role
GRANT {role} TO CURRENT_USER
-- name: revoke_public
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC
-- name: grant_schema
GRANT USAGE ON SCHEMA {schema} TO {role}
-- name: grant_tables
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}
-- name: grant_functions
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}
-- name: direct
-- Partitions are reached through their tables only. So are views, where they can't be the asker's.
SELECT format('REVOKE ALL ON %%I FROM %%I', c.relname, %(role)s::text) FROM pg_class AS c
WHERE c.relnamespace = current_schema()::regnamespace AND (
    c.relispartition AND c.relkind = 'r'
    OR c.relkind = 'v' AND NOT coalesce('security_invoker=true' = ANY (c.reloptions), false)
)
