"""Both daemons and queuectl work on a database of another encoding than UTF8."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg import sql

from pgmta.store.admin.migrate import migrate
from queued.cli.queuectl import main as queuectl
from tests.support.database import with_database
from tests.support.nexthop import at
from tests.support.submit import Client
from tests.support.system import System


@pytest.fixture(params=["SQL_ASCII", "LATIN1"])
def encoded(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database of an encoding."""
    name = f"pgmta_daemons_{request.param.lower()}"
    create = "CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0"
    drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server, autocommit=True) as admin:
        made = sql.SQL(create).format(sql.Identifier(name), sql.Literal(request.param))
        admin.execute(made)
        try:
            uri = with_database(server, name)
            migrate(uri)
            migrate(uri)  # the schema is there
            yield uri
        finally:
            admin.execute(drop)


@pytest.mark.slow
def test_mail_goes_through_a_database_of_another_encoding(encoded: str, tmp_path: Path) -> None:
    """Addresses stay what they are or are refused; a reply has `?` for characters that lack."""
    system = System(tmp_path, encoded)
    lacks = "latin1" in encoded
    try:
        hop = system.hop(at("end of data", "250 2.0.0 Reçu →"))
        smtpd = system.smtpd()
        with Client(smtpd.port) as client:
            client.command("EHLO client.example")
            for address, code in ("rené@b.example", 250), ("x→y@b.example", 451 if lacks else 250):
                assert client.command("MAIL FROM:<jürgen@a.example> SMTPUTF8").code == 250
                assert client.command(f"RCPT TO:<{address}>").code == 250
                assert client.command("DATA").code == 354
                assert client.finish("Subject: Grüße\r\n\r\nx\r\n".encode()).code == code
        system.queued(hop, workers=[{"name": "one", "where": "sender LIKE 'jürgen@%'"}])
        hop.wait_kept(1 if lacks else 2)
        system.wait_empty()
        assert {(each.mail.split()[1], *each.recipients) for each in hop.kept} == {
            ("FROM:<jürgen@a.example>", address)
            for address in ("rené@b.example", *(() if lacks else ("x→y@b.example",)))
        }
        config = tmp_path / "queuectl.yaml"
        config.write_text(yaml.safe_dump({"environment": {"database": {"uri": encoded}}}))
        words = ["find", "--recipient", "rené@*", "--json", "-c", str(config)]
        (row,) = json.loads(CliRunner().invoke(queuectl, words).stdout)
        assert row["sender"] == "jürgen@a.example"
        assert f"250 2.0.0 Reçu {'?' if lacks else '→'}" in row.values()
    finally:
        system.stop()
