"""The files that scripts/reference writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import ROOT


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which they are."""
    folder = tmp_path_factory.mktemp("made")
    subprocess.run([sys.executable, ROOT / "scripts" / "reference", folder], check=True)
    return folder
