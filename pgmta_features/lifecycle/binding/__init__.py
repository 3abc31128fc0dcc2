"""A users table of an application takes the place of the accounts of schema lifecycle."""
