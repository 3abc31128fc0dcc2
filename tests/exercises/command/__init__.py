"""A command that shows the daemons that run."""
