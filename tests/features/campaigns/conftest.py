"""Daemons on a database with campaigns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.system import System


@pytest.fixture
def system(database: str, tmp_path: Path) -> Iterator[System]:
    """Daemons on the database of the test."""
    system = System(tmp_path, database)
    yield system
    system.clean()
