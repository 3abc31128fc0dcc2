"""An installation for `queuectl doctor`, and its name server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pgmta.postgres.operator import connected
from pgmta.store.admin.examination import TIME_LIMITS, Examination
from queued.cli.doctor.queue_checks import QueueChecks
from queued.cli.doctor.server_checks import ServerChecks
from queued.cli.queuectl import main
from tests.support.name_server import Zone, serving_names


class Doctor:
    """An installation without daemons, and what the command says about it."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder = folder
        self.uri = uri
        self.settings: dict[str, Any] = {"environment": {"database": {"uri": uri}}}

    def ask(self, *words: str) -> dict[str, list[dict[str, str]]]:
        config = self.folder / "queued.yaml"
        config.write_text(yaml.safe_dump(self.settings))
        result = CliRunner().invoke(main, ["doctor", "-c", str(config), "--json", *words])
        assert result.exit_code in (0, 1), result.output
        found: dict[str, list[dict[str, str]]] = {}
        for each in json.loads(result.stdout):
            found.setdefault(each["check"], []).append(each)
        return found

    def wrong_there(self) -> dict[str, list[dict[str, str]]]:
        """The same by the checks of the database alone, which take no further process."""
        return asyncio.run(self.look())

    async def look(self) -> dict[str, list[dict[str, str]]]:
        """Do the same in a coroutine."""
        found: dict[str, list[dict[str, str]]] = {}
        async with connected(self.uri, TIME_LIMITS) as db:
            examination = Examination(db)
            checks = ServerChecks(examination).all()
            checks |= QueueChecks(examination, self.uri, smtpd=True).all()
            for name, check in checks.items():
                bad = [asdict(each) async for each in check() if each.severity != "ok"]
                if bad:
                    found[name] = bad
        return found

    def wrong(self, *words: str) -> dict[str, list[dict[str, str]]]:
        """The errors and warnings, by check."""
        return {
            name: bad
            for name, every in self.ask(*words).items()
            if (bad := [each for each in every if each["severity"] in ("error", "warning")])
        }


@pytest.fixture
def patient(tmp_path: Path, database: str) -> Doctor:
    return Doctor(tmp_path, database)


@pytest.fixture
def zone(patient: Doctor) -> Iterator[Callable[[Zone], None]]:
    """A function that gives the installation a name server with a zone."""
    with ExitStack() as stack:

        def use(records: Zone) -> None:
            server = stack.enter_context(serving_names(records))
            patient.settings["delivery"] = {"dns": {"servers": [server.where]}}

        yield use
