"""The embedded PostgreSQL: one server per directory, its programs and files."""
