"""Commands of campaigns, one file for each kind of work: jobs, suppressions, forgetting."""
