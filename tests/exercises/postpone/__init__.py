"""A rule that puts the rows of one sender off."""
