"""A folder for tests of packages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.database import memory_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory that every user may read."""
    folder = memory_folder()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
