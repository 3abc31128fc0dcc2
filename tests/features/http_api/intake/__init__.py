"""Mail that comes by the API."""
