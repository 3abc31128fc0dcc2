"""The parts of one running queued, put together."""
