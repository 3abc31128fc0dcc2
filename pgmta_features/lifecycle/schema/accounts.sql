-- Accounts, and the times of their status.

CREATE TABLE accounts (
    id bigserial PRIMARY KEY,
    email varchar(254) NOT NULL UNIQUE,
    status account_status NOT NULL DEFAULT 'provisioned',
    login varchar(254) NOT NULL UNIQUE,
    created_at bigint NOT NULL DEFAULT epoch(),
    status_changed_at bigint,
    activated_at bigint,
    suspended_at bigint,
    unsuspended_at bigint
);
COMMENT ON TABLE accounts IS 'Accounts of an application that has no table of its own. Times are seconds since 1970.';
COMMENT ON COLUMN accounts.id IS 'Number of the account.';
COMMENT ON COLUMN accounts.email IS 'Mailbox of its owner.';
COMMENT ON COLUMN accounts.status IS 'A change of it sets the times, and makes or withdraws mail.';
COMMENT ON COLUMN accounts.login IS 'Name of its owner.';
COMMENT ON COLUMN accounts.created_at IS 'When it was inserted.';
COMMENT ON COLUMN accounts.status_changed_at IS 'When its status last changed; null: never.';
COMMENT ON COLUMN accounts.activated_at IS 'When it became active; null: never.';
COMMENT ON COLUMN accounts.suspended_at IS 'Since when it is suspended; null: it is not.';
COMMENT ON COLUMN accounts.unsuspended_at IS 'When its suspension ended; null: never, or it is suspended.';
COMMENT ON SEQUENCE accounts_id_seq IS 'accounts.id.';
CREATE INDEX accounts_mailbox ON accounts (pgmta.mailbox_key(email));
COMMENT ON INDEX accounts_mailbox IS 'A recovery finds its account by the mailbox in any spelling.';

-- SET search_path costs more than the rest, so all names have their schema, and operators too.
CREATE FUNCTION accounts_made() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO lifecycle.tokens (action, account, expires_at)
    SELECT a.name, m.id, lifecycle.epoch() OPERATOR(pg_catalog.+) a.seconds OPERATOR(pg_catalog.+) coalesce(a.sent_within, 0)
    FROM made AS m, lifecycle.actions AS a
    WHERE a.name OPERATOR(pg_catalog.=) 'activation' AND m.status OPERATOR(pg_catalog.=) 'provisioned';
    RETURN NULL;
END $$;
COMMENT ON FUNCTION accounts_made IS 'Makes the first tokens of accounts; none without the action `activation`.';

-- AFTER, because an insert that ON CONFLICT leaves out makes no account
CREATE TRIGGER accounts_made AFTER INSERT ON accounts REFERENCING NEW TABLE AS made FOR EACH STATEMENT
    EXECUTE FUNCTION accounts_made();
COMMENT ON TRIGGER accounts_made ON accounts IS 'The tokens are in the transaction of their accounts.';

CREATE FUNCTION accounts_dated() RETURNS trigger LANGUAGE plpgsql SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    NEW.status_changed_at := epoch();
    IF OLD.status = 'suspended' THEN
        NEW.suspended_at := NULL;
        NEW.unsuspended_at := epoch();
        -- nobody has shown that the mailbox is theirs
        IF NEW.status = 'active' AND NEW.activated_at IS NULL THEN NEW.status := 'provisioned'; END IF;
    ELSIF NEW.status = 'suspended' THEN
        NEW.suspended_at := epoch();
        NEW.unsuspended_at := NULL;
    ELSIF NEW.status = 'active' THEN
        NEW.activated_at := epoch();
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION accounts_dated IS 'Sets the times of a change of the status.';

CREATE TRIGGER accounts_dated BEFORE UPDATE OF status ON accounts FOR EACH ROW WHEN (OLD.status <> NEW.status)
    EXECUTE FUNCTION accounts_dated();
COMMENT ON TRIGGER accounts_dated ON accounts IS 'The same status again changes nothing.';

CREATE FUNCTION accounts_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    IF OLD.email <> NEW.email THEN PERFORM mailbox_left(NEW.id); END IF;
    PERFORM status_follow(NEW.id);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION accounts_changed IS 'Calls mailbox_left() and status_follow().';

CREATE TRIGGER accounts_changed AFTER UPDATE ON accounts FOR EACH ROW
    WHEN (OLD.status <> NEW.status OR OLD.email <> NEW.email) EXECUTE FUNCTION accounts_changed();
COMMENT ON TRIGGER accounts_changed ON accounts IS 'Mail that became wrong is withdrawn, and links to an earlier mailbox end.';

CREATE FUNCTION accounts_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM proofs AS p USING gone AS g WHERE p.account = g.id;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION accounts_deleted IS 'Deletes the proofs of accounts. Their tokens go by a foreign key.';
CREATE TRIGGER accounts_deleted AFTER DELETE ON accounts REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION accounts_deleted();
COMMENT ON TRIGGER accounts_deleted ON accounts IS 'An id that is used again gets no proof of another account.';

CREATE FUNCTION truncate_refused() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'TRUNCATE would leave mail about tokens in the queue' USING
        ERRCODE = 'object_not_in_prerequisite_state', HINT = 'DELETE withdraws it.';
END $$;
COMMENT ON FUNCTION truncate_refused IS 'Refuses the statement.';
