"""From claimed rows to envelopes: returned mail, deadline, content, checks, signature."""
