"""A stage that composes the body from a parameter at delivery."""
