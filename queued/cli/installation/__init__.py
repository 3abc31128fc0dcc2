"""Commands about an installation: its files, its database and its schema."""
