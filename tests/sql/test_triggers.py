"""Each trigger of the schema has a statement here whose result depends on it."""

from __future__ import annotations

import psycopg

from tests.support.rows import column, message, row

PREPARED = """
INSERT INTO rules (name, condition, reason, action, origin)
    VALUES ('r', 'true', 'why', 'hold', 'operator');
INSERT INTO users (name, password) VALUES ('u', '$argon2id$');
INSERT INTO user_networks (name, network) VALUES ('u', '192.0.2.0/24');
INSERT INTO templates (name, version, sender, from_field, subject, body)
    VALUES ('campaign', 1, '', 'a@b.example', 's', 'b');
"""
INSERT = "INSERT INTO queue (message_id, sender, recipient, domain) VALUES "
CAMPAIGN = (
    "INSERT INTO campaigns (name, credential, template_id, sender)"
    " SELECT 'c', 'k', id, '' FROM templates;"
    " INSERT INTO campaign_recipients (campaign_id, number, recipient, domain)"
    " SELECT id, 1, 'a@b.example', 'b.example' FROM campaigns;"
)
"""A campaign with a recipient."""
JOB = (
    " INSERT INTO campaign_jobs (campaign_id, first, last, fed_to)"
    " SELECT id, 1, 1, 0 FROM campaigns;"
)

WAITING = (
    " UPDATE campaign_recipients SET state = 'queued', message_id = (SELECT id FROM messages);"
)
ATTEMPT = (
    "INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code, event,"
    " sender, recipient, domain, worker, host, command, enhanced, reply) VALUES (now(), 1, 1, 1, 1,"
    " 250, 'delivered', 's@a.example', 'a@b.example', 'b.example', 'w', 'h', 'end', '2.0.0', 'ok');"
)
RETURNED = (
    " UPDATE attempts SET class = 'unknown_user', returned_at = now(), returned = '550 5.1.1 x';"
)

TABLE = (
    "SELECT events_subscribe('s.t', 'table'); INSERT INTO event_tables (name, number)"
    " OVERRIDING SYSTEM VALUE VALUES ('s.t', 1); CREATE VIEW event_rows_1 AS SELECT;"
)
"""A subscribed table and the view to it."""

WITNESSES = {
    "queue_sender_domain": (
        INSERT + "(1, 's@A.example', 'r@b.example', 'b.example') RETURNING sender_domain",
        "a.example",
    ),
    "queue_sender_domain_changed": (
        "UPDATE queue SET sender = 's@B.example' RETURNING sender_domain",
        "b.example",
    ),
    "queue_message": (
        INSERT + "(9, 's@a.example', 'r@b.example', 'b.example') RETURNING message_id",
        "ForeignKeyViolation",
    ),
    "queue_message_changed": (
        "UPDATE queue SET message_id = 9 RETURNING message_id",
        "ForeignKeyViolation",
    ),
    "queue_hold_stamp": (
        "UPDATE queue SET status = 'REPORT' RETURNING report_kind || ', ' || hold_reason",
        "bounced, no reason given",
    ),
    "queue_send_at": (
        "UPDATE queue SET send_at = now() + interval '1 h', next_attempt = now()"
        " RETURNING next_attempt > now()",
        "True",
    ),
    "messages_refcount": ("DELETE FROM queue; SELECT count(*) FROM messages", "0"),
    "messages_in_use": ("DELETE FROM messages RETURNING id", "ForeignKeyViolation"),
    "messages_renumbered": ("UPDATE messages SET id = 9 RETURNING id", "ForeignKeyViolation"),
    "messages_truncated": (
        "TRUNCATE messages; SELECT count(*) FROM messages",
        "ForeignKeyViolation",
    ),
    "templates_unchanged": (
        "INSERT INTO templates (name, version, sender, from_field, subject, body)"
        " VALUES ('t', 1, 's@a.example', 's@a.example', 'x', 'x');"
        " UPDATE templates SET subject = 'y' RETURNING subject",
        "ObjectNotInPrerequisiteState",
    ),
    "rules_valid": ("UPDATE rules SET condition = 'nothing = 1'", "InvalidParameterValue"),
    "rules_renumbered": (
        "WITH former AS (SELECT id FROM rules)"
        " UPDATE rules SET condition = 'false' RETURNING id > (SELECT id FROM former)",
        "True",
    ),
    "rules_changed": (
        "UPDATE rules SET reason = 'x'; SELECT version = last_value FROM rules_version, versions",
        "True",
    ),
    "rules_emptied": (
        "TRUNCATE rules; SELECT version = last_value FROM rules_version, versions",
        "True",
    ),
    "users_touched": (
        "WITH former AS (SELECT version FROM users)"
        " UPDATE users SET tenant = 't' RETURNING version > (SELECT version FROM former)",
        "True",
    ),
    "users_changed": (
        "UPDATE users SET tenant = 't'; SELECT version = last_value FROM users_version, versions",
        "True",
    ),
    "users_forgotten": ("DELETE FROM users; SELECT count(*) FROM user_networks", "0"),
    "suppressions_added": (
        "INSERT INTO suppressions (address, reason) VALUES ('a@b.example', 'operator');"
        " SELECT suppressed('', '', '{A@b.example}')",
        "[True]",
    ),
    "suppressions_changed": (
        "INSERT INTO suppressions (address, reason) VALUES ('a@b.example', 'operator');"
        " UPDATE suppressions SET address = 'c@b.example';"
        " SELECT suppressed('', '', '{c@b.example}')",
        "[True]",
    ),
    "campaign_recipients_added": (
        CAMPAIGN + " SELECT sum(unsent) FROM campaign_counts",
        "1",
    ),
    "campaign_recipients_changed": (
        CAMPAIGN + " UPDATE campaign_recipients SET state = 'sent';"
        " SELECT sum(sent) FROM campaign_counts",
        "1",
    ),
    "campaign_recipients_removed": (
        CAMPAIGN + " DELETE FROM campaign_recipients; SELECT sum(unsent) FROM campaign_counts",
        "0",
    ),
    "campaign_counts_first_bounces": (
        CAMPAIGN + JOB + " DELETE FROM campaign_counts;"
        " INSERT INTO campaign_counts (campaign_id, slot, failed, bounced)"
        " SELECT id, 0, 11, 11 FROM campaigns;"
        " SET CONSTRAINTS ALL IMMEDIATE; SELECT count(*) FROM campaign_alarms",
        "1",
    ),
    "campaign_counts_more_bounces": (
        CAMPAIGN + JOB + " UPDATE campaign_counts SET failed = 11, bounced = 11;"
        " SET CONSTRAINTS ALL IMMEDIATE; SELECT count(*) FROM campaign_alarms",
        "1",
    ),
    "campaign_jobs_move": (
        CAMPAIGN + JOB + " UPDATE campaign_jobs SET status = 'STOPPED' RETURNING former",
        "READY",
    ),
    "suppressions_added_withdraw": (
        CAMPAIGN + WAITING + " INSERT INTO suppressions (address, reason) VALUES"
        " ('a@b.example', 'operator'); SELECT state FROM campaign_recipients",
        "invalid",
    ),
    "suppressions_changed_withdraw": (
        CAMPAIGN + WAITING + " INSERT INTO suppressions (address, reason) VALUES"
        " ('c@b.example', 'operator'); UPDATE suppressions SET address = 'a@b.example';"
        " SELECT state FROM campaign_recipients",
        "invalid",
    ),
    "returned_campaign": (
        CAMPAIGN + ATTEMPT + " UPDATE attempts SET metadata = jsonb_build_object('_campaign',"
        " (SELECT id || '.1.1' FROM campaigns));"
        + RETURNED
        + " SET CONSTRAINTS ALL IMMEDIATE; SELECT bounced FROM campaign_recipients",
        "True",
    ),
    "returned_suppress": (
        ATTEMPT + RETURNED + " SELECT count(*) FROM suppressions",
        "1",
    ),
    "event_tables_gone": (
        TABLE + " DELETE FROM event_tables; SELECT to_regclass('pgmta.event_rows_1')",
        "None",
    ),
    "webhooks_subscribed": (
        "INSERT INTO event_subscriptions (name, kind) VALUES ('webhooks', 'webhook');"
        " INSERT INTO webhooks (name, url, secret, batch, cursor)"
        " VALUES ('shop', 'https://a.example', 'file:shop', 1, '1.0.0');"
        " DELETE FROM event_subscriptions",
        "ObjectInUse",
    ),
    "suspensions_valid": (
        "INSERT INTO suspensions (kind, value, reason) VALUES ('condition', 'nothing = 1', 'r')",
        "InvalidParameterValue",
    ),
    "suspensions_changed": (
        "INSERT INTO suspensions (kind, value, reason) VALUES ('domain', 'b.example', 'r');"
        " SELECT version = last_value FROM suspensions_version, versions",
        "True",
    ),
    "suspension_domains_changed": (
        "INSERT INTO suspensions (kind, value, reason) VALUES ('mx', 'mx.b.example', 'r');"
        " SELECT set_config('test.before', version::text, true) FROM suspensions_version;"
        " INSERT INTO suspension_domains SELECT id, 'b.example' FROM suspensions;"
        " SELECT version > current_setting('test.before')::bigint FROM suspensions_version",
        "True",
    ),
    "dkim_keys_changed": (
        "TRUNCATE dkim_keys; SELECT version = last_value FROM dkim_keys_version, versions",
        "True",
    ),
}
"""By trigger: statements, and the value of the last one or the error of the first that fails."""


def result(db: psycopg.Connection, statements: str) -> str:
    """The first value of the last statement, or the name of the error."""
    try:
        with db.transaction(force_rollback=True):
            for statement in statements.split(";"):
                cursor = db.execute(statement.encode())
            return str((cursor.fetchone() or ("",))[0] if cursor.description else "")
    except psycopg.Error as error:
        return type(error).__name__


def test_every_trigger_has_a_witness(db: psycopg.Connection) -> None:
    triggers = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgparentid = 0"
    assert sorted(column(db, triggers)) == sorted(WITNESSES)


def test_the_result_depends_on_the_trigger(db: psycopg.Connection) -> None:
    row(db, message(db, 1))
    db.execute(PREPARED)
    tables: dict[str, str] = dict(
        db.execute("SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE tgparentid = 0")
    )
    for name, (statements, expected) in WITNESSES.items():
        assert result(db, statements) == expected, name
        with db.transaction(force_rollback=True):
            db.execute(f"ALTER TABLE {tables[name]} DISABLE TRIGGER {name}".encode())
            assert result(db, statements) != expected, name
