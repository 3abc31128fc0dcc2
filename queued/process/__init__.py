"""The process of queued: its parts that duties and workers share."""
