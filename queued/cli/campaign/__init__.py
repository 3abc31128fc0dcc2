"""`queuectl campaign` and `queuectl job`: one file for each kind of work on campaigns."""
