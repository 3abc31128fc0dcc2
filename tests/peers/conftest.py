"""Fixtures of the tests with other mail servers."""

from tests.scenarios.conftest import system

__all__ = ["system"]
