"""Tests of composed mail as text."""
