-- Version 1 of a Limpet store on PostgreSQL. Never changed; later versions are built on it by `schema-2.sql` and on.
-- `docs/internals/format.md` explains every table. Run by the owner, with the schema first in the search path.
--
-- Every table of tenants has the tenant first in its key and is cut by it, so that a distributed PostgreSQL can keep a
-- tenant in one place. Texts of callers are bytes (UTF-8): PostgreSQL's text has no NUL, and its order depends on the
-- locale. A tenant's name is text, escaped as `names.py` says.

CREATE TABLE store (
    name  text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);

-- The end of each tenant's feed, and how many versions its notes had. Every change locks this row first. One row a
-- tenant: not cut.
CREATE TABLE heads (
    tenant   text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL DEFAULT 0,
    link     bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex'),
    epoch    bigint NOT NULL DEFAULT 0,
    noted    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A stream's number is the position of its first event. Its version is that of its last event. Whoever has streams has
-- a head: without one, nobody would know of the tenant.
CREATE TABLE streams (
    tenant text COLLATE "C" NOT NULL REFERENCES heads,
    number bigint NOT NULL,
    name   bytea NOT NULL,
    first  bigint NOT NULL,
    mark   bytea NOT NULL,
    PRIMARY KEY (tenant, number),
    UNIQUE (tenant, name)
) PARTITION BY HASH (tenant);

CREATE TABLE bases (
    tenant  text COLLATE "C" NOT NULL,
    stretch bigint NOT NULL,
    stream  bigint NOT NULL,
    first   bigint NOT NULL,
    source  bigint NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (tenant, stretch),
    UNIQUE (tenant, stream, first)
) PARTITION BY HASH (tenant);
CREATE INDEX bases_by_source ON bases (tenant, source);

-- The log. Of an erased event payload and salt are gone, and `notice`, `cause` and `stand_in` say what became of it.
CREATE TABLE events (
    tenant   text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    stream   bigint NOT NULL,
    version  bigint NOT NULL,
    ordinal  bigint NOT NULL,
    header   bytea NOT NULL,
    payload  bytea,
    salt     bytea,
    digest   bytea NOT NULL,
    link     bytea NOT NULL,
    notice   bigint,
    cause    bigint,
    stand_in bytea,
    PRIMARY KEY (tenant, position),
    UNIQUE (tenant, stream, version)
) PARTITION BY HASH (tenant);

CREATE TABLE claims (
    tenant  text COLLATE "C" NOT NULL,
    stretch bigint NOT NULL,
    claim   bytea NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (tenant, stretch, claim)
) PARTITION BY HASH (tenant);

CREATE TABLE keys (
    tenant       text COLLATE "C" NOT NULL,
    key          bytea NOT NULL,
    command_hash bytea NOT NULL,
    first        bigint NOT NULL,
    last         bigint NOT NULL,
    time_us      bigint NOT NULL,
    PRIMARY KEY (tenant, key)
) PARTITION BY HASH (tenant);
CREATE INDEX keys_by_time ON keys (tenant, time_us);

CREATE TABLE blobs (
    tenant  text COLLATE "C" NOT NULL,
    hash    bytea NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (tenant, hash)
) PARTITION BY HASH (tenant);

CREATE TABLE uses (
    tenant   text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    hash     bytea NOT NULL,
    PRIMARY KEY (tenant, position, hash)
) PARTITION BY HASH (tenant);
CREATE INDEX uses_by_hash ON uses (tenant, hash);

-- `moment` is time_us >> 20, about a second: a row that changes many times within one keeps its place in every
-- index. Rows of one moment are sorted by time when they are read.
CREATE TABLE projections (
    tenant   text COLLATE "C" NOT NULL,
    kind     bytea NOT NULL,
    id       bytea NOT NULL,
    owner    bytea NOT NULL,
    status   bytea NOT NULL,
    moment   bigint NOT NULL,
    time_us  bigint NOT NULL,
    lookup   bytea NOT NULL,
    terms    bytea[] NOT NULL,
    document bytea NOT NULL,
    mark     bytea NOT NULL,
    PRIMARY KEY (tenant, kind, id)
) PARTITION BY HASH (tenant);
CREATE INDEX projections_by_owner  ON projections (tenant, kind, owner, moment);
CREATE INDEX projections_by_time   ON projections (tenant, kind, moment, status);
CREATE INDEX projections_by_lookup ON projections (tenant, kind, lookup, moment) WHERE lookup <> '';

CREATE TABLE terms (
    tenant text COLLATE "C" NOT NULL,
    kind   bytea NOT NULL,
    term   bytea NOT NULL,
    id     bytea NOT NULL,
    PRIMARY KEY (tenant, kind, term, id)
) PARTITION BY HASH (tenant);

CREATE TABLE snapshots (
    tenant  text COLLATE "C" NOT NULL,
    stream  bigint NOT NULL,
    version bigint NOT NULL,
    fold    bigint NOT NULL,
    state   bytea NOT NULL,
    mark    bytea NOT NULL,
    PRIMARY KEY (tenant, stream)
) PARTITION BY HASH (tenant);

-- Small records beside the log, which change in place.
CREATE TABLE notes (
    tenant  text COLLATE "C" NOT NULL,
    name    bytea NOT NULL,
    version bigint NOT NULL,
    value   bytea NOT NULL,
    mark    bytea NOT NULL,
    PRIMARY KEY (tenant, name)
) PARTITION BY HASH (tenant);

-- Erasures that `scrub` has not seen to yet. One that comes while it is at work has a row of its own, which stays.
CREATE TABLE erasures (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL
);

-- What is derived from the log and is not the store's: search index and memory. The tenant is in its keys, in more than
-- one form: row-level security can't tell it from them.
CREATE TABLE shelf (
    book  bytea NOT NULL,
    key   bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (book, key)
);

-- What a partition is: one of eight. And who may see which rows of which table.
DO $$
DECLARE
    cut text[] := ARRAY['streams', 'bases', 'events', 'claims', 'keys', 'blobs', 'uses', 'projections', 'terms',
                        'snapshots', 'notes'];
    one text;
BEGIN
    FOREACH one IN ARRAY cut LOOP
        FOR part IN 0..7 LOOP
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS 8, REMAINDER %s) %s',
                           one || '_' || part, one, part,
                           CASE WHEN one IN ('projections', 'snapshots', 'notes')
                                THEN 'WITH (fillfactor = 70)' ELSE '' END);
        END LOOP;
    END LOOP;
    -- Partitions too: who names one of them directly would pass by the policy of the table.
    FOR one IN SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = current_schema()::regnamespace
               AND c.relkind IN ('r', 'p') AND c.relname NOT IN ('store', 'shelf', 'erasures') LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', one);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', one);
        EXECUTE format($policy$CREATE POLICY tenant ON %I
            USING (tenant = nullif(current_setting('limpet.tenant', true), ''))
            WITH CHECK (tenant = nullif(current_setting('limpet.tenant', true), ''))$policy$, one);
    END LOOP;
END $$;

-- Texts of callers, and what is made of them, are in no statistics: what is erased must not be left there. Partitions do
-- not take this over from their tables. Kinds and statuses are words of Limpet's own.
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT c.relname, a.attname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
               WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
               AND a.atttypid IN ('bytea'::regtype, 'bytea[]'::regtype) AND a.attname NOT IN ('kind', 'status') LOOP
        EXECUTE format('ALTER TABLE ONLY %I ALTER %I SET STATISTICS 0', one.relname, one.attname);
    END LOOP;
END $$;

-- The list of tenants is asked for on purpose: nobody gets it by leaving a condition out.
CREATE POLICY register ON heads FOR SELECT USING (current_setting('limpet.register', true) = 'on');

-- Text for people; where it has a NUL, with that and every byte beyond ASCII escaped.
CREATE FUNCTION plain(value bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN position('\x00'::bytea IN value) = 0 THEN convert_from(value, 'UTF8')
                ELSE encode(value, 'escape') END
$$;

-- JSON that PostgreSQL can read; NULL for what it can't (a NUL in a text, half a surrogate pair).
CREATE FUNCTION json_of(value bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN convert_from(value, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

CREATE FUNCTION moment_of(time_us bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT timestamptz '1970-01-01 00:00:00+00' + time_us * interval '1 microsecond'
$$;

-- The lowest version within bounds whose event has at least this ordinal, which never falls: found by halves.
CREATE FUNCTION seek(p_tenant text, p_stream bigint, p_low bigint, p_high bigint, p_ordinal bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    low bigint := p_low;
    high bigint;
    middle bigint;
    found bigint;
BEGIN
    SELECT version INTO high FROM events WHERE tenant = p_tenant AND stream = p_stream AND version <= p_high
    ORDER BY version DESC LIMIT 1;
    WHILE low <= high LOOP
        middle := low + (high - low) / 2;
        IF (SELECT ordinal FROM events WHERE tenant = p_tenant AND stream = p_stream AND version >= middle
            ORDER BY version LIMIT 1) >= p_ordinal THEN
            high := middle - 1;
        ELSE
            low := middle + 1;
        END IF;
    END LOOP;
    SELECT version INTO found FROM events WHERE tenant = p_tenant AND stream = p_stream
        AND version BETWEEN greatest(low, p_low) AND p_high ORDER BY version LIMIT 1;
    RETURN coalesce(found, 0);
END $$;

-- The version of a stream's last event up to a position, 0 if it had none. Positions rise with versions: found by halves.
CREATE FUNCTION version_at(p_tenant text, p_name bytea, p_position bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number_ bigint;
    low bigint;
    high bigint;
    middle bigint;
BEGIN
    SELECT number, first INTO number_, low FROM streams WHERE tenant = p_tenant AND name = p_name;
    SELECT version INTO high FROM events WHERE tenant = p_tenant AND stream = number_ ORDER BY version DESC LIMIT 1;
    WHILE low <= high LOOP
        middle := low + (high - low) / 2;
        IF (SELECT position FROM events WHERE tenant = p_tenant AND stream = number_ AND version >= middle
            ORDER BY version LIMIT 1) <= p_position THEN
            low := middle + 1;
        ELSE
            high := middle - 1;
        END IF;
    END LOOP;
    RETURN coalesce((SELECT version FROM events WHERE tenant = p_tenant AND stream = number_ AND version <= high
                     ORDER BY version DESC LIMIT 1), 0);
END $$;

-- Compares a tenant's head and holds it until the transaction ends; returns the head if it is another, else nothing.
CREATE FUNCTION hold(p_tenant text, p_position bigint, p_link bytea, p_epoch bigint)
RETURNS TABLE (at_position bigint, at_link bytea, at_epoch bigint) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('limpet.tenant', p_tenant, true);
    SELECT h.position, h.link, h.epoch INTO at_position, at_link, at_epoch
    FROM heads AS h WHERE h.tenant = p_tenant FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO heads (tenant) VALUES (p_tenant) ON CONFLICT DO NOTHING;
        SELECT h.position, h.link, h.epoch INTO at_position, at_link, at_epoch
        FROM heads AS h WHERE h.tenant = p_tenant FOR UPDATE;
    END IF;
    IF at_position <> p_position OR at_link <> p_link OR at_epoch <> p_epoch THEN
        RETURN NEXT;
    END IF;
END $$;

-- Terms follow their projections, whoever changes those. As a rule they stay, and this is not called.
CREATE FUNCTION follow_terms() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        DELETE FROM terms AS t WHERE t.tenant = OLD.tenant AND t.kind = OLD.kind AND t.id = OLD.id
            AND t.term = ANY (OLD.terms);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO terms (tenant, kind, term, id)
        SELECT NEW.tenant, NEW.kind, n.term, NEW.id FROM unnest(NEW.terms) AS n (term) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER terms_come AFTER INSERT ON projections FOR EACH ROW WHEN (NEW.terms <> '{}')
EXECUTE FUNCTION follow_terms();
CREATE TRIGGER terms_change AFTER UPDATE ON projections FOR EACH ROW WHEN (OLD.terms <> NEW.terms)
EXECUTE FUNCTION follow_terms();
CREATE TRIGGER terms_go AFTER DELETE ON projections FOR EACH ROW WHEN (OLD.terms <> '{}')
EXECUTE FUNCTION follow_terms();

-- What a change takes away; `apply` calls it first.
CREATE FUNCTION unmake(
    p_tenant text, x_positions bigint[], x_notices bigint[], x_causes bigint[], x_payloads bytea[],
    r_numbers bigint[], r_names bytea[], r_marks bytea[], d_claims bigint[], d_snapshots bigint[], d_uses bigint[],
    d_keys bytea[], d_blobs bytea[], p_todo bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE events AS e SET payload = NULL, salt = NULL, notice = n.notice, cause = n.cause, stand_in = n.payload
    FROM unnest(x_positions, x_notices, x_causes, x_payloads) AS n (position, notice, cause, payload)
    WHERE e.tenant = p_tenant AND e.position = n.position;
    UPDATE streams AS s SET name = n.name, mark = n.mark
    FROM unnest(r_numbers, r_names, r_marks) AS n (number, name, mark)
    WHERE s.tenant = p_tenant AND s.number = n.number;
    DELETE FROM claims WHERE tenant = p_tenant AND stretch = ANY (d_claims);
    DELETE FROM snapshots WHERE tenant = p_tenant AND stream = ANY (d_snapshots);
    DELETE FROM uses AS u USING events AS e WHERE u.tenant = p_tenant AND e.tenant = p_tenant
        AND e.stream = ANY (d_uses) AND u.position = e.position;
    DELETE FROM keys WHERE tenant = p_tenant AND key = ANY (d_keys);
    DELETE FROM blobs WHERE tenant = p_tenant AND hash = ANY (d_blobs);
    IF p_todo IS NOT NULL THEN
        INSERT INTO erasures (tenant) VALUES (p_tenant);
        INSERT INTO store AS s (name, value) VALUES ('pending', p_todo)
        ON CONFLICT (name) DO UPDATE SET value = s.value || excluded.value;
    END IF;
END $$;

-- One change, if the tenant's head is the one it was made for; returns the head if it is another, else nothing. If
-- something has to be new and is not, nothing is changed, and the position returned is -1. `p_heads` and `p_links` are
-- of the head before and after. An array that is NULL brings nothing. A client caches calls of up to 50 arguments.
CREATE FUNCTION apply(
    p_tenant text, p_heads bigint[], p_links bytea[], p_channel text,
    e_positions bigint[], e_streams bigint[], e_versions bigint[], e_ordinals bigint[], e_headers bytea[],
    e_payloads bytea[], e_salts bytea[], e_digests bytea[], e_links bytea[],
    e_notices bigint[], e_causes bigint[], e_stand_ins bytea[],
    s_numbers bigint[], s_names bytea[], s_firsts bigint[], s_marks bytea[],
    b_flat bigint[],
    c_stretches bigint[], c_texts bytea[], c_versions bigint[],
    k_keys bytea[], k_hashes bytea[], k_firsts bigint[], k_lasts bigint[], k_times bigint[],
    l_hashes bytea[], l_contents bytea[], u_positions bigint[], u_hashes bytea[],
    d_kinds bytea[], d_ids bytea[],
    p_kinds bytea[], p_ids bytea[], p_owners bytea[], p_statuses bytea[], p_times bigint[], p_lookups bytea[],
    p_terms text[], p_documents bytea[], p_marks bytea[],
    n_streams bytea[], n_versions bigint[], n_folds bigint[], n_states bytea[], n_marks bytea[],
    p_unmakes boolean DEFAULT false,
    x_positions bigint[] DEFAULT NULL, x_notices bigint[] DEFAULT NULL, x_causes bigint[] DEFAULT NULL,
    x_payloads bytea[] DEFAULT NULL, r_numbers bigint[] DEFAULT NULL, r_names bytea[] DEFAULT NULL,
    r_marks bytea[] DEFAULT NULL,
    d_claims bigint[] DEFAULT NULL, d_snapshots bigint[] DEFAULT NULL, d_uses bigint[] DEFAULT NULL,
    d_keys bytea[] DEFAULT NULL, d_blobs bytea[] DEFAULT NULL, p_todo bytea DEFAULT NULL
) RETURNS TABLE (at_position bigint, at_link bytea, at_epoch bigint) LANGUAGE plpgsql AS $$
DECLARE
    p_position bigint := p_heads[1];
    p_epoch bigint := p_heads[2];
    p_new_position bigint := p_heads[3];
    p_new_epoch bigint := p_heads[4];
    p_link bytea := p_links[1];
    p_new_link bytea := p_links[2];
BEGIN
    PERFORM set_config('limpet.tenant', p_tenant, true);
    -- As a rule the head is as expected, and is held by being written; otherwise it is told.
    UPDATE heads AS h SET position = p_new_position, link = p_new_link, epoch = p_new_epoch
    WHERE h.tenant = p_tenant AND h.position = p_position AND h.link = p_link AND h.epoch = p_epoch;
    IF NOT FOUND THEN
        SELECT h.at_position, h.at_link, h.at_epoch INTO at_position, at_link, at_epoch
        FROM hold(p_tenant, p_position, p_link, p_epoch) AS h;
        IF FOUND THEN
            RETURN NEXT;
            RETURN;
        END IF;
        UPDATE heads AS h SET position = p_new_position, link = p_new_link, epoch = p_new_epoch
        WHERE h.tenant = p_tenant;
    END IF;
    BEGIN
        IF p_unmakes THEN
            PERFORM unmake(p_tenant, x_positions, x_notices, x_causes, x_payloads, r_numbers, r_names, r_marks,
                           d_claims, d_snapshots, d_uses, d_keys, d_blobs, p_todo);
        END IF;
        IF d_kinds IS NOT NULL THEN
            DELETE FROM projections AS p USING unnest(d_kinds, d_ids) AS n (kind, id)
            WHERE p.tenant = p_tenant AND p.kind = n.kind AND p.id = n.id;
        END IF;
        IF s_numbers IS NOT NULL THEN
            INSERT INTO streams (tenant, number, name, first, mark)
            SELECT p_tenant, n.* FROM unnest(s_numbers, s_names, s_firsts, s_marks) AS n;
        END IF;
        IF b_flat IS NOT NULL THEN
            INSERT INTO bases (tenant, stream, stretch, first, source, version)
            SELECT p_tenant, b_flat[i], b_flat[i + 1], b_flat[i + 2], b_flat[i + 3], b_flat[i + 4]
            FROM generate_series(1, cardinality(b_flat), 5) AS i;
        END IF;
        IF e_positions IS NOT NULL THEN
            INSERT INTO events (tenant, position, stream, version, ordinal, header, payload, salt, digest, link,
                                notice, cause, stand_in)
            SELECT p_tenant, n.* FROM unnest(e_positions, e_streams, e_versions, e_ordinals, e_headers, e_payloads,
                                             e_salts, e_digests, e_links, e_notices, e_causes, e_stand_ins) AS n;
        END IF;
        IF c_stretches IS NOT NULL THEN
            INSERT INTO claims (tenant, stretch, claim, version)
            SELECT p_tenant, n.* FROM unnest(c_stretches, c_texts, c_versions) AS n;
        END IF;
        IF k_keys IS NOT NULL THEN
            INSERT INTO keys (tenant, key, command_hash, first, last, time_us)
            SELECT p_tenant, n.* FROM unnest(k_keys, k_hashes, k_firsts, k_lasts, k_times) AS n;
        END IF;
        IF l_hashes IS NOT NULL THEN
            INSERT INTO blobs AS b (tenant, hash, content) SELECT p_tenant, n.* FROM unnest(l_hashes, l_contents) AS n
            ON CONFLICT (tenant, hash) DO UPDATE SET content = excluded.content WHERE b.content <> excluded.content;
        END IF;
        IF u_positions IS NOT NULL THEN
            INSERT INTO uses (tenant, position, hash) SELECT p_tenant, n.* FROM unnest(u_positions, u_hashes) AS n
            ON CONFLICT DO NOTHING;
        END IF;
        IF p_kinds IS NOT NULL THEN
            INSERT INTO projections (tenant, kind, id, owner, status, moment, time_us, lookup, terms, document, mark)
            SELECT p_tenant, n.kind, n.id, n.owner, n.status, n.time_us >> 20, n.time_us, n.lookup,
                   n.terms::bytea[], n.document, n.mark
            FROM unnest(p_kinds, p_ids, p_owners, p_statuses, p_times, p_lookups, p_terms, p_documents, p_marks)
                AS n (kind, id, owner, status, time_us, lookup, terms, document, mark)
            ON CONFLICT (tenant, kind, id) DO UPDATE SET owner = excluded.owner, status = excluded.status,
                moment = excluded.moment, time_us = excluded.time_us, lookup = excluded.lookup,
                terms = excluded.terms, document = excluded.document, mark = excluded.mark;
        END IF;
        IF n_streams IS NOT NULL THEN
            INSERT INTO snapshots (tenant, stream, version, fold, state, mark)
            SELECT p_tenant, s.number, n.version, n.fold, n.state, n.mark
            FROM unnest(n_streams, n_versions, n_folds, n_states, n_marks) AS n (name, version, fold, state, mark)
            JOIN streams AS s ON s.tenant = p_tenant AND s.name = n.name
            ON CONFLICT (tenant, stream) DO UPDATE SET version = excluded.version, fold = excluded.fold,
                state = excluded.state, mark = excluded.mark;
        END IF;
    EXCEPTION WHEN unique_violation THEN
        UPDATE heads AS h SET position = p_position, link = p_link, epoch = p_epoch WHERE h.tenant = p_tenant;
        at_position := -1;
        at_link := '';
        at_epoch := 0;
        RETURN NEXT;
        RETURN;
    END;
    IF p_new_position <> p_position OR p_new_epoch <> p_epoch THEN
        PERFORM pg_notify(p_channel, p_new_position || ' ' || p_tenant);
    END IF;
END $$;

-- Puts a note, or drops it (NULL), if it is at a version and the tenant's count is the one that its mark was made for.
-- Returns 'put', 'stale', or 'counted': somebody else has counted since.
CREATE FUNCTION put_note(p_tenant text, p_name bytea, p_expected bigint, p_noted bigint, p_value bytea, p_mark bytea)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    counted bigint;
BEGIN
    PERFORM set_config('limpet.tenant', p_tenant, true);
    INSERT INTO heads (tenant) VALUES (p_tenant) ON CONFLICT DO NOTHING;
    SELECT noted INTO counted FROM heads WHERE tenant = p_tenant FOR UPDATE;
    IF coalesce((SELECT version FROM notes WHERE tenant = p_tenant AND name = p_name), 0) <> p_expected THEN
        RETURN 'stale';
    ELSIF p_value IS NULL THEN
        DELETE FROM notes WHERE tenant = p_tenant AND name = p_name;
        RETURN 'put';
    ELSIF counted <> p_noted THEN
        RETURN 'counted';
    END IF;
    UPDATE heads SET noted = p_noted + 1 WHERE tenant = p_tenant;
    INSERT INTO notes (tenant, name, version, value, mark) VALUES (p_tenant, p_name, p_noted + 1, p_value, p_mark)
    ON CONFLICT (tenant, name) DO UPDATE SET version = excluded.version, value = excluded.value,
        mark = excluded.mark;
    RETURN 'put';
END $$;

-- How many rows of which kind and status each tenant has; of blobs, with an empty kind. Tenant by tenant, as row-level
-- security has it.
CREATE FUNCTION census() RETURNS TABLE (kind bytea, status bytea, count bigint) LANGUAGE plpgsql AS $$
DECLARE
    one text;
    every text[];
BEGIN
    PERFORM set_config('limpet.register', 'on', true);
    every := ARRAY(SELECT h.tenant FROM heads AS h);
    PERFORM set_config('limpet.register', 'off', true);
    FOREACH one IN ARRAY every LOOP
        PERFORM set_config('limpet.tenant', one, true);
        RETURN QUERY SELECT p.kind, p.status, count(*) FROM projections AS p WHERE p.tenant = one GROUP BY 1, 2;
        RETURN QUERY SELECT ''::bytea, ''::bytea, count(*) FROM blobs AS b WHERE b.tenant = one;
    END LOOP;
    PERFORM set_config('limpet.tenant', '', true);
END $$;

-- For people with psql. Read-only by nature; Limpet itself never uses them. They obey the same row-level security:
--     SELECT set_config('limpet.tenant', 'default', false);
CREATE VIEW sessions AS
SELECT p.tenant, plain(p.id) AS id, nullif(plain(p.owner), '') AS user_id, plain(p.status) AS status,
       json_of(p.document) ->> 'title' AS title,
       coalesce((json_of(p.document) ->> 'message_count')::bigint, 0) AS message_count,
       moment_of(p.time_us) AS last_active
FROM projections AS p WHERE p.kind = 'session';

-- A message of schema 2 has hashes in place of its large texts. Of a content, the text is put back.
CREATE VIEW messages AS
WITH stored AS (
    SELECT e.tenant, plain(substr(s.name, 9)) AS session_id, e.position, e.version,
           CASE (json_of(e.header) ->> 2)::int WHEN 1 THEN json_of(e.payload)
                ELSE json_of(e.payload) -> 'message' END AS json
    FROM events AS e JOIN streams AS s ON s.tenant = e.tenant AND s.number = e.stream
    WHERE json_of(e.header) ->> 1 = 'session.message_added' AND e.payload IS NOT NULL
), read AS (
    SELECT *, coalesce(json ->> 'role', json -> 'openai' ->> 'role', json -> 'anthropic' ->> 'role') AS role,
           coalesce(json ->> 'content', json -> 'openai' ->> 'content', json -> 'anthropic' ->> 'content') AS content
    FROM stored
)
SELECT r.tenant, r.session_id, r.version, r.json ->> 'id' AS id, r.role,
       coalesce((SELECT plain(b.content) FROM uses AS u JOIN blobs AS b ON b.tenant = u.tenant AND b.hash = u.hash
                 WHERE u.tenant = r.tenant AND u.position = r.position AND encode(u.hash, 'hex') = r.content),
                r.content) AS content,
       r.json
FROM read AS r;

-- Frames that stand still, and whether they can still be resumed: `waiting`, or `expired` or `revoked`.
CREATE VIEW suspended_frames AS
WITH every AS (
    SELECT p.*, json_of(p.document) AS json,
           row_number() OVER (PARTITION BY p.tenant, json_of(p.document) ->> 'frame_id'
                              ORDER BY p.time_us DESC, p.id DESC) AS back
    FROM projections AS p WHERE p.kind = 'suspension'
)
SELECT tenant, plain(id) AS suspension_id, json ->> 'frame_id' AS frame_id, plain(owner) AS actor_id,
       plain(status) AS status, json ->> 'reason' AS suspension_reason, json ->> 'purpose' AS purpose,
       json ->> 'payload' AS payload, moment_of(time_us) AS suspended_at,
       moment_of((json ->> 'expires_us')::bigint) AS expires_at
FROM every WHERE back = 1 AND status IN ('waiting', 'expired', 'revoked');

-- Every frame that was ever pushed, as its log says, with how it stands: open, suspended, or how it ended. What it
-- used is NULL as long as that is known in the state of its tree only: while it is open, and shortly after.
CREATE VIEW frames AS
WITH pushed AS (
    SELECT e.tenant, json_of(e.payload) AS json, (json_of(e.header) ->> 3)::bigint AS time_us,
           plain(substr(s.name, 8)) AS root_id
    FROM events AS e JOIN streams AS s ON s.tenant = e.tenant AND s.number = e.stream
    WHERE json_of(e.header) ->> 1 = 'frame.pushed' AND e.payload IS NOT NULL
), popped AS (
    SELECT e.tenant, json_of(e.payload) ->> 'frame_id' AS frame_id, json_of(e.payload) ->> 'status' AS status,
           (json_of(e.header) ->> 3)::bigint AS time_us
    FROM events AS e WHERE json_of(e.header) ->> 1 = 'frame.popped' AND e.payload IS NOT NULL
)
SELECT n.tenant, n.json ->> 'frame_id' AS frame_id, n.root_id, n.json ->> 'parent_frame_id' AS parent_frame_id,
       n.json -> 'scope' ->> 'actor_id' AS actor_id, n.json -> 'scope' ->> 'session_id' AS session_id,
       n.json -> 'scope' ->> 'thread_id' AS thread_id, n.json ->> 'goal' AS goal,
       (n.json -> 'budget' ->> 'total')::bigint AS total,
       coalesce(c.status, CASE WHEN f.frame_id IS NOT NULL THEN 'suspended' ELSE 'open' END) AS status,
       CASE WHEN p.status <> 'open'
            THEN coalesce((json_of(p.document) -> 'budget' ->> 'used')::bigint, 0) END AS used,
       moment_of(n.time_us) AS created_at, moment_of(c.time_us) AS completed_at
FROM pushed AS n
LEFT JOIN popped AS c ON c.tenant = n.tenant AND c.frame_id = n.json ->> 'frame_id'
LEFT JOIN suspended_frames AS f ON f.tenant = n.tenant AND f.frame_id = n.json ->> 'frame_id'
LEFT JOIN projections AS p ON p.tenant = n.tenant AND p.kind = 'frame'
    AND p.id = convert_to(n.json ->> 'frame_id', 'UTF8');

-- A view shows what whoever asks may see. Before PostgreSQL 15 it can't: there it is the owner's alone.
DO $$
DECLARE
    one text;
BEGIN
    IF current_setting('server_version_num')::int >= 150000 THEN
        FOREACH one IN ARRAY ARRAY['sessions', 'messages', 'suspended_frames', 'frames'] LOOP
            EXECUTE format('ALTER VIEW %I SET (security_invoker = true)', one);
        END LOOP;
    END IF;
END $$;
