-- Templates of composed mail, by name and version.

CREATE TABLE templates (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT templates_tenant CHECK (
        octet_length(tenant) <= 64 AND tenant ~ '^([A-Za-z0-9][A-Za-z0-9._@+-]*)?$'),
    name text COLLATE "C" NOT NULL CONSTRAINT templates_name CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'),
    version integer NOT NULL CONSTRAINT templates_version CHECK (version > 0),
    sender text NOT NULL,
    from_field text NOT NULL,
    reply_to text,
    subject text NOT NULL,
    body text,
    html text,
    headers jsonb NOT NULL DEFAULT '{}' CONSTRAINT templates_headers CHECK (jsonb_typeof(headers) = 'object'),
    words jsonb NOT NULL DEFAULT '{}' CONSTRAINT templates_words CHECK (jsonb_typeof(words) = 'object'),
    counts jsonb NOT NULL DEFAULT '{}' CONSTRAINT templates_counts CHECK (
        jsonb_typeof(counts) = 'object' AND NOT jsonb_path_exists(counts, '$.* ? (@.type() != "number")')),
    unsubscribe text COLLATE "C" CONSTRAINT templates_unsubscribe CHECK (unsubscribe ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'),
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT acting(),
    UNIQUE (tenant, name, version),
    CONSTRAINT templates_text CHECK (body IS NOT NULL OR html IS NOT NULL)
);
COMMENT ON TABLE templates IS
    'Templates of composed mail. A version never changes, so mail that waits has the octets of its version. '
    '`queuectl template put` makes versions.';
COMMENT ON COLUMN templates.id IS 'Number of the version, messages.template_id.';
COMMENT ON COLUMN templates.tenant IS 'For whom the mail is; empty for none.';
COMMENT ON COLUMN templates.name IS 'Name within its tenant.';
COMMENT ON COLUMN templates.version IS 'Counts the versions of a name, from 1 on.';
COMMENT ON COLUMN templates.sender IS 'Reverse-path; empty for none.';
COMMENT ON COLUMN templates.from_field IS 'NAME <ADDRESS> or ADDRESS, with {{word}}.';
COMMENT ON COLUMN templates.reply_to IS 'The same; null for no Reply-To.';
COMMENT ON COLUMN templates.subject IS 'Subject, with {{word}}.';
COMMENT ON COLUMN templates.body IS 'Plain text, with {{word}}; null for none.';
COMMENT ON COLUMN templates.html IS 'HTML, with {{word}}; null for none.';
COMMENT ON COLUMN templates.headers IS 'Further fields of the header: names and values, with {{word}}.';
COMMENT ON COLUMN templates.words IS
    'Each word and its places: text, field, name, address, url, url_part, atom. They say which values fit.';
COMMENT ON COLUMN templates.counts IS 'How often body and html have each of their words: so the size of their mail is known.';
COMMENT ON COLUMN templates.unsubscribe IS 'The scope from which recipients unsubscribe, unless the mail names one; null: none.';
COMMENT ON COLUMN templates.created_at IS 'When it was stored.';
COMMENT ON COLUMN templates.created_by IS 'The login that stored it.';
COMMENT ON SEQUENCE templates_id_seq IS 'templates.id.';
COMMENT ON CONSTRAINT templates_counts ON templates IS 'Numbers by word.';
COMMENT ON CONSTRAINT templates_headers ON templates IS 'Values by name.';
COMMENT ON CONSTRAINT templates_name ON templates IS '1 to 64 letters, digits and . _ -';
COMMENT ON CONSTRAINT templates_tenant ON templates IS 'As submit() takes it.';
COMMENT ON CONSTRAINT templates_text ON templates IS 'It has text, html or both.';
COMMENT ON CONSTRAINT templates_unsubscribe ON templates IS 'Up to 64 letters, digits and . _ -';
COMMENT ON CONSTRAINT templates_version ON templates IS 'From 1 on.';
COMMENT ON CONSTRAINT templates_words ON templates IS 'Lists of places by word.';
COMMENT ON INDEX templates_tenant_name_version_key IS 'submit_template() and queuectl template; no version is taken twice.';

CREATE FUNCTION templates_unchanged() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'versions of templates are never changed or removed (%)', lower(TG_OP COLLATE "C") USING
        ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'Mail that waits needs them. Store a new version: queuectl template put.';
END $$;
COMMENT ON FUNCTION templates_unchanged IS 'Refuses the statement.';

-- any login may set pgmta.writer, so it counts only for the owner (messages_in_use)
CREATE TRIGGER templates_unchanged BEFORE UPDATE OR DELETE OR TRUNCATE ON templates
    FOR EACH STATEMENT
    WHEN (current_setting('pgmta.writer', true) IS DISTINCT FROM 'expiry'
        OR NOT has_table_privilege('rights'::regclass, 'SELECT WITH GRANT OPTION'))
    EXECUTE FUNCTION templates_unchanged();
COMMENT ON TRIGGER templates_unchanged ON templates IS 'A retry, and another host, compose the same octets.';

INSERT INTO rights (object, role, privileges) VALUES
    ('templates', 'pgmta_queued', 'SELECT'),
    ('templates', 'pgmta_operator',
        'SELECT, INSERT (tenant, name, version, sender, from_field, reply_to, subject, body, html, headers, words, '
        'counts, unsubscribe)'),
    ('FUNCTION submit_scope', 'pgmta_operator', 'EXECUTE'),
    ('templates', 'pgmta_reader', 'SELECT');
