"""Fixtures of the scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.database import PrivateServer
from tests.support.system import System


@pytest.fixture
def system(database: str, tmp_path: Path) -> Iterator[System]:
    """An installation on an empty database."""
    yield from installation(tmp_path, database)


@pytest.fixture
def private_system(private_server: PrivateServer, tmp_path: Path) -> Iterator[System]:
    """An installation on a server that the test may crash."""
    yield from installation(tmp_path, private_server.uri)


def installation(folder: Path, uri: str) -> Iterator[System]:
    """An installation on that database, ended afterwards."""
    system = System(folder, uri)
    try:
        yield system
        system.stop()
    finally:
        system.clean()
    assert system.faults() == []
