-- What an address of submit() has to be. Python accepts all that SQL accepts, with the same domain
-- (pgmta/address.py; tests/sql/test_submit_values.py).

-- PL/pgSQL compiles a function once in a session, by the settings of its first call, and submit() then runs it
-- with the owner's rights. So the types of its variables and the text of its patterns have settings of their own.
CREATE FUNCTION mailbox_domain_any(address text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    domain text COLLATE "C" := split_part(address COLLATE "C", '@', -1);
    names text := '[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*';
    atom text := '[A-Za-z0-9!#$%&''*+/=?^_`{|}~-]+';
    octet text := '(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])';
    groups text := '([0-9a-f]{1,4}(:[0-9a-f]{1,4})*)';
    written text COLLATE "C";
BEGIN
    IF octet_length(address) > 254 OR length(address) - length(domain) > 65 THEN RETURN NULL; END IF;
    IF address !~ concat('^', atom, '(\.', atom, ')*@', names, '$') COLLATE "C" THEN
        -- no dot-string and name, as nearly all are
        IF address ~ '[^\u0001-\u007f]' COLLATE "C" THEN
            -- no control or format characters, nor any from outside the basic plane
            IF getdatabaseencoding() <> 'UTF8' OR address ~ ('[\u0080-\u009f\u00ad\u0600-\u0605\u061c\u06dd'
                '\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\uffff]'
                '|[^\u0001-\uffff]') COLLATE "C" THEN RETURN NULL; END IF;
            atom := '[A-Za-z0-9!#$%&''*+/=?^_`{|}~\u0080-\uffff-]+';
        END IF;
        IF left(address, length(address) - length(domain)) !~ concat('^(', atom, '(\.', atom, ')*',
                '|"([^"\\\u0001-\u001f\u007f]|\\[ -~])*")@$') COLLATE "C" THEN RETURN NULL; END IF;
        IF domain ~ '^\[' THEN
            IF domain ~ concat('^\[', octet, '(\.', octet, '){3}\]$') COLLATE "C" THEN RETURN domain; END IF;
            written := lower(substr(rtrim(domain, ']'), 7));
            -- eight groups of digits, or at most seven around ::
            IF domain !~* '^\[ipv6:[^]]+\]$' COLLATE "C" OR written !~ concat('^[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}$|^',
                    groups, '?::', groups, '?$') COLLATE "C" THEN RETURN NULL; END IF;
            IF regexp_count(written, '[0-9a-f]+') - (written !~ '::')::integer > 7 THEN RETURN NULL; END IF;
            written := host(written::inet);
            -- PostgreSQL and Python write an address with an IPv4 address in it differently
            RETURN CASE WHEN written !~ '\.' THEN concat('[IPv6:', written, ']') END;
        END IF;
        IF domain !~ concat('^', names, '$') COLLATE "C" THEN RETURN NULL; END IF;
    END IF;
    RETURN CASE WHEN domain !~ '[^.]{64}' THEN lower(domain) END;
END $$;
COMMENT ON FUNCTION mailbox_domain_any(text) IS 'mailbox_domain of an address in any notation.';

-- PL/pgSQL prepares its expressions in each transaction; this becomes a part of one expression.
CREATE FUNCTION mailbox_domain(address text) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN length(address) <= 63 AND address ~ ('^[A-Za-z0-9_+=-]+(\.[A-Za-z0-9_+=-]+)*@'
        '[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$' COLLATE "C")
    THEN lower(split_part(address COLLATE "C", '@', 2)) ELSE mailbox_domain_any(address) END;
COMMENT ON FUNCTION mailbox_domain(text) IS
    'The domain of a mailbox (RFC 5321, section 4.1.2) in lower case, or an address literal; null if the '
    'text is no mailbox. A domain beyond ASCII has to be written in A-labels.';

REVOKE EXECUTE ON FUNCTION mailbox_domain, mailbox_domain_any FROM PUBLIC;
