"""A campaign whose mail went to a provider."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.features.callbacks.provided import Provided
from tests.features.suppressions.campaign import Campaign


@pytest.fixture
def campaign(db: psycopg.Connection) -> Campaign:
    """A campaign of the scope news, without recipients."""
    return Campaign(db)


@pytest.fixture
def provided(campaign: Campaign) -> Provided:
    """Mail of a campaign that a provider took."""
    return Provided(campaign)


@pytest.fixture
def for_web(database: str) -> str:
    """The database as the role of `queued web` sees it."""
    return make_conninfo(database, options="-c role=pgmta_web")
