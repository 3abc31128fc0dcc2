-- name: create
-- Make a campaign.
SELECT campaign_create(%(name)s, %(credential)s, %(template)s, %(tenant)s, %(sender)s, %(scope)s, %(priority)s,
    %(visible_at)s, %(deadline)s, %(version)s) AS id

-- name: campaign
-- A campaign with its version of a template.
SELECT c.id, c.name, c.tenant, c.scope, c.credential, t.name AS template, t.version, t.sender, t.from_field, t.reply_to,
    t.subject, t.body, t.html, t.headers
FROM campaigns AS c JOIN templates AS t ON t.id = c.template_id WHERE c.id = %(campaign)s

-- name: rated
-- Credentials that have a budget.
SELECT substr(key, length('credential:') + 1) AS credential FROM budgets WHERE key ^@ 'credential:' ORDER BY key

-- name: worker
-- Whether a worker that delivers runs.
SELECT EXISTS (SELECT FROM worker_overview WHERE action = 'deliver' AND alive) AS runs

-- name: begin
-- Keep the campaign; the highest number of its recipients.
SELECT campaign_import(%(campaign)s) AS base

-- name: table
-- The list as it comes: `place` is the line of a file, or the number of a row.
CREATE TEMP TABLE imported_list (place integer, recipient text, domain text COLLATE "C", params jsonb)

-- name: copy
-- Rows of the list.
COPY pg_temp.imported_list (place, recipient, domain, params) FROM STDIN

-- name: other_kind
-- Take out rows of the other kind: a campaign goes to telephone numbers, or to mailboxes. Without earlier recipients
-- most rows decide, or the first one.
WITH kind AS MATERIALIZED (
    SELECT coalesce((SELECT r.domain = 'sms' FROM campaign_recipients AS r WHERE r.campaign_id = %(campaign)s ORDER BY r.number LIMIT 1),
        2 * count(*) FILTER (WHERE domain = 'sms') > count(*) OR 2 * count(*) FILTER (WHERE domain = 'sms') = count(*)
            AND (SELECT domain = 'sms' FROM pg_temp.imported_list ORDER BY place LIMIT 1)) AS by_sms
    FROM pg_temp.imported_list
)
DELETE FROM pg_temp.imported_list AS i USING kind WHERE (i.domain = 'sms') <> kind.by_sms
RETURNING i.place, i.recipient, kind.by_sms

-- name: twice
-- Rows of a mailbox that is there before: places below 0 are recipients of earlier imports.
CREATE TEMP TABLE imported_twice ON COMMIT DROP AS
SELECT place, recipient, first FROM (
    SELECT place, recipient, min(place) OVER (PARTITION BY suppression_address(recipient)) AS first FROM (
        SELECT place, recipient FROM pg_temp.imported_list
        UNION ALL SELECT number - {base} - 1, recipient FROM campaign_recipients WHERE campaign_id = {campaign}) AS listed
    ) AS found
WHERE place > first AND place > 0

-- name: duplicates
-- The same by place.
SELECT place, recipient, first FROM pg_temp.imported_twice ORDER BY place

-- name: index
-- For the batches of `store`.
CREATE INDEX ON pg_temp.imported_list (place)

-- name: analyze
-- So that PostgreSQL uses it.
ANALYZE pg_temp.imported_list, pg_temp.imported_twice

-- name: store
-- Recipients of the rows of some places, without duplicates; how many, and how many are suppressed.
WITH batch AS MATERIALIZED (
    SELECT i.recipient, i.domain, i.params, row_number() OVER (ORDER BY i.place) AS n FROM pg_temp.imported_list AS i
    WHERE i.place > %(after)s AND i.place <= %(last)s
        AND NOT EXISTS (SELECT FROM pg_temp.imported_twice AS t WHERE t.place = i.place)
), added AS (
    INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params, state, error_code)
    SELECT %(campaign)s, %(base)s + b.n, b.recipient, b.domain, b.params, CASE WHEN s.suppressed THEN 'invalid' ELSE 'unsent' END,
        CASE WHEN s.suppressed THEN 'suppressed' END
    FROM batch AS b JOIN unnest(suppressed(%(tenant)s, %(scope)s, ARRAY(SELECT o.recipient FROM batch AS o ORDER BY o.n)))
        WITH ORDINALITY AS s (suppressed, n) USING (n)
    ORDER BY b.n
    RETURNING state
)
SELECT count(*) AS added, count(*) FILTER (WHERE state = 'invalid') AS suppressed FROM added

-- name: recipient
-- One recipient.
SELECT number, recipient, params FROM campaign_recipients WHERE campaign_id = %(campaign)s AND number = %(number)s

-- name: last
-- The highest number.
SELECT coalesce(max(number), 0) AS number FROM campaign_recipients WHERE campaign_id = %(campaign)s

-- name: test
-- Put a mail for none of the recipients into the queue.
SELECT campaign_test(%(campaign)s, %(recipient)s, %(params)s::jsonb) AS id

-- name: csv
-- Recipients as CSV; times are of ISO 8601, in UTC.
COPY (SELECT {columns} FROM campaign_recipients WHERE campaign_id = {campaign} AND {chosen} ORDER BY number)
TO STDOUT (FORMAT csv, HEADER)

-- name: json
-- Recipients as JSON, a line each.
COPY (SELECT row_to_json(each)::text FROM (
    SELECT {columns} FROM campaign_recipients WHERE campaign_id = {campaign} AND {chosen} ORDER BY number) AS each) TO STDOUT
-- no character that would be quoted is in JSON
(FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02')
