"""Collectors whose connection to PostgreSQL breaks."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
import pytest

from tests.features.lifecycle.test_collector import END_COLLECTORS, MAILS, ONE_EACH, held
from tests.features.lifecycle.tokens import add_accounts, settings
from tests.support.daemons import Queued
from tests.support.far_host import FarHost, possible
from tests.support.rows import fetch
from tests.support.system import System
from tests.support.waiting import SLACK, until


def test_a_collector_that_idles_forgets_old_failures(
    accounts: psycopg.Connection, system: System, tmp_path: Path
) -> None:
    daemon = system.queued(**settings(tmp_path), **held(system))
    for number in range(1, 4):
        daemon.wait_log("waits for tokens", count=number)
        accounts.execute(END_COLLECTORS)
    daemon.wait_log("waits for tokens", count=4)
    assert all(event["seconds"] < 0.65 for event in daemon.events("connects again"))


@pytest.mark.slow
def test_a_silent_cut_is_found(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path
) -> None:
    """The server takes octets, and answers nothing."""
    daemon = system.queued(**settings(tmp_path, timeout="1s", healthcheck="3s"), **held(system))
    daemon.wait_log("waits for tokens")
    with psycopg.connect(database) as lock:
        lock.execute("LOCK TABLE lifecycle.waiting_tokens IN ACCESS EXCLUSIVE MODE")
        daemon.wait_log("connects again", timeout=3 + 5 + SLACK)
    daemon.wait_log("connected", count=2)


@pytest.mark.slow
@pytest.mark.skipif(not possible, reason="needs root, who may make a network namespace")
@pytest.mark.parametrize("healthcheck", [2, 4])
def test_lost_packets_are_found(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path, healthcheck: int
) -> None:
    """A collector on another host, whose packets to PostgreSQL are dropped."""
    with FarHost(database) as host:

        class FarQueued(Queued):
            before = host.before

        config = settings(tmp_path, timeout="1s", healthcheck=f"{healthcheck}s") | held(system)
        daemon = FarQueued(tmp_path, "far", host.uri, config, {})
        system.daemons.append(daemon)
        daemon.wait_log("waits for tokens")
        host.cut()
        began = time.monotonic()
        add_accounts(accounts, 3)
        daemon.wait_log("connects again", timeout=healthcheck + 5 + SLACK)
        assert time.monotonic() - began <= healthcheck + 5
        assert fetch(accounts, MAILS) == (0,)
        host.mend()
        until(lambda: fetch(accounts, MAILS) == (3,), timeout=60)
        daemon.clean()
    assert fetch(accounts, ONE_EACH) == (3, 3, 3, 0)
