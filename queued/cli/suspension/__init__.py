"""Commands that suspend and resume mail."""
