"""Kills queued and PostgreSQL by SIGKILL, and starts again what has died."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psycopg

from pgmta.errors import StoreUnavailable
from tests.support.daemons import Queued
from tests.support.database import PrivateServer
from tests.support.waiting import PATIENCE, until


class Killer:
    """Kills a worker or PostgreSQL by SIGKILL, and starts again what has died."""

    def __init__(self, chance: random.Random, server: PrivateServer, workers: list[Queued]) -> None:
        self._chance = chance
        self._server = server
        self._workers = workers
        self.done: Counter[str] = Counter()

    def kill(self) -> None:
        """Kill one of them."""
        ways: list[Callable[[], None]] = [self._worker, self._worker, self._backend, self._server_]
        way = self._chance.choice(ways)
        way()
        self.done[way.__name__.strip("_")] += 1

    def _worker(self) -> None:
        worker = self._chance.choice(self._workers)
        worker.kill()
        worker.start()

    def _backend(self) -> None:
        """The postmaster ends all others and recovers."""
        with suppress(psycopg.Error), psycopg.connect(self._server.uri, connect_timeout=5) as db:
            pids = [
                pid
                for (pid,) in db.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgmta%'"
                )
            ]
            if pids:
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(pids), signal.SIGKILL)

    def _server_(self) -> None:
        pid = self._server.pid()
        if pid:
            os.kill(pid, signal.SIGKILL)
        until(self._started, PATIENCE)

    def _started(self) -> bool:
        try:
            self._server.start()
        except (StoreUnavailable, psycopg.Error):
            return False
        return True

    def revive(self) -> None:
        """Start everything that has died."""
        until(self._started, PATIENCE)
        for worker in self._workers:
            if not worker.alive:
                worker.start()
