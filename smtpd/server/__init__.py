"""The parts that all sessions of one process share, and their lines in the log."""
