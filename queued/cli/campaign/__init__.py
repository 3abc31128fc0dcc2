"""Commands of campaigns, a file for each kind: jobs, suppressions, budgets, forgetting."""
