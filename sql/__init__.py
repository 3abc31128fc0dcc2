"""SQL as text: migrations, named queries and the generated schema. No logic in Python here."""
