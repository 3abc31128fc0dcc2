"""Mail as text: addresses, header fields, line ends, metadata (pure)."""
