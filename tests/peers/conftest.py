"""Fixtures of the tests with other mail servers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.collector import Collector
from tests.scenarios.conftest import system
from tests.support.database import data_folder

__all__ = ["system"]


@pytest.fixture
def hop() -> Iterator[Collector]:
    """A running next hop of another server."""
    with Collector() as collector:
        yield collector


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that daemons of other users may pass through; see data_folder()."""
    folder = data_folder()
    place = folder / "peer"
    place.mkdir()
    place.chmod(0o755)
    yield place
    shutil.rmtree(folder, ignore_errors=True)
