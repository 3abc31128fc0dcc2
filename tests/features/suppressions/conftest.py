"""A campaign, daemons on its database, and the role of `queued web`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.features.suppressions.campaign import Campaign
from tests.web.web import Web, serving


@pytest.fixture
def campaign(db: psycopg.Connection) -> Campaign:
    """A campaign of the scope news, without recipients."""
    return Campaign(db)


@pytest.fixture
def web(database: str, tmp_path: Path) -> Iterator[Web]:
    """A server that logs in as pgmta_web; the schema lifecycle is not there."""
    uri = make_conninfo(database, options="-c role=pgmta_web")
    with serving(tmp_path, uri, tokens={"activate": [], "recover": [], "confirm": []}) as daemon:
        yield daemon
