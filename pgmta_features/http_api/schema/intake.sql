-- Mail that comes by the HTTP API: api_submit() puts the requests of one group commit into the queue, each for its key.

CREATE TABLE api_requests (
    acting text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    ids bigint[] NOT NULL,
    problems jsonb,
    refused_early jsonb,
    PRIMARY KEY (acting, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = -1);
COMMENT ON TABLE api_requests IS
    'Requests of the last day with an Idempotency-Key that stored mail, and what answers them: a repetition gets the same. They '
    'are written in the commit of their mail, and by api_submit() alone.';
COMMENT ON COLUMN api_requests.acting IS 'Identity of the key of the API, key:NAME; each has its own Idempotency-Keys.';
COMMENT ON COLUMN api_requests.key IS 'The Idempotency-Key.';
COMMENT ON COLUMN api_requests.fingerprint IS 'SHA-256 of all that the request asks for: other content under the same key is a mistake.';
COMMENT ON COLUMN api_requests.requested_at IS 'When the transaction of its mail began.';
COMMENT ON COLUMN api_requests.ids IS 'The message id of each mail, null for a refused one.';
COMMENT ON COLUMN api_requests.problems IS 'The refused mails with their errors; null if there are none.';
COMMENT ON COLUMN api_requests.refused_early IS
    'Mails of the request that the API had refused before the database saw them; null: none.';

CREATE INDEX api_requests_requested_at ON api_requests (requested_at);
COMMENT ON INDEX api_requests_requested_at IS 'Requests whose time is over.';

CREATE UNLOGGED TABLE api_uploads (
    upload uuid NOT NULL,
    position integer NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(),
    data bytea NOT NULL,
    PRIMARY KEY (upload, position)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE api_uploads ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE api_uploads IS
    'Files and contents of requests that are under way, in pieces: so no process has one in memory as a whole. Without WAL: '
    'after a crash the clients have no answer yet, and repeat their requests.';
COMMENT ON COLUMN api_uploads.upload IS 'The file, a random UUID.';
COMMENT ON COLUMN api_uploads.position IS 'Order of its pieces, from 0.';
COMMENT ON COLUMN api_uploads.stored_at IS 'When the piece was stored.';
COMMENT ON COLUMN api_uploads.data IS 'Octets as received.';

CREATE FUNCTION api_upload(upload uuid, "position" integer, data bytea) RETURNS bigint LANGUAGE sql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    INSERT INTO api_uploads (upload, position, data) VALUES (api_upload.upload, api_upload.position, api_upload.data)
    ON CONFLICT DO NOTHING;  -- the answer to the first call was lost
    SELECT s.message_size FROM submit_settings AS s
$$;
COMMENT ON FUNCTION api_upload IS 'Stores the next piece of a file; returns the octets that a message may have.';

CREATE FUNCTION api_upload_removed(uploads uuid[]) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    DELETE FROM api_uploads WHERE upload = ANY (uploads)
$$;
COMMENT ON FUNCTION api_upload_removed IS 'Removes files of a request that was not completed.';

CREATE FUNCTION api_uploaded(uploads jsonb) RETURNS bytea[] LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    pair jsonb;
    content bytea;
    contents bytea[] := '{}';
BEGIN
    FOR pair IN SELECT jsonb_array_elements(uploads) LOOP
        SELECT string_agg(u.data, '' ORDER BY u.position) INTO content FROM api_uploads AS u
        WHERE u.upload = (pair ->> 0)::uuid;
        IF octet_length(content) IS DISTINCT FROM (pair ->> 1)::bigint THEN RETURN NULL; END IF;
        contents := contents || content;
    END LOOP;
    RETURN contents;
END $$;
COMMENT ON FUNCTION api_uploaded IS
    'The files of these uploads: pairs of a UUID and the number of octets. Null if one is not there as a whole: PostgreSQL has crashed.';

-- The outcome of a request: stored, replayed, other (the Idempotency-Key was used for other content), busy (another process works
-- on the same key), lost (its files are gone) or revoked (its key of the API has ended meanwhile).
CREATE FUNCTION api_submit(sets jsonb) RETURNS TABLE (
    "set" integer, request integer, outcome text, ids bigint[], problems jsonb, suppressed jsonb, refused_early jsonb
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on SET enable_seqscan = off AS $$  -- so is all that it calls
DECLARE
    one jsonb;
    number integer;
BEGIN
    FOR one, number IN SELECT s, n - 1 FROM jsonb_array_elements(sets) WITH ORDINALITY AS each (s, n) ORDER BY n LOOP
        PERFORM set_config('pgmta.acting', one ->> 'acting', true);
        IF one ? 'requests' THEN
            RETURN QUERY SELECT number, k.* FROM api_put_requests(one) AS k;
        ELSE
            RETURN QUERY SELECT number, 0, c.*, NULL::jsonb FROM api_put_call(one) AS c;
        END IF;
        IF one ? 'uploads' THEN
            DELETE FROM api_uploads AS u WHERE u.upload IN (
                SELECT (pair ->> 0)::uuid FROM jsonb_array_elements(one -> 'uploads') AS pair);
        END IF;
    END LOOP;
    PERFORM set_config('pgmta.acting', '', true);
END $$;
COMMENT ON FUNCTION api_submit IS
    'Puts the requests of a group into the queue in one transaction, each set for the key of the API whose identity it names. A set '
    'has `mails` as submit_mails() takes them and the UUID of its `call`, or `requests` that have an Idempotency-Key each. '
    'Repeat the same group after a lost answer: nothing is stored twice.';

CREATE FUNCTION api_put_call(one jsonb, OUT outcome text, OUT ids bigint[], OUT problems jsonb, OUT suppressed jsonb)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    mails CONSTANT jsonb := one -> 'mails';
    call CONSTANT uuid := one ->> 'call';
    contents bytea[];
BEGIN
    LOOP
        -- waits only for an open transaction that has the same call
        INSERT INTO submit_calls (call, login, fingerprint) VALUES (call, acting(), call_fingerprint(mails, '{}'))
        ON CONFLICT ON CONSTRAINT submit_calls_pkey DO NOTHING;
        EXIT WHEN FOUND;
        SELECT 'stored', c.ids, c.problems, c.suppressed INTO outcome, ids, problems, suppressed
        FROM submit_called(call, call_fingerprint(mails, '{}')) AS c;
        IF ids IS NOT NULL THEN RETURN; END IF;  -- otherwise the call has expired meanwhile
    END LOOP;
    IF api_key_holds(acting()) THEN contents := api_uploaded(coalesce(one -> 'uploads', '[]')); ELSE outcome := 'revoked'; END IF;
    IF contents IS NULL THEN
        outcome := coalesce(outcome, 'lost');
        DELETE FROM submit_calls AS c WHERE c.call = call;
        RETURN;
    END IF;
    SELECT 'stored', p.* INTO outcome, ids, problems, suppressed FROM api_put(mails, contents, one -> 'senders') AS p;
    UPDATE submit_calls AS c SET ids = api_put_call.ids, problems = api_put_call.problems WHERE c.call = call;
END $$;
COMMENT ON FUNCTION api_put_call IS 'Part of api_submit(): a set of requests without an Idempotency-Key.';

CREATE FUNCTION api_put_requests(one jsonb) RETURNS TABLE (
    request integer, outcome text, ids bigint[], problems jsonb, suppressed jsonb, refused_early jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    requests CONSTANT jsonb := one -> 'requests';
    who CONSTANT text := acting();
    -- Any login may take advisory locks. Those who submit by SQL can't read this, so they don't know the number of a lock.
    salt CONSTANT bigint := coalesce((
        SELECT (extract(epoch FROM k.created_at) * 1000000)::bigint FROM api_keys AS k WHERE k.name = substr(who, 5)), 0);
    -- two requests with one key never wait for each other: the insert of the second one would
    free CONSTANT boolean[] := ARRAY(
        SELECT pg_try_advisory_xact_lock(hashtextextended(concat(who, ' ', r ->> 'key'), salt))
        FROM jsonb_array_elements(requests) WITH ORDINALITY AS each (r, n) ORDER BY n);
    fresh integer[];
    holds boolean;
    contents bytea[];
    put record;
BEGIN
    -- a statement after that of the locks, because its snapshot has to be newer
    SELECT array_agg(n ORDER BY n) INTO fresh
    FROM jsonb_array_elements(requests) WITH ORDINALITY AS each (r, n)
    WHERE free[n] AND (SELECT true FROM api_requests AS k WHERE k.acting = who AND k.key = r ->> 'key') IS NULL;
    IF cardinality(fresh) IS DISTINCT FROM jsonb_array_length(requests) THEN
        RETURN QUERY SELECT n::integer - 1, CASE WHEN NOT free[n] THEN 'busy'
                WHEN k.fingerprint <> decode(r ->> 'fingerprint', 'hex') THEN 'other' ELSE 'replayed' END,
            k.ids, k.problems, mails_suppressed(k.ids, k.requested_at), k.refused_early
        FROM jsonb_array_elements(requests) WITH ORDINALITY AS each (r, n)
            LEFT JOIN api_requests AS k ON k.acting = who AND k.key = r ->> 'key'
        WHERE n <> ALL (coalesce(fresh, '{}'));
        PERFORM prove_earlier();
    END IF;
    IF fresh IS NULL THEN RETURN; END IF;
    holds := api_key_holds(who);
    IF holds THEN contents := api_uploaded(coalesce(one -> 'uploads', '[]')); END IF;
    IF contents IS NULL THEN
        RETURN QUERY SELECT n - 1, CASE WHEN holds THEN 'lost' ELSE 'revoked' END, NULL::bigint[], NULL::jsonb, NULL::jsonb, NULL::jsonb FROM unnest(fresh) AS n;
        RETURN;
    END IF;
    SELECT p.* INTO put FROM api_put((
        SELECT jsonb_agg(mail ORDER BY n, place)
        FROM unnest(fresh) AS n, jsonb_array_elements(requests -> (n - 1) -> 'mails') WITH ORDINALITY AS each (mail, place)
    ), contents, one -> 'senders') AS p;
    RETURN QUERY WITH answered AS MATERIALIZED (
        SELECT n, r, put.ids[start + 1 : start + number] AS ids, api_slice(put.problems, start, number) AS problems,
            api_slice(put.suppressed, start, number) AS suppressed
        FROM (
            SELECT n, r, number::integer, (sum(number) OVER (ORDER BY n) - number)::integer AS start
            FROM unnest(fresh) AS n, LATERAL (SELECT requests -> (n - 1) AS r) AS given,
                LATERAL (SELECT jsonb_array_length(r -> 'mails') AS number) AS counted
        ) AS placed
    ), kept AS (
        -- a request of which nothing is stored may be mended and sent again with its key
        INSERT INTO api_requests (acting, key, fingerprint, ids, problems, refused_early)
        SELECT who, r ->> 'key', decode(r ->> 'fingerprint', 'hex'), ids, problems, r -> 'refused_early'
        FROM answered WHERE cardinality(array_remove(ids, NULL)) > 0
    )
    SELECT n - 1, 'stored', ids, problems, suppressed, r -> 'refused_early' FROM answered;
END $$;
COMMENT ON FUNCTION api_put_requests IS 'Part of api_submit(): a set of requests that have an Idempotency-Key each.';

CREATE FUNCTION api_slice(entries jsonb, start integer, number integer) RETURNS jsonb IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN entries IS NOT NULL THEN (
        SELECT jsonb_agg(jsonb_set(entry, '{index}', to_jsonb((entry ->> 'index')::integer - start)) ORDER BY place)
        FROM jsonb_array_elements(entries) WITH ORDINALITY AS each (entry, place)
        WHERE (entry ->> 'index')::integer BETWEEN start AND start + number - 1) END
$$;
COMMENT ON FUNCTION api_slice IS
    'The problems or suppressed recipients of some of the mails of submit_mails(), whose places count from `start`.';

CREATE FUNCTION api_put(
    mails jsonb, contents bytea[], senders jsonb, OUT ids bigint[], OUT problems jsonb, OUT suppressed jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    number CONSTANT integer := jsonb_array_length(mails);
    judged CONSTANT boolean := jsonb_typeof(senders) = 'array' AND mails @? '$[*].template';
    part CONSTANT integer := 32;
    argument text;
    reason text;
    details text;
    advice text;
BEGIN
    IF judged AND number > part THEN  -- by a template they go one by one anyway
        SELECT p.* INTO ids, problems, suppressed FROM api_put_parts(mails, contents, senders, part) AS p;
        RETURN;
    END IF;
    SELECT m.* INTO ids, problems, suppressed FROM submit_mails(mails, contents) AS m;
    IF judged THEN
        PERFORM api_check_author(m.id, senders) FROM unnest(ids) AS stored (one) JOIN messages AS m ON m.id = one
        WHERE m.template_id IS NOT NULL;
    END IF;
-- Errors about a mail, also those of an operator's triggers and constraints. All others are about the server.
EXCEPTION WHEN data_exception OR integrity_constraint_violation OR plpgsql_error OR program_limit_exceeded
        OR with_check_option_violation OR triggered_action_exception OR cardinality_violation OR SQLSTATE 'PG403' THEN
    IF number > 1 THEN
        SELECT p.* INTO ids, problems, suppressed
        FROM api_put_parts(mails, contents, senders, CASE WHEN number > part THEN part ELSE 1 END) AS p;
        RETURN;
    END IF;
    GET STACKED DIAGNOSTICS argument = COLUMN_NAME, reason = MESSAGE_TEXT, details = PG_EXCEPTION_DETAIL,
        advice = PG_EXCEPTION_HINT;
    ids := ARRAY[NULL::bigint];
    problems := jsonb_build_array(jsonb_build_object('index', 0, 'argument', argument, 'code', sqlstate, 'message', reason,
        'detail', nullif(details, ''), 'hint', nullif(advice, '')));
    suppressed := NULL;
END $$;
COMMENT ON FUNCTION api_put IS
    'submit_mails(), where a mail that an operator''s trigger refuses stops no other, and where From of a template has to be one of '
    'the senders of the key (no array: any). Only the part of the mails that has a bad one is done again one by one.';

CREATE FUNCTION api_put_parts(
    mails jsonb, contents bytea[], senders jsonb, part integer, OUT ids bigint[], OUT problems jsonb, OUT suppressed jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    those jsonb;
    start integer;
    put record;
BEGIN
    ids := '{}';
    problems := '[]';
    suppressed := '[]';
    FOR those, start IN
        SELECT jsonb_agg(mail ORDER BY n), min(n) - 1 FROM jsonb_array_elements(mails) WITH ORDINALITY AS each (mail, n)
        GROUP BY (n - 1) / part ORDER BY min(n)
    LOOP
        SELECT p.* INTO put FROM api_put(those, contents, senders) AS p;
        ids := ids || put.ids;
        problems := problems || coalesce(api_slice(put.problems, -start, start + jsonb_array_length(those)), '[]');
        suppressed := suppressed || coalesce(api_slice(put.suppressed, -start, start + jsonb_array_length(those)), '[]');
    END LOOP;
    problems := nullif(problems, '[]');
    suppressed := nullif(suppressed, '[]');
END $$;
COMMENT ON FUNCTION api_put_parts IS 'Part of api_put(): so many mails at once.';

CREATE FUNCTION api_check_author(message_id bigint, senders jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    sender text;
    author text;
    bad text;
    nearest text;
    allowed CONSTANT text[] := ARRAY(SELECT jsonb_array_elements_text(senders));
BEGIN
    SELECT t.sender, CASE WHEN word IS NULL THEN replace(address, '{{{{', '{{') ELSE m.params -> 'words' ->> word END
    INTO sender, author
    FROM messages AS m JOIN templates AS t ON t.id = m.template_id,
        -- pgmta/compose/template.py reads it in the same way: an address is a word as a whole, or has none
        LATERAL (SELECT btrim(CASE WHEN t.from_field ~ '<.*>[ \t]*$' THEN rtrim(btrim(split_part(t.from_field, '<', -1), E' \t'), '>')
            ELSE t.from_field END, E' \t') AS address) AS written,
        LATERAL (SELECT substring(address FROM '^\{\{[ \t]*([a-z][a-z0-9_]*)[ \t]*\}\}$' COLLATE "C") AS word) AS named
    WHERE m.id = api_check_author.message_id;
    bad := (SELECT address FROM unnest(ARRAY[nullif(sender, ''), coalesce(author, 'none')]) AS address
        WHERE address IS NOT NULL AND mailbox_key(address) <> ALL (allowed)
            AND '@' || coalesce(mailbox_domain(address COLLATE "C"), '') <> ALL (allowed) LIMIT 1);
    IF bad IS NULL THEN RETURN; END IF;
    nearest := nearest_word(bad, allowed);
    PERFORM submit_refuse('template', 'its mail is from an address that the key may not send from',
        'Address: ' || to_json(left(bad, 100)),
        coalesce('The nearest sender of the key is ' || nearest || '.', 'The key has the senders '
            || array_to_string(allowed[1:10], ', ') || '.'), 'PG403');
END $$;
COMMENT ON FUNCTION api_check_author IS
    'Raises the error of a message by a template whose sender or From is none of the senders of the key.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES
    ('api_requests', '{key}', 'row', 'true'),
    ('api_requests', '{problems,refused_early}', 'words', 'true');

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION api_submit', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_upload', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_upload_removed', 'pgmta_api', 'EXECUTE'),
    -- FOR UPDATE needs this right, as for the table messages
    ('api_requests', 'pgmta_queued', 'SELECT (acting, key, requested_at), UPDATE (requested_at), DELETE'),
    ('api_uploads', 'pgmta_queued', 'SELECT (upload, position, stored_at), DELETE');
