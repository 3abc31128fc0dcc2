"""An API that logs in as pgmta_api."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.features.http_api.served import ServedApi, serving_api


@pytest.fixture
def as_api(database: str) -> str:
    """The database as the role of the API sees it."""
    return make_conninfo(database, options="-c role=pgmta_api")


@pytest.fixture
def api(as_api: str, tmp_path: Path) -> Iterator[ServedApi]:
    """An API with the usual settings."""
    with serving_api(tmp_path, as_api) as daemon:
        yield daemon
