"""A sink that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.smtpd.sink.sink import Sink


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """The file of what the sink says."""
    return tmp_path / "said"


@pytest.fixture
def sink(tmp_path: Path, said: Path) -> Iterator[Sink]:
    with Sink(tmp_path / "var" / "sink").running(said) as sink:
        yield sink


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sink]:
    """A sink of tests that look at their own mail alone."""
    folder = tmp_path_factory.mktemp("shared")
    with Sink(folder / "var" / "sink").running(folder / "said") as sink:
        yield sink
