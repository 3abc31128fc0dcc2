-- Mail whose header says `TLS-Required: No` goes without TLS too: docs/decisions/0059-tls-required.md.

-- 1. The column.

ALTER TABLE messages ADD COLUMN tls_optional boolean NOT NULL DEFAULT false;
ALTER TABLE messages ALTER COLUMN tls_optional SET STATISTICS 0;
COMMENT ON COLUMN messages.tls_optional IS
    'Its header says TLS-Required: No, and MAIL had no REQUIRETLS (RFC 8689): DANE and MTA-STS may fail.';

-- 2. The one door takes it too.

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
    origins text[] DEFAULT NULL, tls_optional boolean[] DEFAULT NULL
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
            submitted_by, envid, ret, requiretls, origin, tls_optional)
        SELECT id, size, utf8, chunks, trace, body, header, coalesce(tenant, ''), login, envid, ret,
            coalesce(requiretls, false), origin, coalesce(tls_optional, false)
        FROM unnest(ids, sizes, queue_put.utf8, queue_put.chunks, traces, bodies, message_id_headers, tenants,
                logins, envids, rets, queue_put.requiretls, origins, queue_put.tls_optional)
            AS message (id, size, utf8, chunks, trace, body, header, tenant, login, envid, ret, requiretls, origin,
                tls_optional)
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

-- 3. submit() looks for the field. It reads no more of usual mail than before.

CREATE FUNCTION submit_tls_optional(header text) RETURNS boolean LANGUAGE sql AS $$
    SELECT header ~ '(?in)^tls-required[ \t]*:([ \t]*\r\n)?[ \t]*no[ \t]*(?=\r|$)(?!\r\n[ \t])' COLLATE "C"
        AND regexp_count(header, '^tls-required[ \t]*:' COLLATE "C", 1, 'in') = 1
$$;
COMMENT ON FUNCTION submit_tls_optional IS
    'Whether a header has the only field TLS-Required: No (RFC 8689, section 3). pgmta/header.py finds the same.';
REVOKE EXECUTE ON FUNCTION submit_tls_optional FROM PUBLIC;

DO $$
DECLARE
    usual text := pg_get_functiondef('pgmta.submit'::regproc);
    other text := pg_get_functiondef('pgmta.submit_any'::regproc);
    usual_now text := replace(usual, $old$'(?in)^received' COLLATE$old$, $new$'(?in)^(received|tls-required)' COLLATE$new$);
    other_now text := regexp_replace(other, 'submitted_by, origin\)(\s+VALUES \([^;]*\msession_user, ''sql'')\)',
        $new$submitted_by, origin,
        tls_optional)\1,
        submit_tls_optional(encode(substring(content FROM 1 FOR position('\\x0d0a0d0a'::bytea IN content)), 'escape')))$new$);
BEGIN
    IF usual_now = usual OR other_now = other THEN
        RAISE EXCEPTION 'submit or submit_any stores mail in an unknown way';
    END IF;
    EXECUTE usual_now;
    EXECUTE other_now;
END $$;

-- 4. Rights.

ALTER FUNCTION grants() RENAME TO grants_0044;
COMMENT ON FUNCTION grants_0044() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('SELECT (tls_optional) ON messages', 'pgmta_reader');
    RETURN grants_0044();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0044() FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;
