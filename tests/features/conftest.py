"""The fixtures of scenarios, for features."""

from tests.scenarios.conftest import private_system, system

__all__ = ["private_system", "system"]
