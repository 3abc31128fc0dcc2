"""The text of DSNs: what a report says, in which language, and as which message (pure)."""
