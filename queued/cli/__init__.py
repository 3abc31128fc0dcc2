"""Commands: `queued` (the daemon) and `queuectl` (the operator's)."""
