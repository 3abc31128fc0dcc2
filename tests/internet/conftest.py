"""The fake Internet, once for all cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.internet.case import all_cases
from tests.internet.internet import Internet


@pytest.fixture(scope="session")
def internet(
    server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Internet]:
    """Every host and name of all cases; their mail is under way."""
    internet = Internet(tmp_path_factory.mktemp("internet"), server, template, all_cases())
    yield internet
    internet.stop()
