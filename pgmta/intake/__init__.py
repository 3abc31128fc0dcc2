"""Group commit: how accepted mail of every way in gets into the queue."""
