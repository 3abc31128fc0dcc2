"""`queuectl init` writes files with which both daemons start."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import queued.daemon.queued
import smtpd.cli
from pgmta.config.loader import load
from pgmta.postgres.embedded.embedded_server import EmbeddedServer
from queued.cli.queuectl import main
from queued.config import read_config
from smtpd.config import SmtpdConfig
from tests.support.daemons import ROOT
from tests.support.database import data_folder
from tests.support.submit import Client, post
from tests.support.waiting import PATIENCE, free_port, until

FILES = ("smtpd.yaml", "queued.yaml", "shaping.yaml")


def init(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["init", str(folder), *words])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a space, in which an embedded server may live."""
    base = data_folder()
    yield base / "a relay"
    EmbeddedServer(base / "a relay" / "var").stop("immediate")
    shutil.rmtree(base)


def test_the_files_have_the_options(tmp_path: Path, database: str) -> None:
    words = ["--database", database, "--hostname", "mx.example.org", "--domain", "a.example",
             "--domain", "*.b.example", "--network", "10.0.0.0/8", "--port", "2525"]  # fmt: skip
    done = init(tmp_path, *words)
    assert done.exit_code == 0, done.output
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in FILES] == [0o640] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    settings = load(tmp_path / "smtpd.yaml", SmtpdConfig)
    assert settings.environment.database.uri == database
    assert settings.environment.hostname == "mx.example.org"
    assert settings.relay.domains == ["a.example", "*.b.example"]
    assert [str(network) for network in settings.relay.networks] == ["10.0.0.0/8"]
    assert (settings.listen[0].address, settings.listen[0].port) == ("0.0.0.0", 2525)
    assert read_config(tmp_path / "queued.yaml").environment.database.uri == database
    for command in (smtpd.cli.main, queued.daemon.queued.main):
        name = "smtpd.yaml" if command is smtpd.cli.main else "queued.yaml"
        checked = CliRunner().invoke(command, ["check", "-c", str(tmp_path / name)])
        assert (checked.exit_code, checked.stderr) == (0, ""), checked.output
    before = [(tmp_path / name).read_text() for name in FILES]
    again = init(tmp_path, "--hostname", "x.example")
    assert (again.exit_code, "exists already: --force" in again.stderr) == (1, True)
    assert [(tmp_path / name).read_text() for name in FILES] == before
    assert init(tmp_path, "--hostname", "x.example", "--force").exit_code == 0
    assert load(tmp_path / "smtpd.yaml", SmtpdConfig).environment.database.uri is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--database", "mysql://x"], "database.uri: is no libpq connection string"),
        (["--hostname", "a b"], "hostname: "),
        (["--domain", "a@b"], "error: --domain: "),
        (["--network", "10.0.0.0/99"], "error: --network: "),
        (["--address", "mx.example"], "error: --address: 'mx.example' is no IP address"),
        (["--address", "127.0.0.1:25"], "error: --address: '127.0.0.1:25' is no IP address"),
    ],
)
def test_mistakes_write_nothing(tmp_path: Path, words: list[str], reason: str) -> None:
    done = init(tmp_path / "new", *words)
    assert (done.exit_code, (tmp_path / "new").exists()) == (2, False)
    assert reason in done.stderr


@pytest.mark.slow
def test_daemons_start_with_them(folder: Path) -> None:
    """Without a database of the operator: mail comes in, and is in the queue."""
    port = free_port()
    done = init(folder, "--hostname", "mx.example.org", "--port", str(port),
                "--address", "127.0.0.1")  # fmt: skip
    assert done.exit_code == 0, done.output
    files = ["-c", str(folder / "queued.yaml")]
    queuectl = [sys.executable, "-c", "from queued.cli.queuectl import main; main()"]
    owner = subprocess.Popen(
        [*queuectl, "database", "run", *files], cwd=ROOT, stdout=subprocess.PIPE
    )
    daemons = []
    try:
        assert owner.stdout
        with owner.stdout as stdout:
            assert stdout.readline().startswith(b"PostgreSQL in ")
        assert CliRunner().invoke(main, ["database", "migrate", *files]).exit_code == 0
        for name in ("smtpd", "queued"):
            words = [sys.executable, "-m", name, "run", "-c", str(folder / f"{name}.yaml")]
            daemons.append(subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL))

        def greeted() -> bool:
            try:
                Client(port).close()
            except OSError:
                return False
            return True

        until(greeted)
        assert post(port, "a@a.example", ["b@nowhere.invalid"], b"Subject: x\r\n\r\nx\r\n") > 0
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            assert daemon.wait(PATIENCE) == 0
        owner.terminate()
        assert owner.wait(PATIENCE) == 0
