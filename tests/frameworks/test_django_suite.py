"""Django's own tests of mail pass with the backend of pgmta."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.daemons import ROOT
from tests.support.packages import DJANGO_TESTS, django_tests


@pytest.mark.needs(DJANGO_TESTS)
def test_djangos_tests_of_mail(database: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.frameworks.django_suite", database, str(django_tests())],
        cwd=ROOT, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 290
