"""A worker: wake, claim, dispatch to lanes, settle."""
