"""`queuectl doctor`: checks of database, queue, host and Internet, with remedies."""
