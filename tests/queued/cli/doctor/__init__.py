"""Tests of `queuectl doctor`."""
