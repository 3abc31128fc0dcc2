"""Fixtures for tests of the figures."""

from tests.scenarios.conftest import private_system as private_system
from tests.scenarios.conftest import system as system
