"""Options and arguments that several commands have."""
