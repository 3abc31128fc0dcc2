"""Where claims begin while dead rows stand before the live ones: behind a mark."""
