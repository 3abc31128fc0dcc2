"""Lists of recipients on their way into a campaign: files, queries, and what they may have."""
