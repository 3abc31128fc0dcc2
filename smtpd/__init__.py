"""The SMTP front end: takes mail and writes it into the queue."""
