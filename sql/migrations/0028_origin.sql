-- How a message came in, which decides who may sign it, and keys that wait for their record in DNS:
-- docs/decisions/0049-origin.md.

-- 1. The column. Mail with any other word is signed by nothing, so no constraint is needed: PostgreSQL would read it
-- anew for each group of messages.

ALTER TABLE messages ADD COLUMN origin text;
ALTER TABLE messages ALTER COLUMN origin SET STATISTICS 10;
COMMENT ON COLUMN messages.origin IS
    'How the message came in: stranger, network (relay.networks), certificate (a trusted one), user (who may send '
    'from its From), login (a user, and its From is not the user''s), sql, or queued (a DSN); null: unknown.';

-- 2. The one door takes it too. Calls without it store null, and nothing signs such mail.

DROP FUNCTION queue_put;
CREATE FUNCTION queue_put(
    -- of each message
    ids bigint[], sizes bigint[], utf8 boolean[], chunks integer[], traces text[], bodies bytea[],
    message_id_headers text[],
    -- of each row
    message_ids bigint[], senders text[], sender_domains text[], recipients text[], domains text[],
    priorities smallint[], metadata text[], holds text[] DEFAULT NULL,
    -- more of each message, which its rows have too; null: the columns have their defaults
    tenants text[] DEFAULT NULL, on_failed text[] DEFAULT NULL, once boolean[] DEFAULT NULL, logins text[] DEFAULT NULL,
    envids text[] DEFAULT NULL, rets text[] DEFAULT NULL, requiretls boolean[] DEFAULT NULL,
    -- more of each row
    notifies text[] DEFAULT NULL, orcpts text[] DEFAULT NULL,
    -- of each message
    origins text[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER  -- callers set plan_cache_mode = force_generic_plan
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    -- Chunks are written without a sync, so a crash before this statement can lose them.
    IF 0 < ANY (queue_put.chunks) THEN  -- mostly not, and a query costs what several rows do
        IF EXISTS (
            SELECT FROM unnest(ids, queue_put.chunks) AS message (id, number)
            WHERE number > 0
                AND number <> (SELECT count(*) FROM message_chunks WHERE message_id = message.id)
        ) THEN
            RAISE EXCEPTION 'chunks of a message are missing' USING
                ERRCODE = 'not_null_violation', TABLE = 'messages', COLUMN = 'chunks';
        END IF;
    END IF;
    -- The whole group fails if one id exists already, because the caller repeats a group then.
    WITH new_messages AS (
        INSERT INTO messages (id, size, utf8, chunks, trace, body, message_id_header, tenant,
            submitted_by, envid, ret, requiretls, origin)
        SELECT id, size, utf8, chunks, trace, body, header, coalesce(tenant, ''), login, envid, ret,
            coalesce(requiretls, false), origin
        FROM unnest(ids, sizes, queue_put.utf8, queue_put.chunks, traces, bodies, message_id_headers, tenants,
                logins, envids, rets, queue_put.requiretls, origins)
            AS message (id, size, utf8, chunks, trace, body, header, tenant, login, envid, ret, requiretls, origin)
    )
    INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, metadata,
        status, hold_reason, held_by, held_at, tenant, on_failed, once, notify, orcpt)
    SELECT message_id, sender, sender_domain, recipient, domain, priority, metadata::jsonb,
        CASE WHEN hold IS NULL THEN 'QUEUED' ELSE 'HOLD' END, hold,
        CASE WHEN hold IS NOT NULL THEN 'smtpd' END, CASE WHEN hold IS NOT NULL THEN now() END,
        coalesce(tenants[place], ''), coalesce(queue_put.on_failed[place], 'hold'),
        coalesce(queue_put.once[place], false), notify, orcpt
    FROM unnest(message_ids, senders, sender_domains, recipients, domains, priorities, queue_put.metadata, holds,
            notifies, orcpts)
        AS row (message_id, sender, sender_domain, recipient, domain, priority, metadata, hold, notify, orcpt)
    CROSS JOIN LATERAL array_position(ids, message_id) AS place;
END $$;
COMMENT ON FUNCTION queue_put IS
    'Stores a group of messages with all their rows. It checks nothing. '
    'The whole group fails if an id exists already, or if chunks of a message are missing.';
REVOKE EXECUTE ON FUNCTION queue_put FROM PUBLIC;

-- 3. submit() says that mail came by SQL, and no argument says anything else. Only the column is new in both functions.

DO $$
DECLARE
    each regproc;
    before text;
    after text;
BEGIN
    FOREACH each IN ARRAY ARRAY['pgmta.submit'::regproc, 'pgmta.submit_any'] LOOP
        before := pg_get_functiondef(each);
        after := regexp_replace(before, 'submitted_by\)(\s+VALUES \([^;]*\msession_user)\)', 'submitted_by, origin)\1, ''sql'')');
        IF after = before THEN
            RAISE EXCEPTION '% stores mail in an unknown way', each;
        END IF;
        EXECUTE after;
    END LOOP;
END $$;

-- 4. A user who is not bound to addresses says so. Until now null meant it.

UPDATE users SET senders = '{any}' WHERE senders IS NULL;
COMMENT ON COLUMN users.senders IS
    'Addresses and domains (@example.org) that the user may send from; null or empty: the name alone, if it is an '
    'address; {any}: any address, also for signatures (docs/dkim.md).';

-- smtpd asks for one user at a time, so that it can name no others
CREATE FUNCTION login_unbound(most integer) RETURNS SETOF text STABLE LANGUAGE sql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT name FROM users WHERE senders @> '{any}' AND NOT disabled ORDER BY name LIMIT most
$$;
COMMENT ON FUNCTION login_unbound IS 'Users who may send from any address, whom `smtpd check` names.';

-- 5. Receivers would find no record for the signatures of a key that is not in DNS yet.

ALTER TABLE dkim_keys ADD COLUMN unpublished boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN dkim_keys.unpublished IS
    'It signs nothing before `queuectl dkim test` has seen its record in DNS.';

ALTER FUNCTION grants() RENAME TO grants_0027;
COMMENT ON FUNCTION grants_0027() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('SELECT (origin) ON messages', 'pgmta_reader');
    PERFORM grant_to('INSERT (origin) ON messages', 'pgmta_smtpd');
    PERFORM grant_to('EXECUTE ON FUNCTION login_unbound', 'pgmta_smtpd');
    PERFORM grant_to('SELECT (unpublished) ON dkim_keys', 'pgmta_operator', 'pgmta_reader');
    PERFORM grant_to('INSERT (unpublished), UPDATE (unpublished) ON dkim_keys', 'pgmta_operator');
    RETURN grants_0027();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0027(), login_unbound FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;
