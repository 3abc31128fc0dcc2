CREATE VIEW @place@.pgmta_accounts AS
    SELECT u.@id@ AS id, u.@email@ AS email, u.@login@ AS login,
        @status_of_u@ AS status,
        @language@ AS language,
        @words@ AS words
    FROM @table@ AS u;
COMMENT ON VIEW @place@.pgmta_accounts IS 'The accounts as pgmta sees them.';
REVOKE ALL ON @place@.pgmta_accounts FROM @public@;

CREATE FUNCTION @place@.pgmta_activate(account text, email text, data jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @place@, pg_temp  -- for triggers of the table
AS @quote@
BEGIN
    -- Waits for another change of the row, and looks at the condition again then: a block wins.
    UPDATE @table@ AS u SET @changes@
    WHERE u.@id@ OPERATOR(pg_catalog.=) $1::@id_type@ AND @provisioned@;
    RETURN FOUND;
END @quote@;
COMMENT ON FUNCTION @place@.pgmta_activate(text, text, jsonb) IS
    'Activates a provisioned account, and returns whether it was one.';
REVOKE ALL ON FUNCTION @place@.pgmta_activate(text, text, jsonb) FROM @public@;

CREATE FUNCTION @place@.pgmta_account_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS @quote@
BEGIN
    IF TG_OP = 'INSERT' THEN
        @moved_here@
        PERFORM lifecycle.account_inserted(NEW.@id@::text, @status_of_new@);
    ELSIF TG_OP = 'UPDATE' THEN
        IF NEW.@id@ <> OLD.@id@ THEN
            PERFORM lifecycle.account_deleted(OLD.@id@::text), lifecycle.account_deleted(NEW.@id@::text);
        ELSIF NEW.@email@::text IS DISTINCT FROM OLD.@email@::text THEN
            PERFORM lifecycle.mailbox_changed(NEW.@id@::text);
        END IF;
        PERFORM lifecycle.account_changed(NEW.@id@::text, @status_of_new@);
    ELSIF TG_OP = 'DELETE' THEN
        @moved_away@
        PERFORM lifecycle.account_deleted(OLD.@id@::text);
    ELSE
        PERFORM lifecycle.accounts_truncated();
    END IF;
    RETURN NULL;
END @quote@;
COMMENT ON FUNCTION @place@.pgmta_account_changed() IS
    'Tells pgmta of changes of accounts, which makes their tokens and withdraws their mail.';
REVOKE ALL ON FUNCTION @place@.pgmta_account_changed() FROM @public@;

CREATE TRIGGER pgmta_account_inserted AFTER INSERT ON @table@
    FOR EACH ROW EXECUTE FUNCTION @place@.pgmta_account_changed();
CREATE TRIGGER pgmta_account_updated AFTER UPDATE ON @table@
    FOR EACH ROW WHEN (OLD.@id@ <> NEW.@id@ OR OLD.@email@::text IS DISTINCT FROM NEW.@email@::text
        OR @status_of_old@ <> @status_of_new@)
    EXECUTE FUNCTION @place@.pgmta_account_changed();
CREATE TRIGGER pgmta_account_deleted AFTER DELETE ON @table@
    FOR EACH ROW EXECUTE FUNCTION @place@.pgmta_account_changed();
CREATE TRIGGER pgmta_accounts_truncated AFTER TRUNCATE ON @table@
    EXECUTE FUNCTION @place@.pgmta_account_changed();
@table_grants@
