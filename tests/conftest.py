"""Fixtures that every test may use."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
import structlog
import yaml
from hypothesis import HealthCheck, settings

from pgmta.postgres.link import Link
from pgmta.store.queue.claim import SESSION
from tests.support.database import (
    SERVER_URI,
    PrivateServer,
    fresh_database,
    memory_folder,
    server_uri,
    template_database,
)
from tests.support.packages import missing
from tests.support.queuectl import Command, queuectl

NEEDS = "needs the packages"

# how long an example takes is the machine's affair
settings.register_profile("pgmta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("pgmta"), max_examples=300)
settings.load_profile("pgmta")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Lengths of fuzzers and of random faults; `make test-all` has longer ones."""
    group = parser.getgroup("faults", "fuzzers and random faults")
    group.addoption("--faults-seconds", type=float, default=5.0, help="seconds with faults")
    group.addoption(
        "--faults-rounds", type=int, default=0, help="number of faults, without a limit of time"
    )
    group.addoption("--submission-rounds", type=int, default=2, help="rounds of 50 orders")
    group.addoption("--api-rounds", type=int, default=4, help="kills while mail comes by HTTP")
    group.addoption("--api-upload-megabytes", type=int, default=2, help="of 200 uploads each")
    group.addoption("--rolling-restarts", type=int, default=8, help="restarts of producers")
    group.addoption("--rolling-every", type=float, default=0.5, help="seconds between restarts")
    group.addoption("--promotions", type=int, default=2, help="of a standby that lacks commits")
    group.addoption("--bounce-kills", type=int, default=2, help="kills while messages fail")
    group.addoption("--bounce-messages", type=int, default=100, help="messages that fail")
    group.addoption("--event-kills", type=int, default=3, help="kills while events are written")
    group.addoption("--event-mails", type=int, default=500, help="mails with mixed outcomes")
    group.addoption("--burst-suppressions", type=int, default=1000, help="new ones at once")
    group.addoption("--switchovers", type=int, default=2, help="switchovers under load")
    group.addoption("--faults-only", default="", help="names of faults, with commas between")
    group.addoption("--fuzz-seconds", type=float, default=2.0, help="seconds of each fuzzer")
    group.addoption("--api-seconds", type=int, default=20, help="seconds of random requests")
    group.addoption("--late-seconds", type=float, default=8.0, help="seconds with late rows")
    group.addoption("--faults-seed", type=int, default=None, help="the same faults again")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks."""
    config.addinivalue_line(
        "markers", "needs(*packages): left out without these Debian packages, or without 'root'"
    )
    config.addinivalue_line(
        "markers", "slow: takes 5 s or more beside other work; left out by `make test`"
    )
    temporary = Path(tempfile.gettempdir()).resolve()
    if os.geteuid() == 0 and not all(f.stat().st_mode & 1 for f in (temporary, *temporary.parents)):
        os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"  # users of peers need a way to their files


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests without their packages, and on a server by URI those that use another one.

    With PGMTA_TEST_ALL a test without its packages fails instead.
    """
    if SERVER_URI:
        kept, others = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            (kept if "server" in getattr(item, "fixturenames", ()) else others).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=others)
    for item in items:
        packages = {p: None for mark in item.iter_markers("needs") for p in mark.args}
        if lacking := missing(tuple(packages)):
            reason = f"{NEEDS} {', '.join(lacking)}"
            if os.environ.get("PGMTA_TEST_ALL"):
                raise pytest.UsageError(f"{item.nodeid} {reason}; see scripts/test-packages")
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that were left out."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        _, _, reason = report.longrepr
        if NEEDS in reason:
            reasons[reason.partition(NEEDS)[2].strip()] += 1
    for packages, number in sorted(reasons.items()):
        terminalreporter.write_line(
            f"left out: {number} tests that need {packages}"
            " (scripts/test-packages gets those of Debian)"
        )


def _folder() -> Path:
    """A folder for a server's data, removed at exit."""
    folder = memory_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@pytest.fixture(autouse=True)
def _no_log_of_earlier_tests() -> Iterator[None]:
    """A test that configures the log leaves no loggers behind that `capture_logs` can't reach."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()


@pytest.fixture(scope="session")
def server() -> str:
    """URI of the server under test (PGMTA_TEST_URI, or an embedded PostgreSQL 18)."""
    return server_uri(_folder())


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """Name of a migrated database."""
    with template_database(server) as name:
        yield name


@pytest.fixture
def database(server: str, template: str) -> Iterator[str]:
    """URI of an empty, migrated database of this test's own."""
    with fresh_database(server, template) as uri:
        yield uri


@pytest.fixture
def db(database: str) -> Iterator[psycopg.Connection]:
    """A connection to `database`, in autocommit."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def link(database: str) -> AsyncIterator[Link]:
    """The connection of a worker."""
    link = Link(database, "test", SESSION)
    yield link
    await link.close()


@pytest.fixture
def config(database: str, tmp_path: Path) -> Path:
    """A queued.yaml for `database`."""
    path = tmp_path / "queued.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    return path


@pytest.fixture
def command(config: Path) -> Command:
    """Run queuectl with `config`."""
    return partial(queuectl, config)


@pytest.fixture(scope="session")
def stopped_server() -> Path:
    """The folder of a migrated PostgreSQL, to be copied."""
    folder = _folder()
    PrivateServer(folder).stop()
    return folder


@pytest.fixture
def private_server(stopped_server: Path) -> Iterator[PrivateServer]:
    """A PostgreSQL that the test may crash."""
    yield from _private_server(stopped_server)


@pytest.fixture
def other_server(stopped_server: Path) -> Iterator[PrivateServer]:
    """Another one."""
    yield from _private_server(stopped_server)


def _private_server(model: Path) -> Iterator[PrivateServer]:
    folder = _folder()
    server = PrivateServer(folder, model)
    yield server
    server.crash()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template_db(server: str, template: str) -> Iterator[psycopg.Connection]:
    """A connection to a migrated database of many tests, which only read."""
    with (
        fresh_database(server, template) as uri,
        psycopg.connect(uri, autocommit=True) as connection,
    ):
        yield connection
