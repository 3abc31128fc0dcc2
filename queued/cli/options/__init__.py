"""The decorator of commands, and options and output that several commands have."""
