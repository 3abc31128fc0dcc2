-- The class of an answer: docs/decisions/0042-answers.md.

ALTER TABLE attempts ADD COLUMN class text;
COMMENT ON COLUMN attempts.class IS
    'Why it did not deliver, in one word such as unknown_user (docs/answers.md); null: delivered, or no attempt.';

CREATE OR REPLACE VIEW attempt_history AS
SELECT message_id, recipient, attempt, started_at, ended_at, ended_at - started_at AS duration,
    event, nullif(code, 0) AS code, nullif(enhanced, '') AS enhanced, reply,
    nullif(command, '') AS command, nullif(host, '') AS host, worker, sender, domain, row_id,
    tenant, message_id_header, submitted_by, metadata, address, tls_version, tls_cipher, tls_verified,
    dns_seconds, connect_seconds, tls_seconds, transaction_seconds, class
FROM attempts;
COMMENT ON COLUMN attempt_history.class IS 'As attempts.class.';
