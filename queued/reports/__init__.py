"""Reports to senders: which are due, and their messages in the queue."""
