"""Commands about an installation: its files."""
