"""The decorator of commands, and options, values and output that several commands have."""
