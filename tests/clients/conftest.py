"""Fixtures of the tests with other clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.site import Site
from tests.clients.site import site as running_site
from tests.peers.conftest import place, system
from tests.support.system import System

__all__ = ["place", "system"]


@pytest.fixture
def site(system: System, place: Path) -> Iterator[Site]:
    """A running smtpd with all kinds of listeners."""
    with running_site(system, place) as running:
        yield running
