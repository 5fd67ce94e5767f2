-- Version 2: what most changes bring goes to the server by rows, and in a function of its own. No table changes and no
-- row does: who has the store open goes on meanwhile, and later, with what version 1 has.
--
-- `apply` takes an array for every column of every table. Each costs the server an argument, though most are NULL.

CREATE TYPE new_event AS (
    position bigint, stream bigint, version bigint, ordinal bigint, header bytea, payload bytea, salt bytea,
    digest bytea, link bytea
);

CREATE TYPE new_claim AS (stretch bigint, claim bytea, version bigint);

CREATE TYPE new_projection AS (
    kind bytea, id bytea, owner bytea, status bytea, time_us bigint, lookup bytea, terms bytea[], document bytea,
    mark bytea
);

-- Whether somebody has a tenant's guard, or waits for it: see `guarding.sql`. Who has it itself is told so, too.
CREATE FUNCTION is_wanted(p_tenant text, p_channel text) RETURNS boolean LANGUAGE sql AS $$
    SELECT NOT pg_try_advisory_xact_lock_shared(hashtextextended(p_channel || ' ' || p_tenant, 1))
$$;

-- One change that brings events, claims and projections, and nothing else; as `apply` does it. Returns 'ok' once it is
-- made, 'wanted' if also others want the tenant's guard, and the head if it is another: position, link in hexadecimal, epoch.
-- If something has to be new and is not, all of it fails with unique_violation: to catch that here costs every change.
-- The error names no value, as those of all tables with row-level security.
CREATE FUNCTION append(
    p_tenant text, p_channel text, p_position bigint, p_link bytea, p_epoch bigint, p_new_position bigint,
    p_new_link bytea, p_events new_event[], p_claims new_claim[], p_projections new_projection[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
    one new_projection;
BEGIN
    -- An expression costs less than a statement.
    answer := set_config('limpet.tenant', p_tenant, true);
    UPDATE heads AS h SET position = p_new_position, link = p_new_link
    WHERE h.tenant = p_tenant AND h.position = p_position AND h.link = p_link AND h.epoch = p_epoch;
    IF NOT FOUND THEN
        SELECT concat_ws(' ', h.at_position, encode(h.at_link, 'hex'), h.at_epoch) INTO answer
        FROM hold(p_tenant, p_position, p_link, p_epoch) AS h;
        IF FOUND THEN
            RETURN answer;
        END IF;
        UPDATE heads AS h SET position = p_new_position, link = p_new_link WHERE h.tenant = p_tenant;
    END IF;
    INSERT INTO events (tenant, position, stream, version, ordinal, header, payload, salt, digest, link)
    SELECT p_tenant, n.* FROM unnest(p_events) AS n;
    IF p_claims IS NOT NULL THEN
        INSERT INTO claims (tenant, stretch, claim, version) SELECT p_tenant, n.* FROM unnest(p_claims) AS n;
    END IF;
    IF cardinality(p_projections) = 1 THEN
        -- As a rule it is there: to change it by its key costs less than to put it, whatever is there.
        one := p_projections[1];
        UPDATE projections AS p SET owner = one.owner, status = one.status, moment = one.time_us >> 20,
            time_us = one.time_us, lookup = one.lookup, terms = one.terms, document = one.document, mark = one.mark
        WHERE p.tenant = p_tenant AND p.kind = one.kind AND p.id = one.id;
    END IF;
    IF cardinality(p_projections) > 1 OR (cardinality(p_projections) = 1 AND NOT FOUND) THEN
        INSERT INTO projections (tenant, kind, id, owner, status, moment, time_us, lookup, terms, document, mark)
        SELECT p_tenant, n.kind, n.id, n.owner, n.status, n.time_us >> 20, n.time_us, n.lookup, n.terms, n.document,
               n.mark
        FROM unnest(p_projections) AS n
        ON CONFLICT (tenant, kind, id) DO UPDATE SET owner = excluded.owner, status = excluded.status,
            moment = excluded.moment, time_us = excluded.time_us, lookup = excluded.lookup,
            terms = excluded.terms, document = excluded.document, mark = excluded.mark;
    END IF;
    PERFORM pg_notify(p_channel, p_new_position || ' ' || p_tenant);
    IF is_wanted(p_tenant, p_channel) THEN
        RETURN 'wanted';
    END IF;
    RETURN 'ok';
END $$;
