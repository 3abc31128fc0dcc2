"""The command queued, and the parts of one running queued, put together."""
