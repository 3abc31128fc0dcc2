"""A `queued web` that logs in as pgmta_web, and accounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.features.lifecycle.conftest import accounts
from tests.web.web import RETURN, Web, return_to, serving

__all__ = ["accounts"]


@pytest.fixture
def as_web(database: str, accounts: psycopg.Connection) -> str:
    """The database as the role of `queued web` sees it; recoveries return to RETURN."""
    return_to(accounts, RETURN)
    return make_conninfo(database, options="-c role=pgmta_web")


@pytest.fixture
def web(as_web: str, tmp_path: Path) -> Iterator[Web]:
    """A server with the usual settings."""
    with serving(tmp_path, as_web) as daemon:
        yield daemon
