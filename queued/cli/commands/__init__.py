"""The commands of queuectl, one a file."""
