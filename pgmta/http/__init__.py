"""HTTP servers: that of `queued web`, and the page of the sink."""
