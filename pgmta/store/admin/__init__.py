"""The schema and its migrations, the running daemons and workers, upkeep."""
