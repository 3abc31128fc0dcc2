"""Keys of the API: their tokens, and what a process knows of them."""
