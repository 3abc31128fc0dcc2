"""Commands of `queuectl campaign`."""
