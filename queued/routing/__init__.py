"""Which destination the mail of a recipient goes to, and how long it is tried (pure)."""
