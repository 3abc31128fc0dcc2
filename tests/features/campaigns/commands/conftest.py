"""Fixtures of commands about lists of recipients."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.features.campaigns.commands.site import Site


@pytest.fixture
def site(tmp_path: Path, database: str, db: psycopg.Connection) -> Site:
    """A database with the campaign `news`."""
    found = Site(tmp_path, database, db)
    found.create()
    return found
