"""HTTP: the server of all listeners that serve pages, and the client."""
