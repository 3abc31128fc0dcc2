-- name: hash
-- How the audit names an address.
SELECT mailbox_hash(%(address)s) AS hash

-- name: parts
-- The parts of the database that a person may be in.
SELECT part FROM forget_parts() AS part

-- name: forget
-- Remove a person from one part; or count only.
SELECT forget(%(address)s, %(part)s, %(dry_run)s) AS removed
