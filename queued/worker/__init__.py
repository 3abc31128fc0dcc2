"""A worker: wake, claim, dispatch to destinations, settle."""
