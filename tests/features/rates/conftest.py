"""Daemons on a database for one test."""

from __future__ import annotations

import pytest

from tests.features.rates.mail_clock import MailClock


@pytest.fixture
def clock() -> MailClock:
    return MailClock()
