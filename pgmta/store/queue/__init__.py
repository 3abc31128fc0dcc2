"""Rows and messages: in, claimed, settled; the conditions that choose them."""
