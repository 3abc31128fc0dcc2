"""A duty that counts the rows of the queue in the log."""
