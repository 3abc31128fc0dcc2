"""Mail as parts or as a template, submitted by SQL."""

from __future__ import annotations

import psycopg


def test_trial(db: psycopg.Connection) -> None:
    db.execute("""SELECT submit_mail('shop@example.org', ARRAY['Bob "B" <bob@example.com>', 'carl@example.com'], 'Grüße', 'Text', '<p>x</p>',
        cc => ARRAY['"Dan, D" <dan@example.net>', 'bob@EXAMPLE.com'], bcc => ARRAY['eve@example.net'], reply_to => 'help@example.org',
        headers => '{"X-Order": "4711"}',
        attachments => ARRAY[('logo.png', 'image/png', '\\x0102', 'logo'), ('Rechnung für Müller.pdf', 'application/pdf', convert_to(repeat('x', 9000), 'UTF8'), NULL)]::submit_attachment[])""")
    for row in db.execute("SELECT id, size, chunks, trace, message_id_header, ret, template_id, params::text, (SELECT string_agg(data, '' ORDER BY position) FROM message_chunks) FROM messages").fetchall():
        print(row[:-1]); print(row[-1].decode()[:900]); print(row[-1][-200:])
    print(db.execute("SELECT recipient, domain, status FROM queue").fetchall())
    db.execute("""INSERT INTO templates (name, version, sender, from_field, subject, body, words) VALUES ('receipt', 1, 's@a.example', 'S <s@a.example>', 'Order {{n}}', 'Hi {{name}}', '{"n": ["field"], "name": ["text"]}')""")
    print(db.execute("SELECT submit_template('receipt', 'Bob <bob@example.com>', '{\"n\": 7, \"name\": \"Ann\"}')").fetchone())
    for bad in ("submit_mail('s@a.example', '{}', 'x', 'y')", "submit_mail('s@a.example', '{bob}', 'x', 'y')", "submit_mail('s@a.example', ARRAY[E'B\nx <b@b.example>'], 'x', 'y')",
                "submit_mail('s@a.example', '{b@b.example}', E'x\ny', 'y')", "submit_mail('s@a.example', '{b@b.example}', repeat('x', 1000000), 'y')",
                "submit_mail('', '{b@b.example}', 'x', 'y')", "submit_mail('s@a.example', '{b@b.example}', 'x')",
                "submit_mail('s@a.example', '{b@b.example}', 'x', 'y', headers => '{\"From\": \"x\"}')",
                "submit_mail('s@a.example', '{b@b.example}', 'x', 'y', headers => '{\"X-A\": \"x\\ny\"}')",
                "submit_mail('s@a.example', '{b@b.example}', 'x', 'y', attachments => ARRAY[(NULL, NULL, 'x', NULL)]::submit_attachment[])",
                "submit_mail('s@a.example', '{b@b.example}', 'x', 'y', attachments => ARRAY[('a', 'text', 'x', NULL)]::submit_attachment[])",
                "submit_mail('s@a.example', '{b@b.example}', 'x', 'y', attachments => ARRAY[('a', 'image/png', 'x', 'logo')]::submit_attachment[])",
                "submit_template('receipt', 'bob@b.example', '{\"n\": 7}')", "submit_template('receipt', 'bob@b.example', '{\"n\": 7, \"name\": \"x\", \"y\": 1}')",
                "submit_template('receipt', 'bob@b.example', '{\"n\": \"a\\nb\", \"name\": \"x\"}')", "submit_template('receip', 'bob@b.example', '{\"n\": \"a\\nb\", \"name\": \"x\"}')",
                "submit_template('receipt', 'bob@b.example', '{\"n\": [7], \"name\": \"x\"}')", "submit_template('receipt', 'bob@b.example', '{\"n\": 7, \"name\": \"x\"}', 3)",
                "submit_template('receipt', NULL, '{\"n\": 7, \"name\": \"x\"}', 1)", "submit_mail('s@a.example', NULL, 'x', 'y')", "submit_mail('s@a.example', '{b@b.example}', NULL, 'y')"):
        try:
            print(db.execute(f"SELECT {bad}").fetchone(), "??", bad)
        except psycopg.Error as e:
            print(e.diag.sqlstate, e.diag.column_name, "|", e.diag.message_primary, "|", e.diag.message_detail, "|", e.diag.message_hint)
