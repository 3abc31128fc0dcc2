-- A release adds to queue.exempt_from, so an array of another shape would stop the release of all rows.

ALTER TABLE queue ADD CONSTRAINT queue_exempt_from CHECK (array_ndims(exempt_from) = 1) NOT VALID;
COMMENT ON CONSTRAINT queue_exempt_from ON queue IS 'A plain list.';
