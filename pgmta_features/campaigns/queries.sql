-- name: settled
-- Part of settle: the recipients of campaigns, in the commit of their outcomes.
campaign_outcomes(%(of_campaigns)b::bigint[], %(of_numbers)b::integer[], %(of_mails)b::bigint[],
    %(of_rows)b::bigint[], %(of_states)b::text[], %(of_bounces)b::boolean[], %(of_codes)b::text[], %(of_sub_types)b::text[],
    %(of_started)b::timestamptz[], %(of_ended)b::timestamptz[], ARRAY(SELECT id FROM changed))

-- name: may_begin
-- Part of begin: the job of a row may be stopped, its recipient suppressed.
id = ANY (campaign_may_begin(%(ids)b::bigint[]))
