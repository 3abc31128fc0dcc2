"""Applications that have events in their own database: as rows of a table, or by a function."""
