-- name: known
-- Those of some recipients, and of @domain, that are in the table.
SELECT recipients_known(%(addresses)b::text[])
