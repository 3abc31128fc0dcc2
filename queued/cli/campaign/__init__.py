"""Commands of campaigns: campaigns, jobs, suppressions, and forgetting."""
