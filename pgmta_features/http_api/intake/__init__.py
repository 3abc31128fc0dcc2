"""Mail that comes by the API: its models, its group commit, and what streams into the database."""
