-- submit() takes on_failed bounce, and a deadline: docs/decisions/0043-retry.md.

CREATE FUNCTION deadline_valid(deadline jsonb) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
    -- queued/worker/deadline.py reads it
    RETURN jsonb_typeof(deadline) = 'null' OR jsonb_typeof(deadline) = 'string'
        AND deadline #>> '{}' ~ ('^\d{4}-\d\d-\d\d[Tt ]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?'
            '([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$' COLLATE "C")
        AND (left(deadline #>> '{}', 10)::date BETWEEN '0001-01-02' AND '9999-12-30');
EXCEPTION WHEN datetime_field_overflow OR invalid_datetime_format THEN
    RETURN false;
END $$;
COMMENT ON FUNCTION deadline_valid IS 'Whether metadata._deadline is a time of RFC 3339, or null.';
REVOKE EXECUTE ON FUNCTION deadline_valid FROM PUBLIC;

CREATE OR REPLACE FUNCTION submit_options(
    send_at timestamptz, priority integer, metadata jsonb, key text, tenant text, on_failed text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    IF send_at IS NOT NULL AND NOT isfinite(send_at) THEN
        PERFORM submit_refuse('send_at', 'it is infinite');
    ELSIF send_at > clock_timestamp() THEN
        PERFORM submit_refuse('send_at', 'it is in the future', NULL, 'Mail can''t be scheduled yet.', '0A000');
    END IF;
    IF priority NOT BETWEEN 0 AND 9 THEN
        PERFORM submit_refuse('priority', 'it is not from 0 (first) to 9', format('It is %s.', priority));
    END IF;
    IF on_failed NOT IN ('hold', 'remove', 'bounce') THEN
        PERFORM submit_refuse('on_failed', 'it is neither hold nor remove nor bounce');
    ELSIF octet_length(tenant) > 64 OR tenant <> '' AND tenant !~ '^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$' COLLATE "C" THEN
        PERFORM submit_refuse('tenant', 'it is no name of 1 to 64 letters, digits and . _ @ + -');
    END IF;
    IF length(key) NOT BETWEEN 1 AND 255 OR key ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN
        PERFORM submit_refuse('key', 'it is empty, over 255 characters or has control characters');
    END IF;
    IF jsonb_typeof(metadata) <> 'object' THEN
        PERFORM submit_refuse('metadata', 'it is no JSON object', 'It is of type ' || jsonb_typeof(metadata));
    ELSIF octet_length(metadata::text) > 4000 THEN
        PERFORM submit_refuse('metadata', 'it is over 4000 octets as text');
    ELSIF jsonb_path_exists(metadata, 'strict $.**{100}') THEN
        PERFORM submit_refuse('metadata', 'it is nested over 100 levels deep');
    ELSIF metadata <> '{}' THEN
        bad := (SELECT min(name) FROM jsonb_object_keys(metadata) AS name
                WHERE starts_with(name, '_') AND name NOT IN ('_partid', '_deadline'));
        IF bad IS NOT NULL THEN
            PERFORM submit_refuse('metadata', 'a key begins with _', 'Key: ' || to_json(left(bad, 100)),
                'Such keys belong to pgmta; only _partid and _deadline may be given.');
        ELSIF jsonb_typeof(metadata -> '_partid') NOT IN ('string', 'number')
                OR length(metadata ->> '_partid') > 100 THEN
            PERFORM submit_refuse('metadata', '_partid is no text of at most 100 characters');
        ELSIF metadata ? '_deadline' AND NOT deadline_valid(metadata -> '_deadline') THEN
            PERFORM submit_refuse('metadata', '_deadline is no time of RFC 3339', NULL,
                'Write for example 2026-01-31T09:30:00Z.');
        END IF;
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
        PERFORM submit_text('key', key), submit_text('metadata', metadata::text);
    END IF;
END $$;
