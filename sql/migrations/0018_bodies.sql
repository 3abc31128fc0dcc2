-- Ways in which a row could lose its body: docs/decisions/0029-submission.md, "No foreign key".

CREATE OR REPLACE FUNCTION queue_message_present() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- the lock makes messages_refcount wait, and then it sees this row
    PERFORM FROM messages WHERE id = NEW.message_id FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no message %', NEW.message_id USING
            ERRCODE = 'foreign_key_violation', SCHEMA = 'pgmta', TABLE = 'queue', COLUMN = 'message_id';
    END IF;
    RETURN NEW;
END $$;
-- An UPDATE that moves a row to another partition fires no trigger AFTER UPDATE.
DROP TRIGGER queue_message_changed ON queue;
CREATE TRIGGER queue_message_changed BEFORE UPDATE OF message_id ON queue FOR EACH ROW
    WHEN (OLD.message_id IS DISTINCT FROM NEW.message_id) EXECUTE FUNCTION queue_message_present();
COMMENT ON TRIGGER queue_message_changed ON queue IS 'The same for a row that gets another message.';

CREATE OR REPLACE FUNCTION messages_in_use() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a transaction with an old snapshot may miss rows that refer to messages' USING
            ERRCODE = 'object_not_in_prerequisite_state', SCHEMA = 'pgmta', TABLE = 'messages',
            HINT = 'Use READ COMMITTED, or delete rows of the queue: the bodies go after them.';
    ELSIF TG_OP = 'TRUNCATE' THEN
        IF EXISTS (SELECT FROM queue) THEN
            RAISE EXCEPTION 'rows of the queue refer to messages' USING
                ERRCODE = 'foreign_key_violation', SCHEMA = 'pgmta', TABLE = 'messages',
                HINT = 'Truncate both tables in one statement.';
        END IF;
    ELSIF (SELECT true FROM queue WHERE message_id = OLD.id LIMIT 1) THEN
        RAISE EXCEPTION 'rows of the queue refer to message %', OLD.id USING
            ERRCODE = 'foreign_key_violation', SCHEMA = 'pgmta', TABLE = 'messages',
            HINT = 'Delete the rows of the queue: the body goes with the last one.';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages_in_use() IS 'Refuses to delete or renumber a body that a row needs.';
-- A trigger of another schema may delete bodies too. Of all triggers only messages_refcount_func has
-- enable_hashjoin off, as a setting of the function.
DROP TRIGGER messages_in_use ON messages;
CREATE TRIGGER messages_in_use AFTER DELETE ON messages FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 OR current_setting('enable_hashjoin') = 'on') EXECUTE FUNCTION messages_in_use();
COMMENT ON TRIGGER messages_in_use ON messages IS 'No mistake deletes a body; messages_refcount has looked itself.';
CREATE TRIGGER messages_renumbered AFTER UPDATE OF id ON messages FOR EACH ROW
    WHEN (OLD.id <> NEW.id) EXECUTE FUNCTION messages_in_use();
COMMENT ON TRIGGER messages_renumbered ON messages IS 'The same for a body that gets another id.';
