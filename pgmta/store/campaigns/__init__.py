"""Campaigns in the database: what workers do with them, and what operators do and see."""
