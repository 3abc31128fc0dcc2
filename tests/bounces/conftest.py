"""The daemons, once for all cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bounces.case import all_cases
from tests.bounces.house import House


@pytest.fixture(scope="session")
def house(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Every daemon; the mail of all cases is under way."""
    house = House(tmp_path_factory.mktemp("bounces"), server, template, all_cases())
    yield house
    house.stop()
