-- name: known
-- Which of some recipients, and of entries such as @domain, are in the table.
SELECT recipients_known(%(addresses)b::text[])
