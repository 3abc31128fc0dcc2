"""Commands that go on until they are interrupted: what happens now."""
