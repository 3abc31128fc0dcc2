-- name: note
-- Note in the log what a provider says of mail that it took; the outcome of each event in their order.
SELECT pgmta.callbacks_note(%(hosts)b::text[], %(tenants)b::text[], %(messages)b::bigint[], %(rows)b::bigint[],
    %(kinds)b::text[], %(classes)b::text[], %(codes)b::text[], %(sub_types)b::text[], %(words)b::text[], %(ats)b::timestamptz[])

-- name: notable
-- Whether the role may note events.
SELECT coalesce(has_function_privilege(to_regprocedure('pgmta.callbacks_note(text[], text[], bigint[], bigint[], text[], text[],'
    'text[], text[], text[], timestamptz[])'), 'EXECUTE'), false)
