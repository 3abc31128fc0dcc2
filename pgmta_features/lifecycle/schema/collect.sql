-- Tokens become mail: a batch is one statement.

CREATE FUNCTION actions_waiting(actions text[]) RETURNS SETOF text LANGUAGE sql STABLE
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    SELECT a.name FROM actions AS a, LATERAL (
        SELECT w.token FROM waiting_tokens AS w WHERE w.action = a.name AND w.lease_until < now()
        ORDER BY w.token LIMIT 1) AS first
    WHERE actions_waiting.actions IS NULL OR a.name = ANY (actions_waiting.actions)
    ORDER BY a.priority, first.token
$$;
COMMENT ON FUNCTION actions_waiting IS
    'Those of these actions, null for all, that have tokens that wait, in the order of collectors: by priority; of one '
    'priority, that whose token waits longest.';

CREATE FUNCTION tokens_waiting(actions text[], most integer) RETURNS bigint[] LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    SELECT array_agg(found.token) FROM (
        SELECT w.token FROM actions_waiting(tokens_waiting.actions) AS a, LATERAL (
            SELECT t.token FROM waiting_tokens AS t WHERE t.action = a AND t.lease_until < now()
            ORDER BY t.token LIMIT most) AS w
        LIMIT most) AS found
$$;
COMMENT ON FUNCTION tokens_waiting IS
    'At most so many tokens of these actions, null for all, that wait for their mail; null for none.';

CREATE TYPE picked_token AS (place tid, waits tid, token tokens);
COMMENT ON TYPE picked_token IS 'A locked token with the places of its rows in tokens and in waiting_tokens.';

CREATE FUNCTION tokens_pick(actions text[], most integer) RETURNS picked_token[] LANGUAGE plpgsql
    SET search_path = lifecycle, pg_catalog, pg_temp
    SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    name text;
    picked picked_token[] := '{}';
BEGIN
    -- one action at a time, because the index has no order over several
    FOR name IN SELECT a FROM actions_waiting(tokens_pick.actions) AS a LOOP
        EXIT WHEN cardinality(picked) >= most;
        -- lock both rows or neither: a transaction that consumes a token has locked one, and waits for the other
        -- + 0: an order by w.token would also be one by t.id, and a plan would read all tokens for it
        picked := picked || ARRAY(
            SELECT ROW(t.ctid, w.ctid, t)::picked_token FROM waiting_tokens AS w JOIN tokens AS t ON t.id = w.token + 0
            WHERE w.action = name AND w.lease_until < now()
            ORDER BY w.token LIMIT most - cardinality(picked)
            FOR NO KEY UPDATE OF w, t SKIP LOCKED);
    END LOOP;
    RETURN picked;
END $$;
COMMENT ON FUNCTION tokens_pick IS
    'Locks tokens of these actions, null for all, that wait, by priority, and leaves out those that others have locked.';

CREATE TYPE made_mail AS (
    at tid, waits tid, email text, domain text, template_id bigint, sender text, priority smallint, metadata jsonb, params jsonb
);
COMMENT ON TYPE made_mail IS 'The mail of a token, and the places of the rows of the token in tokens and in waiting_tokens.';

CREATE FUNCTION collect(
    collector text, worker text, batch integer, reason text, options jsonb,
    OUT taken integer, OUT refused jsonb, OUT wait double precision, OUT expired integer, OUT spent boolean,
    OUT most integer, OUT aside jsonb
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on SET jit = off AS $$
#variable_conflict use_column
DECLARE
    near CONSTANT interval := '20 milliseconds';
    began timestamptz := clock_timestamp();
    present double precision;
    actions text[] := CASE WHEN options -> 'actions' ? '*' THEN NULL
        ELSE ARRAY(SELECT jsonb_object_keys(options -> 'actions')) END;
    budget text := options ->> 'budget';
    size integer;
    reserved record;
    granted integer;
    made_at timestamptz;
    picked lifecycle.picked_token[];
    mails bigint[];
    hostname text := (SELECT s.hostname FROM submit_settings AS s);
    found record;
BEGIN
    taken := 0;
    expired := 0;
    spent := false;
    most := batch;
    IF budget IS NOT NULL THEN
        -- look at the budget without its lock first, so that no mail is made in vain
        SELECT n.wait, least(n.batch, most) INTO wait, most FROM budget_next(budget) AS n;
        IF wait > extract(epoch FROM near) THEN
            IF wait <= 60 THEN RETURN; END IF;
        ELSE
            wait := NULL;
        END IF;
    END IF;
    size := most;
    LOOP
        picked := lifecycle.tokens_pick(actions, size);
        IF cardinality(picked) = 0 THEN RETURN; END IF;
        present := extract(epoch FROM clock_timestamp());
        -- A separate statement: its snapshot has all that was committed before the locks.
        SELECT array_agg(ROW(e.at, e.waits, e.email, e.domain, e.template_id, e.sender, e.priority, e.metadata, e.params)
                ::lifecycle.made_mail ORDER BY e.place) FILTER (WHERE e.fits) AS fitting,
            jsonb_agg(jsonb_build_array(e.token, e.fault, e.at) ORDER BY e.place) FILTER (WHERE e.fault IS NOT NULL)
                AS faults,
            jsonb_agg(jsonb_build_array(e.waits, e.action, e.lacks)) FILTER (WHERE e.lacks IS NOT NULL) AS lacking,
            array_agg(e.token) AS judged
        INTO found
        FROM (
            SELECT i.*, j.lacks, j.fault, j.lacks IS NULL AND j.fault IS NULL AS fits
            FROM (
                SELECT p.place, p.at, p.waits, t.id AS token, t.action, m.email,
                    -- no telephone number: its SMS would have the text of a mail
                    nullif(mailbox_domain(m.email COLLATE "C"), 'sms') AS domain,
                    o.template_id, o.sender, o.priority,
                    jsonb_build_object('_deadline', to_char(to_timestamp(least(t.expires_at, t.created_at + o.sent_within))
                        AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) AS metadata,
                    jsonb_build_object('to', jsonb_build_array(jsonb_build_array('', m.email)), 'words', w.words,
                        'token', jsonb_build_object('purpose', o.purpose, 'action', t.action, 'secret', encode(t.secret, 'hex'),
                            'key', o.key, 'url', o.url, 'code', CASE WHEN o.code THEN t.code END)) AS params,
                    w.misfit, w.lacking
                FROM unnest(picked) WITH ORDINALITY AS p (at, waits, token, place), LATERAL (SELECT (p.token).*) AS t
                LEFT JOIN lifecycle.account_rows(ARRAY(SELECT ((p.token).account) FROM unnest(picked) AS p)) AS a
                    ON a.number = t.account
                JOIN lifecycle.collect_actions(options, ARRAY(SELECT DISTINCT (p.token).action FROM unnest(picked) AS p)) AS o
                    ON o.action = t.action AND o.fault IS NULL
                        AND (t.account IS NULL OR lifecycle.token_fits(o.statuses, a.status))
                        AND (o.languages IS NULL OR o.language = lifecycle.language_of(a.language, o.languages)),
                    LATERAL (SELECT coalesce(t.email, a.email) AS email) AS m,
                    LATERAL (
                        SELECT coalesce(jsonb_object_agg(v.word, v.value), '{}') AS words,
                            min('the word ' || v.word || ': ' || CASE WHEN v.value IS NULL THEN 'there is no value'
                                ELSE submit_word(v.value, o.words -> v.word) END) AS misfit,
                            -- a login that an account lacks is no fault of the template
                            min(format('the word {{%s}} of its template has no value', v.word))
                                FILTER (WHERE v.value IS NULL AND NOT (v.word = 'login' AND a.number IS NOT NULL)) AS lacking
                        FROM (
                            SELECT word, CASE word WHEN 'login' THEN a.login WHEN 'email' THEN m.email WHEN 'code' THEN t.code
                                WHEN 'new_email' THEN coalesce(t.email, (SELECT n.email FROM lifecycle.tokens AS n
                                    WHERE n.account = t.account AND n.request = t.request AND n.email IS NOT NULL LIMIT 1))
                                WHEN 'minutes' THEN ceil((CASE WHEN o.sent_within IS NOT NULL THEN o.seconds
                                    ELSE t.expires_at - extract(epoch FROM began) END) / 60)::text
                                ELSE coalesce(t.data ->> word, a.words ->> word) END AS value
                            FROM unnest(o.own) AS word OFFSET 0
                        ) AS v
                    ) AS w
                WHERE t.consumed_at IS NULL AND t.collected_at IS NULL
                    AND least(t.expires_at, t.created_at + o.sent_within) > present
                OFFSET 0  -- each part is computed once
            ) AS i, LATERAL (
                SELECT CASE WHEN i.domain IS NOT NULL THEN i.lacking END AS lacks,
                    CASE WHEN i.domain IS NULL THEN 'its account has no usable mailbox'
                        WHEN i.lacking IS NOT NULL THEN NULL
                        WHEN i.misfit IS NULL AND octet_length((i.params -> 'words')::text) > 65536
                            THEN 'the words are over 65536 octets' ELSE i.misfit END AS fault
            ) AS j
            OFFSET 0  -- and each judgement
        ) AS e;
        -- tokens that get no mail go together, however slow the budget is
        EXIT WHEN found.fitting IS NOT NULL OR size = batch OR cardinality(picked) < size;
        size := batch;
    END LOOP;
    SELECT count(*) INTO expired FROM unnest(picked) AS p
    WHERE (p.token).expires_at <= present AND (p.token).consumed_at IS NULL AND (p.token).collected_at IS NULL;
    granted := least(coalesce(cardinality(found.fitting), 0), most);
    IF wait IS NOT NULL THEN
        granted := 0;  -- the time is far away, and other tokens may expire until then
    ELSIF budget IS NOT NULL AND granted > 0 THEN
        -- a collector asks a little early, so the batch is ready at its time: a late one loses time
        PERFORM pg_sleep(extract(epoch FROM b.next_at - clock_timestamp())) FROM budgets AS b
        WHERE b.key = budget AND b.next_at > clock_timestamp()
            AND b.next_at < clock_timestamp() + near;
        SELECT * INTO reserved FROM budget_reserve(budget, granted, '0', together => true);
        granted := reserved.number;
        wait := extract(epoch FROM reserved.first + granted * reserved.step - clock_timestamp());
    END IF;
    spent := granted = 0 AND wait IS NOT NULL AND EXISTS (
        SELECT FROM budgets AS b
        WHERE b.key = budget AND b.month_used >= b.month_most AND b.month >= date_trunc('month', began AT TIME ZONE 'UTC'));
    IF granted > 0 THEN
        mails := ARRAY(SELECT next_message_id() FROM generate_series(1, granted));
        PERFORM queue_put(
            ARRAY(SELECT new_message(id => id, size => octet_length(params::text), priority => priority,
                trace => submit_trace(hostname, id), body => '', sender => sender,
                sender_domain => mailbox_domain(sender COLLATE "C"), on_failed => 'remove',
                message_id_header => composed_message_id(id, hostname), origin => 'sql',
                utf8 => concat(email, sender) ~ '[^\u0001-\u007f]' COLLATE "C", tenant => options ->> 'tenant',
                submitted_by => pgmta.acting(), ret => 'HDRS', template_id => template_id, params => params)
            FROM ROWS FROM (unnest(mails), unnest(found.fitting[:granted])) AS m (id)),
            ARRAY(SELECT new_row(ordinality::integer, email, domain, metadata)
            FROM unnest(found.fitting[:granted]) WITH ORDINALITY));
        IF budget IS NOT NULL THEN made_at := budget_began(budget, reserved.first); END IF;
        UPDATE lifecycle.tokens AS t SET collected_at = coalesce(made_at, clock_timestamp()), message_id = m.mail
        FROM ROWS FROM (unnest(mails), unnest(found.fitting[:granted])) AS m (mail) WHERE t.ctid = m.at;
        taken := granted;
    END IF;
    refused := found.faults;
    UPDATE lifecycle.tokens AS t SET collected_at = clock_timestamp()
    FROM jsonb_array_elements(refused) AS fault WHERE t.ctid = (fault ->> 2)::tid;
    -- what a template lacks ends no token, because another version may have it; other actions go on
    IF coalesce(cardinality(found.judged), 0) < cardinality(picked) OR found.lacking IS NOT NULL THEN
        WITH resting AS (
            UPDATE lifecycle.waiting_tokens AS w
            SET lease_until = clock_timestamp() + interval '10 seconds', fault = f.fault
            FROM (
                SELECT p.waits, o.action, o.fault FROM unnest(picked) AS p (at, waits, token)
                JOIN lifecycle.collect_actions(options, ARRAY(SELECT DISTINCT (p.token).action FROM unnest(picked) AS p)) AS o
                    ON o.action = (p.token).action AND o.fault IS NOT NULL
                WHERE (p.token).expires_at > present AND (p.token).id <> ALL (coalesce(found.judged, '{}'))
                UNION ALL
                SELECT (l ->> 0)::tid, l ->> 1, l ->> 2 FROM jsonb_array_elements(found.lacking) AS l
            ) AS f
            WHERE w.ctid = f.waits
            RETURNING f.action, f.fault
        )
        SELECT jsonb_agg(jsonb_build_array(r.action, r.fault, r.number)) INTO aside
        FROM (SELECT action, fault, count(*) AS number FROM resting GROUP BY action, fault) AS r;
    END IF;
    -- tokens beyond the budget go on waiting; the others are done, or do not fit
    DELETE FROM lifecycle.waiting_tokens AS w USING unnest(picked) AS p (at, waits, token)
    WHERE w.ctid = p.waits AND w.ctid <> ALL (ARRAY(SELECT waits FROM unnest(found.fitting[granted + 1:])));
    INSERT INTO lifecycle.collections (collector, worker, reason, wanted, taken, refused, expired, began_at)
    SELECT collector, worker, CASE WHEN spent THEN 'sum' ELSE reason END, most, taken,
        coalesce(jsonb_array_length(refused), 0), expired, began
    WHERE taken > 0 OR refused IS NOT NULL OR expired > 0 OR wait IS NULL AND aside IS NULL OR spent AND NOT EXISTS (
        SELECT FROM lifecycle.collections AS c
        WHERE c.collector = collect.collector AND c.reason = 'sum' AND c.began_at > began - interval '1 hour');
END $$;
COMMENT ON FUNCTION collect IS
    'Makes the mail of at most `batch` tokens that wait, in one statement: the queue has it, and the token is marked, '
    'or neither. Returns their number, tokens that can have no mail with the reason, the seconds until the budget allows the '
    'next batch, how many tokens expired, whether the sum of the month is used up, how many tokens the limit and the budget '
    'allowed, and actions whose template is missing or lacks something, with the reason and the number of their tokens, '
    'which rest for ten seconds.';

CREATE FUNCTION language_of(wanted text, languages text[]) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN coalesce(
    (SELECT l FROM unnest(languages) AS l WHERE l = replace(lower(wanted), '_', '-')),
    (SELECT l FROM unnest(languages) AS l WHERE l = split_part(replace(lower(wanted), '_', '-'), '-', 1)), '');
COMMENT ON FUNCTION language_of IS
    'The one of these languages that a template has for a wanted one: pt-br or pt for pt-BR; empty for none.';

CREATE FUNCTION collect_actions(options jsonb, wanted text[] DEFAULT NULL) RETURNS TABLE (
    action text, purpose text, template_id bigint, sender text, priority smallint, key text, url text, words jsonb, own text[],
    statuses text[], code boolean, seconds bigint, sent_within bigint, language text, languages text[], fault text
) LANGUAGE plpgsql STABLE ROWS 2 SECURITY DEFINER SET search_path = lifecycle, pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT a.name, g.given ->> 'purpose', t.id, t.sender, a.priority, g.given ->> 'key',
        coalesce(a.url, concat(g.given ->> 'url', CASE g.given ->> 'purpose' WHEN 'confirm' THEN '/' || a.name END)),
        t.words, w.own, a.statuses, a.code, a.seconds, a.sent_within, t.language,
        CASE WHEN t.variants > 1 THEN t.languages END,
        CASE WHEN t.base IS NOT TRUE THEN format('there is no template %s', to_json(a.template))
            WHEN NOT t.words ?| '{link,token}' THEN format('the template %s has neither {{link}} nor {{token}}', to_json(t.name))
            WHEN a.code AND NOT t.words ? 'code' THEN format('the template %s has no {{code}}', to_json(t.name))
            END
    FROM actions AS a,
        LATERAL (SELECT coalesce(options -> 'actions' -> a.name, options -> 'actions' -> '*') AS given) AS g
        LEFT JOIN LATERAL (
            SELECT v.*, substr(v.name, length(a.template) + 2) AS language, count(*) OVER () AS variants,
                bool_or(v.name = a.template) OVER () AS base,
                array_agg(substr(v.name, length(a.template) + 2)) OVER () AS languages
            FROM (
                SELECT DISTINCT ON (x.name) x.id, x.name, x.sender, x.words FROM templates AS x
                WHERE x.tenant IN (coalesce(options ->> 'tenant', ''), '')
                    -- those of languages are behind a dot, and "/" is the next character
                    AND (x.name = a.template OR x.name > a.template || '.' AND x.name < a.template || '/')
                ORDER BY x.name, x.tenant DESC, x.version DESC
            ) AS v
        ) AS t ON true,
        LATERAL (SELECT ARRAY(
            SELECT word FROM jsonb_object_keys(t.words) AS word WHERE word NOT IN ('link', 'token')) AS own) AS w
    WHERE g.given IS NOT NULL AND (collect_actions.wanted IS NULL OR a.name = ANY (collect_actions.wanted));
END $$;
COMMENT ON FUNCTION collect_actions IS
    'The actions of a collector, of those that are wanted, with the newest versions of their templates in each language, or '
    'what a template lacks.';

CREATE FUNCTION collect_check(options jsonb) RETURNS text[] LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM action_unknown(g.given) FROM jsonb_object_keys(options -> 'actions') AS g (given)
    WHERE g.given <> '*' AND NOT EXISTS (SELECT FROM actions AS a WHERE a.name = g.given);
    RETURN ARRAY(SELECT DISTINCT format('action %s: %s', o.action, o.fault) FROM collect_actions(options) AS o
        WHERE o.fault IS NOT NULL ORDER BY 1);
END $$;
COMMENT ON FUNCTION collect_check IS
    'What the templates of the actions of a collector lack. Raises the error of an action that is not there.';

CREATE FUNCTION tokens_lease(batch integer, actions text[], lease interval) RETURNS TABLE (
    token bigint, action text, email text, login text, secret bytea, code text, code_signed boolean, expires_at bigint,
    expired boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    picked picked_token[] := tokens_pick(tokens_lease.actions, batch);
BEGIN
    RETURN QUERY
        SELECT t.id, t.action, coalesce(t.email, a.email, ''), coalesce(a.login, ''), t.secret,
            t.code::text, o.code, t.expires_at, t.expires_at <= epoch()
        FROM unnest(picked) WITH ORDINALITY AS p (at, waits, token, place), LATERAL (SELECT (p.token).*) AS t
        JOIN actions AS o ON o.name = t.action
        LEFT JOIN account_rows(ARRAY(SELECT ((p.token).account) FROM unnest(picked) AS p)) AS a
            ON a.number = t.account AND token_fits(o.statuses, a.status)
        WHERE t.consumed_at IS NULL AND t.collected_at IS NULL
            AND (a.number IS NOT NULL OR t.account IS NULL OR t.expires_at <= epoch())
        ORDER BY p.place;
    -- a token that does not fit comes back when its account fits again
    DELETE FROM waiting_tokens AS w USING unnest(picked) AS p (at, waits, token)
    WHERE w.ctid = p.waits AND ((p.token).expires_at <= epoch() OR (p.token).account IS NOT NULL AND NOT EXISTS (
        SELECT FROM account_rows(ARRAY[(p.token).account]) AS a JOIN actions AS o ON o.name = (p.token).action
        WHERE token_fits(o.statuses, a.status)));
    UPDATE waiting_tokens AS w SET lease_until = clock_timestamp() + lease, fault = NULL
    FROM unnest(picked) AS p (at, waits, token) WHERE w.ctid = p.waits;
END $$;
COMMENT ON FUNCTION tokens_lease IS
    'Leases tokens to a collector that prints them, and returns them, and those that expired for its count. '
    'tokens_printed() marks them then; otherwise another collector prints them after the lease.';

CREATE FUNCTION tokens_printed(
    tokens bigint[], collector text, worker text, reason text, batch integer, refused integer, expired integer,
    began timestamptz
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    UPDATE tokens AS t SET collected_at = clock_timestamp()
    WHERE t.id = ANY (tokens_printed.tokens) AND t.collected_at IS NULL;
    DELETE FROM waiting_tokens AS w USING tokens AS t
    WHERE t.id = ANY (tokens_printed.tokens) AND w.action = t.action AND w.token = t.id;
    INSERT INTO collections (collector, worker, reason, wanted, taken, refused, expired, began_at)
    VALUES (collector, worker, reason, batch, cardinality(tokens_printed.tokens) - refused, refused, expired, began);
END $$;
COMMENT ON FUNCTION tokens_printed IS 'Marks tokens that a collector has printed, or that it can''t print.';

CREATE FUNCTION tokens_put_off(token bigint, pause interval) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    UPDATE waiting_tokens AS w SET lease_until = clock_timestamp() + pause, fault = NULL FROM tokens AS t
    WHERE t.id = tokens_put_off.token AND w.action = t.action AND w.token = t.id
$$;
COMMENT ON FUNCTION tokens_put_off IS 'Lets a token rest that the database refuses, so that the others go on.';
