"""Daemons on a database for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.features.rates.mail_clock import MailClock
from tests.support.system import System


@pytest.fixture
def system(database: str, tmp_path: Path) -> Iterator[System]:
    """Daemons on the database of the test."""
    system = System(tmp_path, database)
    yield system
    system.clean()


@pytest.fixture
def clock() -> MailClock:
    """The times of mail."""
    return MailClock()
