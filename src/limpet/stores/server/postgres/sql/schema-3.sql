-- Version 3: one message costs the server less. No row changes, and whoever has the store open goes on meanwhile and later.

-- The condition of a trigger is read and made ready at every UPDATE that it is asked for. This one is asked only where an
-- UPDATE names the column, as `append` below does not: whoever writes another that changes terms has to name it.
CREATE OR REPLACE TRIGGER terms_change AFTER UPDATE OF terms ON projections FOR EACH ROW
WHEN (OLD.terms <> NEW.terms) EXECUTE FUNCTION follow_terms();

-- As in version 2, but that what comes alone, the usual case, is put by VALUES, which takes less than a SELECT from unnest;
-- and that a row is changed by its key only if its terms stay, else put, whatever is there.
CREATE OR REPLACE FUNCTION append(
    p_tenant text, p_channel text, p_position bigint, p_link bytea, p_epoch bigint, p_new_position bigint,
    p_new_link bytea, p_events new_event[], p_claims new_claim[], p_projections new_projection[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
    event new_event;
    claimed new_claim;
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
    IF cardinality(p_events) = 1 THEN
        event := p_events[1];
        INSERT INTO events (tenant, position, stream, version, ordinal, header, payload, salt, digest, link)
        VALUES (p_tenant, event.position, event.stream, event.version, event.ordinal, event.header, event.payload,
                event.salt, event.digest, event.link);
    ELSE
        INSERT INTO events (tenant, position, stream, version, ordinal, header, payload, salt, digest, link)
        SELECT p_tenant, n.* FROM unnest(p_events) AS n;
    END IF;
    IF cardinality(p_claims) = 1 THEN
        claimed := p_claims[1];
        INSERT INTO claims (tenant, stretch, claim, version)
        VALUES (p_tenant, claimed.stretch, claimed.claim, claimed.version);
    ELSIF p_claims IS NOT NULL THEN
        INSERT INTO claims (tenant, stretch, claim, version) SELECT p_tenant, n.* FROM unnest(p_claims) AS n;
    END IF;
    IF cardinality(p_projections) = 1 THEN
        -- As a rule it is there, with the same terms: to change it by its key costs less than to put it, whatever is there.
        one := p_projections[1];
        UPDATE projections AS p SET owner = one.owner, status = one.status, moment = one.time_us >> 20,
            time_us = one.time_us, lookup = one.lookup, document = one.document, mark = one.mark
        WHERE p.tenant = p_tenant AND p.kind = one.kind AND p.id = one.id AND p.terms = one.terms;
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
