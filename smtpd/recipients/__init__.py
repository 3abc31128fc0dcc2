"""Which recipients of relay domains there are: by a file, a table or the next hop."""
