-- Pieces of content that fill a page each (docs/decisions/0013). Those of 1 MiB that an earlier version
-- wrote stay as they are: readers ask how large the pieces of a message are.

ALTER TABLE message_chunks SET (
    -- a piece stands in its page, never out of line
    toast_tuple_target = 8160,
    -- an autovacuum that wants to shorten the file waits up to 5 s for it, and in that time nobody makes
    -- room; queued shortens it when the content has gone
    vacuum_truncate = off,
    -- pages are to be used again while they are still in memory
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 100000
);
COMMENT ON TABLE message_chunks IS
    'Content that is too large for its message row, in pieces. Written before the message row; '
    'pieces that no message claims belong to a transaction that died.';
COMMENT ON COLUMN message_chunks.data IS 'Octets as received; each piece but the last has 8,096.';
COMMENT ON COLUMN messages.body IS 'The content as received, octet for octet, where it is small.';
COMMENT ON COLUMN messages.chunks IS 'Pieces in message_chunks; 0: the whole content is in body.';

-- ANALYZE reads as many rows as the finest statistics ask for. Nobody asks for those of content.
ALTER TABLE message_chunks
    ALTER COLUMN message_id SET STATISTICS 10, ALTER COLUMN position SET STATISTICS 10,
    ALTER COLUMN stored_at SET STATISTICS 10, ALTER COLUMN data SET STATISTICS 0;
ALTER TABLE messages
    ALTER COLUMN id SET STATISTICS 10, ALTER COLUMN received_at SET STATISTICS 10,
    ALTER COLUMN size SET STATISTICS 10, ALTER COLUMN utf8 SET STATISTICS 10,
    ALTER COLUMN chunks SET STATISTICS 10, ALTER COLUMN trace SET STATISTICS 0,
    ALTER COLUMN body SET STATISTICS 0;
ALTER TABLE messages SET (autovacuum_vacuum_scale_factor = 0.02);

-- Workers that claim the same rows take turns; those of another priority do not claim the same.
ALTER TABLE workers ADD COLUMN priority smallint NOT NULL DEFAULT 9;
COMMENT ON COLUMN workers.priority IS 'deliver: rows of this priority or a lower number.';

-- queued vacuums the pieces of content; before PostgreSQL 17 only an owner can.
ALTER FUNCTION postern_grants() RENAME TO postern_grants_basic;
CREATE FUNCTION postern_grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = public, pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('server_version_num')::integer >= 170000 AND to_regrole('postern_queued') IS NOT NULL THEN
        EXECUTE 'GRANT MAINTAIN ON message_chunks TO postern_queued';
    END IF;
    RETURN postern_grants_basic();
END $$;
REVOKE EXECUTE ON FUNCTION postern_grants() FROM PUBLIC;
COMMENT ON FUNCTION postern_grants() IS
    'Gives the roles postern_smtpd, postern_queued, postern_operator and postern_reader their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
COMMENT ON FUNCTION postern_grants_basic() IS 'Part of postern_grants().';
DO $$ BEGIN PERFORM postern_grants(); END $$;
