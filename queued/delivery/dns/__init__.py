"""Questions to name servers, and the hosts of a destination in their order."""
