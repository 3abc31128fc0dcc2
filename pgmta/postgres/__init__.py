"""PostgreSQL: connections, binary arrays, notifications, the embedded server."""
