-- Suppressions: addresses that get no mail, by tenant and scope. All mail is asked at submission and before each attempt.

CREATE TABLE suppressions (
    address text COLLATE "C" NOT NULL CONSTRAINT suppressions_address CHECK (
        address = lower(address COLLATE "C") AND octet_length(address) <= 254
        AND address ~ '^([^[:cntrl:]]+@[^@[:space:][:cntrl:]]+|[+][1-9][0-9]{6,14}|hmac:[0-9a-f]{64})$'),
    tenant text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT suppressions_tenant CHECK (
        octet_length(tenant) <= 64 AND tenant ~ '^([*]|[A-Za-z0-9][A-Za-z0-9._@+-]*)?$'),
    scope text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT suppressions_scope CHECK (
        scope ~ '^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$'),
    reason text COLLATE "C" NOT NULL CONSTRAINT suppressions_reason CHECK (
        reason IN ('unsubscribed', 'complained', 'bounced', 'soft_bounced', 'forgotten', 'operator')),
    source text NOT NULL DEFAULT '' CONSTRAINT suppressions_source CHECK (
        length(source) <= 200 AND source !~ '[[:cntrl:]]'),
    at timestamptz NOT NULL DEFAULT now(),
    until timestamptz,
    released_at timestamptz,
    PRIMARY KEY (address, tenant, scope)
);
CREATE INDEX suppressions_at ON suppressions USING brin (at);
COMMENT ON INDEX suppressions_at IS 'What was added lately: queuectl doctor.';
COMMENT ON TABLE suppressions IS
    'Addresses that get no mail. A row stays after its release, so that an older fact cannot bring it back.';
COMMENT ON COLUMN suppressions.address IS
    'mailbox_key() of the mailbox; or hmac: and its keyed hash, if the person had to be forgotten.';
COMMENT ON COLUMN suppressions.tenant IS 'Whose mail it is about; empty: mail without a tenant; *: all tenants.';
COMMENT ON COLUMN suppressions.scope IS 'The kind of mail, of those in suppression_scopes, or transactional; empty: all kinds.';
COMMENT ON COLUMN suppressions.reason IS 'unsubscribed, complained, bounced, soft_bounced, forgotten or operator.';
COMMENT ON COLUMN suppressions.source IS
    'The proof: message N, unsubscribe link of message N, campaign N recipient M, import FILE, or words of an operator.';
COMMENT ON COLUMN suppressions.at IS 'When it happened: of two facts the newer one wins, unless it ends earlier.';
COMMENT ON COLUMN suppressions.until IS 'When it ends by itself; null: never.';
COMMENT ON COLUMN suppressions.released_at IS 'When an operator released it; null: it holds.';
COMMENT ON CONSTRAINT suppressions_address ON suppressions IS 'A mailbox without upper case, a telephone number, or a keyed hash.';
COMMENT ON CONSTRAINT suppressions_reason ON suppressions IS 'The six reasons.';
COMMENT ON CONSTRAINT suppressions_scope ON suppressions IS 'Up to 64 letters, digits and . _ -, or empty.';
COMMENT ON CONSTRAINT suppressions_source ON suppressions IS 'Up to 200 characters, none of which is a control.';
COMMENT ON CONSTRAINT suppressions_tenant ON suppressions IS 'As submit() takes it, or *.';

CREATE TABLE suppression_scopes (
    tenant text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT suppression_scopes_tenant CHECK (
        octet_length(tenant) <= 64 AND tenant ~ '^([*]|[A-Za-z0-9][A-Za-z0-9._@+-]*)?$'),
    name text COLLATE "C" NOT NULL CONSTRAINT suppression_scopes_name CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'),
    PRIMARY KEY (tenant, name)
);
COMMENT ON TABLE suppression_scopes IS
    'Kinds of mail that suppressions may name. A campaign declares its own. Mail without a scope has transactional, which all '
    'tenants have.';
COMMENT ON COLUMN suppression_scopes.tenant IS 'Whose mail it is; empty: mail without a tenant; *: all tenants.';
COMMENT ON COLUMN suppression_scopes.name IS 'The scope, such as news.';
COMMENT ON CONSTRAINT suppression_scopes_name ON suppression_scopes IS 'Up to 64 letters, digits and . _ -.';
COMMENT ON CONSTRAINT suppression_scopes_tenant ON suppression_scopes IS 'As submit() takes it, or *.';

CREATE FUNCTION suppression_scope(name text, tenant text DEFAULT '') RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    broken text;
BEGIN
    INSERT INTO suppression_scopes (tenant, name)
    SELECT suppression_scope.tenant, suppression_scope.name
    WHERE suppression_scope.name IS DISTINCT FROM 'transactional' ON CONFLICT DO NOTHING;
    IF FOUND THEN RETURN true; END IF;
    PERFORM prove_earlier();
    RETURN false;
EXCEPTION WHEN check_violation OR not_null_violation THEN
    GET STACKED DIAGNOSTICS broken = CONSTRAINT_NAME;
    PERFORM submit_refuse(CASE WHEN broken = 'suppression_scopes_tenant' OR suppression_scope.tenant IS NULL THEN 'tenant' ELSE 'scope' END,
        'it is no name', NULL, 'Up to 64 letters, digits and . _ -; a tenant may have @ + too.');
END $$;
COMMENT ON FUNCTION suppression_scope IS
    'Declares a scope, and returns whether it is new. Mail and suppressions may only name scopes that were declared.';

CREATE FUNCTION suppression_scope_known(name text, tenant text DEFAULT '') RETURNS boolean LANGUAGE sql STABLE
    SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT name IN ('', 'transactional') OR EXISTS (
        SELECT FROM suppression_scopes AS s
        WHERE s.name = suppression_scope_known.name AND (s.tenant IN (suppression_scope_known.tenant, '*')
            OR suppression_scope_known.tenant = '*'))
$$;
COMMENT ON FUNCTION suppression_scope_known IS
    'Whether mail of a tenant may have a scope; tenant *: whether that of any tenant may. The empty one is every scope.';

CREATE FUNCTION suppression_scope_check(name text, tenant text DEFAULT '', argument text DEFAULT 'scope') RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    known text[];
BEGIN
    IF suppression_scope_known(name, tenant) THEN RETURN; END IF;
    known := ARRAY(
        SELECT DISTINCT s.name FROM suppression_scopes AS s
        WHERE s.tenant IN (suppression_scope_check.tenant, '*') OR suppression_scope_check.tenant = '*'
        ORDER BY s.name LIMIT 1000) || '{transactional}';
    PERFORM submit_refuse(argument, 'there is no such scope', format('Scope %s%s.', to_json(left(name, 100)),
            ' of tenant ' || to_json(left(nullif(tenant, ''), 100))),
        coalesce('Did you mean ' || nearest_word(name, known) || '?', 'There is ' || array_to_string(known[:20], ', ') || '.')
        || ' queuectl suppression scope add declares one.');
END $$;
COMMENT ON FUNCTION suppression_scope_check IS
    'Raises the error of a scope that was not declared, which names the nearest one.';

CREATE TABLE soft_bounces (
    address text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    day date NOT NULL,
    number integer NOT NULL,
    PRIMARY KEY (address, tenant, day)
);
COMMENT ON TABLE soft_bounces IS 'Failures for good of full mailboxes. So many on so many days suppress: suppressions.soft_bounces.';
COMMENT ON COLUMN soft_bounces.address IS 'mailbox_key() of the mailbox.';
COMMENT ON COLUMN soft_bounces.tenant IS 'Whose mail it was; empty: mail without a tenant.';
COMMENT ON COLUMN soft_bounces.day IS 'The day (UTC).';
COMMENT ON COLUMN soft_bounces.number IS 'Failures on this day.';
CREATE INDEX soft_bounces_day ON soft_bounces (day);
COMMENT ON INDEX soft_bounces_day IS 'Days that count no more.';

CREATE TABLE suppression_sieve (
    part integer NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    bits bit(2048) NOT NULL,
    changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (part, number)
);
COMMENT ON TABLE suppression_sieve IS
    'A bit for each address of suppressions by its SHA-256, and for each person who had to be forgotten, who is nowhere else: '
    'without it the address is not there. All parts have 20 MB, which stay in memory where the index of ten million addresses does '
    'not. No bit is ever cleared. Processes of queued have a copy.';
COMMENT ON COLUMN suppression_sieve.part IS 'The first 16 bits of the hash; a part that is not there has no bit.';
COMMENT ON COLUMN suppression_sieve.number IS
    'Tells rows of a part apart. There is a second one if a transaction came while another one had locked the first.';
COMMENT ON SEQUENCE suppression_sieve_number_seq IS 'Numbers the rows of suppression_sieve.';
COMMENT ON COLUMN suppression_sieve.bits IS 'The next 11 bits say which one.';
COMMENT ON COLUMN suppression_sieve.changed IS 'The transaction that wrote the row: sieve_news() finds the latest.';
CREATE INDEX suppression_sieve_changed ON suppression_sieve (changed);
COMMENT ON INDEX suppression_sieve_changed IS 'What processes have not seen yet.';

CREATE FUNCTION sieve_hash(key text) RETURNS bytea STABLE PARALLEL SAFE RETURN sha256(convert_to(key, 'UTF8'));
COMMENT ON FUNCTION sieve_hash IS 'The SHA-256 of a mailbox_key(): it says which bit the address has.';

CREATE FUNCTION sieve_part(hash bytea) RETURNS integer IMMUTABLE PARALLEL SAFE
RETURN get_byte(hash, 0) * 256 + get_byte(hash, 1);
COMMENT ON FUNCTION sieve_part IS 'The part of an address, by its hash.';

CREATE FUNCTION sieve_place(hash bytea) RETURNS integer IMMUTABLE PARALLEL SAFE
RETURN get_byte(hash, 2) % 8 * 256 + get_byte(hash, 3);
COMMENT ON FUNCTION sieve_place IS 'The place of the bit of an address in its part, by its hash.';

-- a plan that was made for a small sieve would later read all of it
CREATE FUNCTION sieve_add(parts integer[], masks bit[]) RETURNS void LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    -- Of a part whose rows another transaction has locked there will be one more: an open transaction with many addresses locks
    -- most parts, and no outcome may wait for it.
    numbers CONSTANT bigint[] := ARRAY(
        SELECT (SELECT s.number FROM suppression_sieve AS s WHERE s.part = n.part LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
        FROM unnest(parts) WITH ORDINALITY AS n (part, place) ORDER BY n.place);
BEGIN
    UPDATE suppression_sieve AS s SET bits = s.bits | n.bits, changed = pg_current_xact_id()
    FROM unnest(parts, numbers, masks) AS n (part, number, bits) WHERE s.part = n.part AND s.number = n.number;
    INSERT INTO suppression_sieve (part, bits)
    SELECT n.part, n.bits FROM unnest(parts, numbers, masks) AS n (part, number, bits) WHERE n.number IS NULL;
END $$;
COMMENT ON FUNCTION sieve_add IS 'Sets bits in parts of the sieve, each of which is given once.';

CREATE FUNCTION sieve_news(seen pg_snapshot, OUT known pg_snapshot, OUT parts integer[], OUT bits bytea[]) LANGUAGE plpgsql STABLE
    SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    known := pg_current_snapshot();
    IF seen IS NULL THEN
        SELECT array_agg(s.part), array_agg(substr(bit_send(s.bits), 5)) INTO parts, bits FROM suppression_sieve AS s;
    ELSE
        -- The transactions that `seen` does not see, in two looks at the index: all since the oldest open one would be many. Rows
        -- from a dump have numbers of another server, which `known` does not reach.
        SELECT array_agg(n.part), array_agg(substr(bit_send(n.bits), 5)) INTO parts, bits
        FROM (
            SELECT s.part, s.bits FROM suppression_sieve AS s
            WHERE s.changed >= pg_snapshot_xmax(seen) AND s.changed < pg_snapshot_xmax(known)
            UNION ALL
            SELECT s.part, s.bits FROM suppression_sieve AS s WHERE s.changed = ANY (ARRAY(SELECT pg_snapshot_xip(seen)))
        ) AS n;
    END IF;
END $$;
COMMENT ON FUNCTION sieve_news IS
    'The parts of the sieve that were committed since an answer to the same session with this `known`; null: all. A part may come '
    'in several rows, and one that came may come again: the bits of all count. The numbers of transactions mean nothing to another '
    'session: another server may answer it, or one that lost its last commits in a crash.';

CREATE FUNCTION suppressions_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    parts integer[];
    masks bit(2048)[];
BEGIN
    SELECT array_agg(n.part), array_agg(n.bits) INTO parts, masks
    FROM (
        SELECT h.part, bit_or(set_bit(0::bit(2048), h.place, 1)) AS bits
        FROM added AS a, LATERAL (SELECT sieve_hash(a.address) AS hash OFFSET 0) AS f,
            LATERAL (SELECT sieve_part(f.hash) AS part, sieve_place(f.hash) AS place OFFSET 0) AS h
        WHERE (SELECT bool_or(get_bit(s.bits, h.place) = 1) FROM suppression_sieve AS s WHERE s.part = h.part) IS NOT TRUE
        GROUP BY h.part
    ) AS n;
    IF parts IS NOT NULL THEN PERFORM sieve_add(parts, masks); END IF;
    IF EXISTS (SELECT FROM added) THEN PERFORM notify_channel('pgmta_orders'); END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION suppressions_changed IS 'Sets the bits of addresses, and tells every process, which looks at its rows again.';
CREATE TRIGGER suppressions_added AFTER INSERT ON suppressions REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION suppressions_changed();
CREATE TRIGGER suppressions_changed AFTER UPDATE ON suppressions REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION suppressions_changed();
COMMENT ON TRIGGER suppressions_added ON suppressions IS 'No statement can leave an address out of the sieve.';
COMMENT ON TRIGGER suppressions_changed ON suppressions IS 'Also if an address is changed by hand.';

CREATE FUNCTION suppressed_because(tenants text[], scopes text[], addresses text[]) RETURNS text[] LANGUAGE plpgsql STABLE
    SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    forgotten CONSTANT boolean := EXISTS (SELECT FROM suppressions AS s WHERE s.address >= 'hmac:' AND s.address < 'hmac;');
BEGIN
    RETURN ARRAY(
        SELECT CASE WHEN k.key = '' THEN 'suppressed: forgotten' WHEN EXISTS (
                SELECT FROM suppression_sieve AS v
                WHERE v.part = sieve_part(h.hash) AND get_bit(v.bits, sieve_place(h.hash)) = 1
            ) THEN (
                SELECT suppression_words(s.at, s.reason, s.source) FROM suppressions AS s
                WHERE s.address IN (k.key, CASE WHEN forgotten THEN mailbox_hash(k.key) END)
                    AND s.tenant IN (coalesce(a.tenant, ''), '*') AND s.scope IN (coalesce(a.scope, ''), '')
                    AND s.released_at IS NULL AND (s.until IS NULL OR s.until > now())
                ORDER BY s.at LIMIT 1
            ) END
        FROM unnest(addresses, tenants, scopes) WITH ORDINALITY AS a (address, tenant, scope, n),
            LATERAL (SELECT mailbox_key(a.address) AS key OFFSET 0) AS k,
            LATERAL (SELECT sieve_hash(k.key) AS hash OFFSET 0) AS h
        ORDER BY a.n);
END $$;
COMMENT ON FUNCTION suppressed_because IS
    'Why each of these addresses gets no mail of its tenant and scope, in their order, as logs and DSNs have it: suppressed '
    'since 2026-11-03 14:02 UTC: complained (message 12). Null: it gets mail. The empty one, of a forgotten person, never does.';

CREATE FUNCTION suppression_words(at timestamptz, reason text, source text) RETURNS text STABLE
RETURN concat('suppressed since ', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"'), ': ', reason,
    ' (' || nullif(source, '') || ')');
COMMENT ON FUNCTION suppression_words IS 'How logs, status() and DSNs name a suppression with its proof.';

CREATE FUNCTION suppression_message(source text) RETURNS bigint STABLE
RETURN substring(source FROM 'message ([0-9]{1,18})$')::bigint;
COMMENT ON FUNCTION suppression_message IS 'messages.id of the mail that a proof names; null: it names none. Features that send mail add theirs.';

CREATE FUNCTION suppressed(tenant text, scope text, addresses text[]) RETURNS boolean[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(SELECT a.words IS NOT NULL
        FROM unnest(pgmta.suppressed_because(array_fill(tenant, ARRAY[cardinality(addresses)]),
            array_fill(scope, ARRAY[cardinality(addresses)]), addresses))
            WITH ORDINALITY AS a (words, n) ORDER BY a.n);
END $$;
COMMENT ON FUNCTION suppressed IS 'Whether each of these addresses gets no mail of this tenant and scope, in their order.';

CREATE FUNCTION suppressions_there() RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$ SELECT EXISTS (SELECT FROM suppressions) $$;
COMMENT ON FUNCTION suppressions_there IS 'Whether there is any suppression, released ones too. Without any, no row is looked at.';

CREATE FUNCTION row_address(recipient text, domain text) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN right(recipient, length(domain)) = domain OR strpos(recipient, '@') = 0 THEN recipient
    ELSE left(recipient, -length(split_part(recipient, '@', -1))) || domain END;
COMMENT ON FUNCTION row_address IS
    'The recipient of a row with its normalised domain, which suppressions have: that of mail by SMTPUTF8 may be beyond ASCII.';

CREATE FUNCTION mail_scope(metadata jsonb) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN coalesce(metadata ->> '_scope', 'transactional');
COMMENT ON FUNCTION mail_scope IS 'The scope of a row, by its metadata.';

CREATE FUNCTION suppressible(address text, tenant text) RETURNS boolean IMMUTABLE PARALLEL SAFE
RETURN mailbox_domain(address COLLATE "C") IS NOT NULL AND tenant ~ '^([A-Za-z0-9][A-Za-z0-9._@+-]{0,63})?$' COLLATE "C";
COMMENT ON FUNCTION suppressible IS
    'Whether suppressions take a row''s address and tenant. Mail by SQL may have any text there, and an error would keep an outcome, '
    'or the mail that came back, from the log.';

CREATE FUNCTION row_key(recipient text, domain text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    RETURN mailbox_key(row_address(recipient, domain));
END $$;
COMMENT ON FUNCTION row_key IS
    'The recipient of a row as suppressions have it. In PL/pgSQL, because each transaction prepares what it inlines, and this took '
    '40 µs.';

-- Each submission by SQL calls it, as the owner with the search_path of its caller, because SET search_path takes longer than all the
-- rest. So all names have their schema, of types and operators too. Nearly all rows cost one look-up in the sieve, and expressions
-- are few and short: each transaction prepares them again.
CREATE FUNCTION rows_suppress(messages new_message[], rows new_row[]) RETURNS integer LANGUAGE plpgsql
    SET enable_seqscan = off AS $$  -- a plan that was made for an empty table would later read all of it
DECLARE
    recipient pg_catalog.text;
    domain pg_catalog.text;
    key pg_catalog.text;
    hash pg_catalog.bytea;
    places integer[] := '{}';
BEGIN
    FOR place IN 1 .. pg_catalog.cardinality(rows) LOOP
        recipient := rows[place].recipient;
        domain := rows[place].domain;
        hash := pgmta.sieve_hash(CASE
            WHEN pg_catalog.right(recipient, pg_catalog.length(domain)) OPERATOR(pg_catalog.=) domain
                AND NOT pg_catalog.starts_with(recipient, '"') THEN pg_catalog.lower(recipient COLLATE pg_catalog."C")
            ELSE pgmta.row_key(recipient, domain) END);
        PERFORM FROM pgmta.suppression_sieve AS v WHERE v.part OPERATOR(pg_catalog.=) pgmta.sieve_part(hash)
            AND pg_catalog.get_bit(v.bits, pgmta.sieve_place(hash)) OPERATOR(pg_catalog.=) 1;
        CONTINUE WHEN NOT FOUND;
        key := pgmta.row_key(recipient, domain);
        PERFORM FROM pgmta.suppressions AS s
        WHERE s.address OPERATOR(pg_catalog.=) ANY (ARRAY[key, pgmta.mailbox_hash(key)]) LIMIT 1;
        IF FOUND THEN places := places OPERATOR(pg_catalog.||) place; END IF;
    END LOOP;
    IF places OPERATOR(pg_catalog.=) '{}' THEN RETURN 0; END IF;
    RETURN pgmta.rows_withdraw(messages, ARRAY(SELECT rows[p.place] FROM pg_catalog.unnest(places) AS p (place)));
END $$;
COMMENT ON FUNCTION rows_suppress IS
    'Ends rows that have just been stored and whose recipients are suppressed, and returns how many.';

CREATE FUNCTION rows_withdraw(messages new_message[], rows new_row[]) RETURNS integer LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    ids bigint[];
    reasons text[];
    withdrawn integer;
BEGIN
    SELECT array_agg(q.id), array_agg(because.words) INTO ids, reasons
    FROM (
        SELECT array_agg(r) AS rows, array_agg(coalesce((messages[r.message]).tenant, '')) AS tenants,
            array_agg(mail_scope(r.metadata)) AS scopes,
            array_agg(row_address(r.recipient, r.domain)) AS recipients
        FROM unnest(rows) AS r WHERE (r.metadata ? '_exempt') IS NOT TRUE
    ) AS asked, unnest(asked.rows, suppressed_because(asked.tenants, asked.scopes, asked.recipients))
        AS because (message, recipient, domain, metadata, hold_reason, notify, orcpt, words), LATERAL (
        SELECT q.id FROM queue AS q
        WHERE q.message_id = (messages[because.message]).id AND q.recipient = because.recipient OFFSET 0) AS q
    WHERE because.words IS NOT NULL;
    IF ids IS NULL THEN RETURN 0; END IF;
    PERFORM rows_log(ids, 'suppressed', acting()::text, NULL, reasons);
    DELETE FROM queue AS q WHERE q.id = ANY (ids);
    GET DIAGNOSTICS withdrawn = ROW_COUNT;  -- `ids` has a recipient that a message names twice more than once
    PERFORM set_config('pgmta.suppressed', 'true', true);  -- submit_mails() names them
    RETURN withdrawn;
END $$;
COMMENT ON FUNCTION rows_withdraw IS
    'Ends those of these rows that are suppressed for their tenant and scope: the log says why. Returns how many. Exempt '
    'mail is left.';

CREATE OR REPLACE FUNCTION rows_put(messages new_message[], rows new_row[]) RETURNS integer LANGUAGE sql
-- an empty list costs no query
RETURN CASE WHEN (messages[1]).origin = 'sql' AND pg_relation_size('suppressions') > 0
    THEN rows_suppress(messages, rows) ELSE 0 END;
COMMENT ON FUNCTION rows_put IS
    'Part of queue_put(): mail by SQL to suppressed addresses ends before it waits. Mail by SMTP is looked up at RCPT or before '
    'its attempt, and all mail before its attempt.';

CREATE FUNCTION suppression_refuse(broken text, place text, reasons text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    known CONSTANT text[] := '{unsubscribed,complained,bounced,soft_bounced,forgotten,operator}';
    argument text := CASE WHEN broken ~ '^suppressions_(tenant|scope|reason|source)$' THEN substr(broken, 14) ELSE 'address' END;
BEGIN
    PERFORM submit_refuse(argument, CASE argument WHEN 'address' THEN 'it is no mailbox' WHEN 'reason' THEN 'there is no such reason'
            WHEN 'source' THEN 'it is over 200 characters or has a control character' ELSE 'it is no name' END,
        place, CASE argument WHEN 'address' THEN 'Write LOCAL@DOMAIN, the domain in A-labels.'
            WHEN 'reason' THEN coalesce((
                SELECT 'Did you mean ' || nearest_word(r, known) || '?' FROM unnest(reasons) AS r WHERE r <> ALL (known) LIMIT 1),
                'There is ' || array_to_string(known, ', ') || '.')
            WHEN 'source' THEN 'Give one line.' ELSE 'Up to 64 letters, digits and . _ -; a tenant may have @ + too.' END);
END $$;
COMMENT ON FUNCTION suppression_refuse IS 'Raises the error of a suppression that broke this constraint.';

-- By arrays, because files are imported. An array that is null has the default for all. A null within `ats` says that nobody knows
-- when it happened, so it replaces nothing that holds for as long: the proof of a complaint stays.
CREATE FUNCTION suppressions_put(
    addresses text[], tenants text[], scopes text[], reasons text[] DEFAULT NULL, sources text[] DEFAULT NULL,
    ats timestamptz[] DEFAULT NULL, untils timestamptz[] DEFAULT NULL
) RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    changed record;
    broken text;
    place text;
BEGIN
    WITH given AS MATERIALIZED (
        SELECT n AS place, mailbox_key(addresses[n]) AS address, coalesce(tenants[n], '') AS tenant,
            coalesce(scopes[n], '') AS scope, coalesce(reasons[n], 'operator') AS reason, coalesce(sources[n], '') AS source,
            -- a clock that is ahead must not win over later facts
            least(coalesce(ats[n], now()), now()) AS at, untils[n] AS until, ats IS NULL OR ats[n] IS NOT NULL AS dated
        FROM generate_subscripts(addresses, 1) AS n
    ), newest AS MATERIALIZED (
        SELECT DISTINCT ON (g.address, g.tenant, g.scope) g.*, CASE WHEN EXISTS (
                SELECT FROM suppression_sieve AS v
                WHERE v.part = sieve_part(h.hash) AND get_bit(v.bits, sieve_place(h.hash)) = 1
            ) THEN (  -- for EXISTS, all of the table may be hashed
                SELECT CASE WHEN s.address = g.address THEN 'older' ELSE 'forgotten' END FROM suppressions AS s
                WHERE s.address IN (g.address, mailbox_hash(g.address)) AND s.released_at IS NULL
                    AND CASE WHEN s.address <> g.address THEN s.tenant = '*' AND s.scope = ''
                        ELSE NOT g.dated AND s.tenant = g.tenant AND s.scope = g.scope
                            AND coalesce(s.until, 'infinity') >= coalesce(g.until, 'infinity') END
                ORDER BY s.address = g.address LIMIT 1
            ) END AS outcome
        FROM given AS g, LATERAL (SELECT sieve_hash(g.address) AS hash OFFSET 0) AS h
        ORDER BY g.address, g.tenant, g.scope, g.until DESC NULLS FIRST, g.at DESC, g.place
    ), put AS (
        INSERT INTO suppressions AS s (address, tenant, scope, reason, source, at, until)
        SELECT n.address, n.tenant, n.scope, n.reason, n.source, n.at, n.until FROM newest AS n
        WHERE n.outcome IS NULL ORDER BY n.address, n.tenant, n.scope  -- two sessions take the same order
        ON CONFLICT ON CONSTRAINT suppressions_pkey DO UPDATE SET reason = excluded.reason, source = excluded.source,
            at = excluded.at, until = excluded.until, released_at = NULL
        -- a transaction may release an address and suppress it again
        WHERE CASE WHEN s.released_at IS NULL THEN excluded.at > s.at ELSE excluded.at >= s.released_at END
            -- a mailbox that is full for a while does not end a complaint
            AND (s.released_at IS NOT NULL OR coalesce(excluded.until, 'infinity') >= coalesce(s.until, 'infinity'))
        RETURNING s.address, s.tenant, s.scope, xmax = 0 AS new
    )
    SELECT array_agg(CASE WHEN n.place IS NULL THEN 'older' WHEN n.outcome IS NOT NULL THEN n.outcome
            WHEN p.new THEN 'new' WHEN p.new IS NOT NULL THEN 'newer' ELSE 'older' END ORDER BY g.place) AS outcomes,
        coalesce(bool_or(p.new IS NOT NULL), false) AS wrote
    INTO changed
    FROM given AS g LEFT JOIN newest AS n ON n.place = g.place
        LEFT JOIN put AS p ON (p.address, p.tenant, p.scope) = (n.address, n.tenant, n.scope);
    IF NOT changed.wrote THEN PERFORM prove_earlier(); END IF;
    RETURN coalesce(changed.outcomes, '{}');
EXCEPTION WHEN check_violation OR not_null_violation THEN
    GET STACKED DIAGNOSTICS broken = CONSTRAINT_NAME, place = PG_EXCEPTION_DETAIL;
    PERFORM suppression_refuse(broken, place, reasons);
END $$;
COMMENT ON FUNCTION suppressions_put IS
    'Suppresses addresses. Returns for each new, newer (than the fact that was there), older (nothing changed: that fact is '
    'newer or holds for longer) or forgotten (it is suppressed for all already).';

CREATE FUNCTION suppress(
    address text, tenant text DEFAULT '', scope text DEFAULT '', reason text DEFAULT 'operator', source text DEFAULT acting(),
    at timestamptz DEFAULT now(), until timestamptz DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    outcome text;
BEGIN
    IF mailbox_domain(address COLLATE "C") IS NULL THEN
        PERFORM submit_refuse('address', 'it is no mailbox', NULL, 'Write LOCAL@DOMAIN, the domain in A-labels.');
    END IF;
    IF until <= now() THEN
        PERFORM submit_refuse('until', 'it is over', NULL, 'suppression_release() ends a suppression.');
    END IF;
    PERFORM suppression_scope_check(scope, tenant);
    outcome := (suppressions_put(ARRAY[row_address(address, mailbox_domain(address COLLATE "C"))], ARRAY[tenant], ARRAY[scope],
        ARRAY[reason], ARRAY[source], ARRAY[at], ARRAY[until]))[1];
    INSERT INTO audit (who, action, condition, details, rows, finished_at) VALUES (acting(), 'suppression add',
        mailbox_hash(address), jsonb_build_object('tenant', tenant, 'scope', scope, 'outcome', outcome), 1, now());
    RETURN outcome IN ('new', 'newer');
END $$;
COMMENT ON FUNCTION suppress IS
    'Suppresses one address, notes it in audit by its keyed hash, and returns whether that changed anything: of two facts the newer '
    'one wins, unless it ends earlier.';

CREATE FUNCTION suppression_release(
    address text, tenant text DEFAULT '', scope text DEFAULT NULL, at timestamptz DEFAULT now(), who text DEFAULT acting()
) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    key CONSTANT text := mailbox_key(coalesce(row_address(address, mailbox_domain(address COLLATE "C")), address));
    hash CONSTANT text := mailbox_hash(key);
    released integer;
BEGIN
    UPDATE suppressions AS s SET released_at = least(suppression_release.at, now())
    WHERE s.address IN (key, hash)
        AND s.tenant = suppression_release.tenant
        AND (suppression_release.scope IS NULL OR s.scope = suppression_release.scope)
        AND s.released_at IS NULL AND s.at <= least(suppression_release.at, now());
    GET DIAGNOSTICS released = ROW_COUNT;
    IF released = 0 THEN
        PERFORM prove_earlier();
    ELSE
        INSERT INTO audit (who, action, condition, details, rows, finished_at) VALUES (coalesce(who, acting()),
            'suppression remove', hash, jsonb_build_object('tenant', tenant, 'scope', scope), released, now());
    END IF;
    RETURN released;
END $$;
COMMENT ON FUNCTION suppression_release IS
    'Releases an address, because its owner wants mail again, and notes it in audit by its keyed hash; without a scope, from all '
    'of them. Returns how many suppressions ended. Older facts cannot bring them back.';

CREATE FUNCTION bounce_proven(class text, returned text) RETURNS boolean IMMUTABLE PARALLEL SAFE
RETURN coalesce(returned_for_good(class, returned) AND CASE class
    WHEN 'bad_domain' THEN returned ~ '^(556 |[0-9]{3} [245][.]1[.](2|10)( |$))'  -- or a host may not relay there
    WHEN 'disabled' THEN returned !~ '^[0-9]{3} [245][.]7[.]'
    ELSE returned !~ '^[0-9]{3} [245][.]7[.]' OR returned ~ '^[0-9]{3} [245][.]7[.](0|1|17)( |$)' END, false);
COMMENT ON FUNCTION bounce_proven IS
    'Whether mail came back with a proof that there is no such mailbox: other words may be about a host or a login.';

CREATE FUNCTION suppress_returned() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    complaint CONSTANT boolean := NEW.complained_at IS DISTINCT FROM OLD.complained_at;
BEGIN
    IF complaint OR bounce_proven(NEW.class, NEW.returned) THEN
        PERFORM suppressions_put(ARRAY[row_address(NEW.recipient, NEW.domain)], ARRAY[NEW.tenant], ARRAY[''],
            ARRAY[CASE WHEN complaint THEN 'complained' ELSE 'bounced' END], ARRAY['message ' || NEW.message_id])
        WHERE suppressible(row_address(NEW.recipient, NEW.domain), NEW.tenant);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION suppress_returned IS
    'Suppresses the recipient of a message that came back for good, or about which its recipient complained.';
CREATE TRIGGER returned_suppress AFTER UPDATE OF returned_at, complained_at ON attempts FOR EACH ROW
    WHEN ((NEW.returned_at, NEW.class, NEW.complained_at) IS DISTINCT FROM (OLD.returned_at, OLD.class, OLD.complained_at))
    EXECUTE FUNCTION suppress_returned();
COMMENT ON TRIGGER returned_suppress ON attempts IS
    'Whoever notes that mail came back suppresses.';

CREATE FUNCTION suppress_soft_bounced(
    rows bigint[], recipients text[], tenants text[], messages bigint[], changed bigint[],
    number integer, days integer, period interval, lasts interval
) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
    each record;
    counted record;
    found text[] := '{}';
    of_tenants text[] := '{}';
    sources text[] := '{}';
BEGIN
    FOR each IN
        SELECT mailbox_key(b.recipient) AS address, b.tenant, max(b.message) AS message, count(*) AS number
        FROM unnest(rows, recipients, tenants, messages) AS b (id, recipient, tenant, message)
        WHERE b.id = ANY (changed) AND suppressible(b.recipient, b.tenant)
        GROUP BY 1, 2 ORDER BY 1, 2  -- two sessions take the same order
    LOOP
        INSERT INTO soft_bounces AS s (address, tenant, day, number)
        VALUES (each.address, each.tenant, today, each.number)
        ON CONFLICT ON CONSTRAINT soft_bounces_pkey DO UPDATE SET number = s.number + excluded.number;
        SELECT sum(s.number) AS number, count(*) AS days INTO counted FROM soft_bounces AS s
        WHERE s.address = each.address AND s.tenant = each.tenant AND s.day > today - period;
        IF counted.number >= suppress_soft_bounced.number AND counted.days >= suppress_soft_bounced.days THEN
            DELETE FROM soft_bounces AS s WHERE s.address = each.address AND s.tenant = each.tenant;
            found := found || each.address;
            of_tenants := of_tenants || each.tenant;
            sources := sources || ('message ' || each.message);
        END IF;
    END LOOP;
    DELETE FROM soft_bounces AS s WHERE s.ctid = ANY (ARRAY(
        SELECT o.ctid FROM soft_bounces AS o WHERE o.day <= today - period LIMIT 10 FOR UPDATE SKIP LOCKED));
    IF found <> '{}' THEN
        PERFORM suppressions_put(found, of_tenants, NULL, array_fill('soft_bounced'::text, ARRAY[cardinality(found)]), sources,
            NULL, array_fill(now() + lasts, ARRAY[cardinality(found)]));
    END IF;
    RETURN cardinality(found);
END $$;
COMMENT ON FUNCTION suppress_soft_bounced IS
    'Counts failures of full mailboxes, and suppresses those that had so many on so many days within the period, for all scopes '
    'of their tenants. Returns how many it has suppressed. A delivery does not end a count: that would cost each mail.';

CREATE FUNCTION suppress_bounced(rows bigint[], recipients text[], tenants text[], messages bigint[], changed bigint[])
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- one call for all, because it takes its locks in an order that all sessions have
    RETURN (
        SELECT cardinality(suppressions_put(array_agg(b.recipient), array_agg(b.tenant), array_agg(''::text),
            array_agg('bounced'::text), array_agg('message ' || b.message)))
        FROM unnest(rows, recipients, tenants, messages) AS b (id, recipient, tenant, message)
        WHERE b.id = ANY (changed) AND suppressible(b.recipient, b.tenant) HAVING count(*) > 0);
END $$;
COMMENT ON FUNCTION suppress_bounced IS
    'Suppresses the recipients of rows that failed with a hard bounce, for all scopes of their tenants. `changed` are the rows '
    'that the outcomes changed: others were late. Returns how many.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES
    ('suppressions', '{source}', 'words', 'true'),
    ('soft_bounces', '{address}', 'row', 't.address <> %1$L'),
    ('suppressions', '{address}', 'row', 't.address <> %1$L AND t.released_at IS NOT NULL'),
    ('suppressions', '{address}', 'named', 't.address <> %1$L AND t.released_at IS NULL');

INSERT INTO forget_functions (name, place, function) VALUES ('suppressions', 1, 'forget_suppressions');

CREATE FUNCTION forget_suppressions(key text, part text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    SELECT count(*) INTO number FROM suppressions AS s WHERE s.address = key;
    IF NOT dry THEN
        DELETE FROM suppressions AS s WHERE s.address = key;
        DELETE FROM soft_bounces AS s WHERE s.address = key;
        -- its bit spares all other addresses the keyed hash
        PERFORM sieve_add(ARRAY[sieve_part(h)], ARRAY[set_bit(0::bit(2048), sieve_place(h), 1)]) FROM sieve_hash(key) AS h;
        INSERT INTO suppressions AS s (address, tenant, reason) VALUES (mailbox_hash(key), '*', 'forgotten')
        ON CONFLICT ON CONSTRAINT suppressions_pkey DO UPDATE SET at = now(), released_at = NULL;
    END IF;
    RETURN jsonb_build_object('suppressions', number);
END $$;
COMMENT ON FUNCTION forget_suppressions IS 'The part of forget() that leaves the keyed hash.';

INSERT INTO rights (object, role, privileges) VALUES
    ('suppressions', 'pgmta_operator', 'SELECT'),
    ('suppressions', 'pgmta_reader', 'SELECT'),
    ('suppression_scopes', 'pgmta_operator', 'SELECT'),
    ('suppression_scopes', 'pgmta_reader', 'SELECT'),
    ('FUNCTION suppression_scope', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION suppression_scope_check', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION suppressed', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION row_address', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION row_address', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION mail_scope', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION mail_scope', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION suppressed_because', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION suppressed_because', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION suppressed_because', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION suppressed_because', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION sieve_news', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION suppressions_put', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION suppress', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION suppression_release', 'pgmta_operator', 'EXECUTE'),
    ('soft_bounces', 'pgmta_operator', 'SELECT'),
    ('soft_bounces', 'pgmta_reader', 'SELECT'),
    ('FUNCTION suppress_bounced', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION suppress_soft_bounced', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION suppressions_there', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION suppressions_there', 'pgmta_smtpd', 'EXECUTE');
