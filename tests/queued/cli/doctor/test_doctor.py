"""`queuectl doctor` finds each fault that is planted, names a remedy, and finds nothing else."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from pgmta.postgres import operator
from pgmta.store.admin.examination import Examination, Question
from queued.cli.doctor import host_checks, server_checks
from queued.cli.doctor.diagnosis import Diagnosis
from queued.cli.queuectl import main
from tests.queued.cli.doctor.conftest import Doctor
from tests.support.certificates import Certificate
from tests.support.database import fresh_database
from tests.support.operating import diagnosed
from tests.support.waiting import until

LIVING = """
INSERT INTO daemons (process, program, host, pid, version, schema, started_at)
SELECT p, p, 'h.example', 1, '1', (SELECT max(name) FROM schema_migrations),
    now() - interval '1 day'
FROM unnest('{queued,smtpd}'::text[]) AS p;
INSERT INTO workers (owner, name, action, reach) VALUES ('queued', 'all', 'deliver', 'true');
"""
DUE = "INSERT INTO messages (id, size, trace, body) VALUES (7, 1, '', 'x')"
ATTEMPTS = """
INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code, event, sender,
    recipient, domain, worker, host, command, enhanced, reply)
SELECT now(), n, n, n, 1, 450, '{}', 's@a.example', 'r@b.example', 'b.example', '', '', '', '', ''
FROM generate_series(1, 30) AS n
"""
ROW = (
    "INSERT INTO queue (message_id, sender, recipient, domain) "
    "VALUES (7, '', 'r@b.example', 'b.example')"
)
DROP_A_DAY = """
DO $$ BEGIN
    EXECUTE 'DROP TABLE attempts_' || to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD');
END $$
"""

PLANTED = {
    "commits do not wait": (
        "ALTER DATABASE {database} SET synchronous_commit = off",
        "durability", "does not wait for the disk",
    ),
    "a login's commits do not wait": (
        "CREATE ROLE {role} IN ROLE pgmta_queued; "
        "ALTER ROLE {role} IN DATABASE {database} SET synchronous_commit = off",
        "durability", "has a synchronous_commit",
    ),
    "no writes": (
        "ALTER DATABASE {database} SET default_transaction_read_only = on",
        "durability", "takes no writes",
    ),
    "a role is missing": (
        "INSERT INTO rights VALUES ('messages', 'pgmta_ghost', 'SELECT')", "roles", "pgmta_ghost",
    ),
    "a table without autovacuum": (
        "ALTER TABLE messages SET (autovacuum_enabled = off)", "autovacuum", "the table messages",
    ),
    "an invalid index": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'messages_pkey'::regclass",
        "indexes", "messages_pkey",
    ),
    "a trigger is off": (
        "ALTER TABLE queue DISABLE TRIGGER messages_refcount", "triggers", "messages_refcount",
    ),
    "no partition for tomorrow": (
        DROP_A_DAY, "days", "the log attempts",
    ),
    "a migration is missing": (
        "DELETE FROM schema_migrations", "schema", "queuectl database migrate",
    ),
    "the database is newer": (
        "INSERT INTO schema_migrations VALUES ('9999_later.sql', '')", "schema", "9999_later",
    ),
    "a daemon knows another schema": (
        "UPDATE daemons SET schema = '9998_x.sql' WHERE program = 'queued'", "schema", "9998_x",
    ),
    "no queued": (
        "DELETE FROM daemons WHERE program = 'queued'", "daemons", "no queued runs",
    ),
    "a silent daemon": (
        "INSERT INTO daemons (process, program, host, pid, version, schema, seen_at) VALUES "
        "('old', 'queued', 'gone.example', 7, '1', '', now() - interval '1 hour')",
        "daemons", "gone.example",
    ),
    "no worker": ("DELETE FROM workers", "workers", "no delivering worker runs"),
    "a row without a worker": (
        f"UPDATE workers SET condition = 'priority > 8'; {DUE}; {ROW}",
        "workers", "matched by no worker",
    ),
    "a failing rule": (
        "INSERT INTO rules (name, action, condition, reason, origin, created_by) VALUES "
        f"('odd', 'hold', '1 / (priority - 5) > 0', 'x', 'operator', 'me'); {DUE}; {ROW}",
        "workers", "division by zero",
    ),
    "a leaf without settings": (
        "ALTER TABLE queue_def_def RESET (fillfactor)",
        "partitions", "queue_def_def: lacks the settings",
    ),
    "a table that a publication stops": (
        "ALTER TABLE queue_def_def REPLICA IDENTITY DEFAULT; CREATE PUBLICATION cdc FOR ALL TABLES",
        "publications", "queue_def_def is in the publication cdc",
    ),
    "a table that a publication would stop": (
        "ALTER TABLE queue_hold REPLICA IDENTITY NOTHING",
        "publications", "ALTER TABLE pgmta.queue_hold REPLICA IDENTITY FULL;",
    ),
    "a collation of another system": (
        "UPDATE pg_database SET datcollversion = '1.0' WHERE datname = current_database()",
        "collation", "REFRESH COLLATION VERSION",
    ),
    "mail is late": (
        DUE + "; INSERT INTO queue (message_id, sender, recipient, domain, next_attempt) "
        "VALUES (7, '', 'r@b.example', 'b.example', now() - interval '1 hour')",
        "due mail", "no worker has taken it",
    ),
    "mail stays on hold": (
        DUE + "; INSERT INTO queue (message_id, sender, recipient, domain, status, hold_reason, "
        "ts) SELECT 7, '', 'r@b.example', 'b.example', 'HOLD', '550 no', now() - interval '2 days'",
        "hold", "a row on hold by",
    ),
    "nothing is delivered": (ATTEMPTS.format("deferred"), "outcomes", "of 30 attempts"),
    "unknown outcomes": (ATTEMPTS.format("unknown"), "outcomes", "ended as unknown"),
    "orphans": (
        "INSERT INTO messages (id, received_at, size, trace, body) "
        "VALUES (8, now() - interval '3 days', 1, '', 'x')",
        "orphans", "1 bodies have no row",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_the_database(
    name: str, patient: Doctor, db: psycopg.Connection, request: pytest.FixtureRequest
) -> None:
    statement, check, words = PLANTED[name]
    role = f"doctor_{secrets.token_hex(4)}"
    request.addfinalizer(lambda: db.execute(f"DROP ROLE IF EXISTS {role}".encode()))
    db.execute(LIVING.encode())
    before = patient.wrong_there()
    planted = statement.replace("{database}", db.info.dbname).replace("{role}", role)
    db.execute(planted.encode())
    after = patient.wrong_there()
    added = [
        each
        for every in after.values()
        for each in every
        if each not in before.get(each["check"], [])
    ]
    assert any(
        each["check"] == check and words in f"{each['finding']} {each['remedy']}" for each in added
    ), added
    assert all(each["remedy"] for each in added)
    if name == "a failing rule":
        assert any("`queuectl rule remove odd --release`" in each["remedy"] for each in added)
        assert any("`queuectl explain 7` shows the error" in each["remedy"] for each in added)
    assert not before.keys() - {"durability"}


def test_a_silent_daemon_that_another_one_follows_is_no_fault(
    patient: Doctor, db: psycopg.Connection
) -> None:
    db.execute(LIVING.encode())
    silent = """
        INSERT INTO daemons (process, program, host, pid, version, schema, started_at, seen_at)
        SELECT v.host, v.program, v.host, 1, '1', daemons.schema, now() - interval '9 hours',
            now() - interval '2 hours'
        FROM (VALUES ('c1', 'queued'), ('c2', 'smtpd')) AS v (host, program)
        JOIN daemons USING (program)
    """
    db.execute(silent.encode())
    found = patient.wrong_there()["daemons"]
    assert [each["finding"].split()[2] for each in found] == ["c1", "c2"]
    change = "UPDATE daemons SET {} = now() - interval '{}' WHERE process = 'queued'"
    db.execute(change.format("started_at", "1 hour").encode())
    [left] = patient.wrong_there()["daemons"]  # the new container of queued follows c1
    assert left["finding"].startswith("smtpd on c2")
    db.execute(change.format("seen_at", "5 minutes").encode())
    words = {each["finding"] for each in patient.wrong_there()["daemons"]}
    assert any(each.startswith("queued on c1") for each in words)


def test_faults_of_the_whole_server(
    patient: Doctor, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test may do these to a server that others use: limits and answers are changed."""
    db.execute(LIVING.encode())
    for name, limit in (
        ("_HELD_S", 0.0),
        ("_FULL_SHARE", 0.0),
        ("_OLD_TRANSACTIONS", 0),
        ("_MIN_VERSION", 10**9),
    ):
        monkeypatch.setattr(server_checks, name, limit)
    hour_later = SimpleNamespace(time=lambda: time.time() + 3600)
    monkeypatch.setattr(server_checks, "time", hour_later)
    real = Examination.ask

    async def ask(self: Examination, name: Question, **values: Any) -> list[dict[str, Any]]:
        rows = await real(self, name, **values)
        off = {"fsync", "full_page_writes", "autovacuum"}
        if name == "settings":
            return [{**row, "setting": "off"} if row["name"] in off else row for row in rows]
        slot = {"name": "a slot", "physical": True, "lost": False, "octets": 5 << 30}
        return [slot, {**slot, "name": "late", "lost": True}] if name == "slots" else rows

    monkeypatch.setattr(Examination, "ask", ask)
    with psycopg.connect(patient.uri) as other:
        other.execute("SELECT pg_current_xact_id()")
        found = patient.wrong_there()
    said = {name: " ".join(each["finding"] for each in every) for name, every in found.items()}
    assert (
        "the slot a slot has no reader, and keeps 5120 MB of WAL, until the disk is full"
        in (said["replication slots"])
    )
    assert "the slot late has lost WAL that its reader needs" in said["replication slots"]
    assert "the slot a slot waits for one" in said["loss of a host"]
    assert "keeps vacuum from its work" in said["xmin horizon"]
    assert "connections are in use" in said["connections"]
    assert "million transactions" in said["transaction age"]
    assert "behind that of this host" in said["clock"]
    assert "too old" in said["version"]
    assert "fsync is off" in said["durability"]
    assert "full_page_writes is off" in said["durability"]
    assert "autovacuum is off: the queue grows" in said["autovacuum"]


@pytest.mark.slow
def test_bloat_is_what_vacuum_left(
    patient: Doctor, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "_MIN_DEAD_ROWS", 10)
    db.execute("CREATE TABLE pgmta.ballast (n integer) WITH (autovacuum_enabled = off)")
    db.execute("INSERT INTO pgmta.ballast SELECT generate_series(1, 100)")
    db.execute("DELETE FROM pgmta.ballast")
    until(lambda: "bloat" in patient.wrong_there())
    found = patient.wrong_there()
    assert "the table ballast has 100 dead rows" in found["bloat"][0]["finding"]
    assert "the table ballast" in found["autovacuum"][0]["finding"]


def test_faults_of_files_and_disks(patient: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = patient.folder
    expired = Certificate.root().issue("mx.example", days=(-90, -1))
    (certificate, key) = expired.files(folder)
    smtpd = {
        "environment": {"database": {"uri": patient.uri}, "hostname": "mx.example"},
        "listen": [{"address": "127.0.0.1", "port": 2599}],
        "certificates": [{"certificate": str(certificate), "key": str(key)}],
    }
    (folder / "smtpd.yaml").write_text(yaml.safe_dump(smtpd))
    patient.settings["delivry"] = {}
    found = patient.wrong("--no-network")
    assert "delivery" in found["queued.yaml"][0]["finding"]
    assert any("expired" in each["finding"] for each in found["smtpd.yaml"]), found
    del patient.settings["delivry"]
    small = SimpleNamespace(f_bavail=10, f_frsize=4096, f_blocks=10**6, f_files=10, f_favail=10)
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    checks = host_checks.HostChecks(folder / "queued.yaml", folder / "none", [folder / "var"])
    (found_disk,) = diagnosed(patient.uri, lambda _: checks.disk())
    assert found_disk.severity == "error"


def test_a_database_that_is_away(patient: Doctor) -> None:
    patient.settings["environment"]["database"]["uri"] = "postgresql://postgres@127.0.0.1:1/none"
    (found,) = patient.wrong("--no-network")["database"]
    assert found["severity"] == "error"
    assert "environment.database.uri" in found["remedy"]


def test_a_login_that_sees_little_is_told_so(patient: Doctor, db: psycopg.Connection) -> None:
    db.execute(LIVING.encode())
    uri = make_conninfo(patient.uri, options="-c role=pgmta_operator")
    patient.settings["environment"]["database"]["uri"] = uri
    found = patient.ask("--no-network")
    (horizon,) = found["xmin horizon"]
    assert (horizon["severity"], "GRANT pg_monitor TO" in horizon["remedy"]) == (
        "unknown",
        True,
    )
    assert found["due mail"][0]["severity"] == "ok"


@pytest.mark.slow
def test_a_session_that_blocks_others_is_named(
    patient: Doctor, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named by each way to ask, and whatever needs no lock is still examined."""
    monkeypatch.setattr(server_checks, "_BLOCKING_S", 0.0)
    monkeypatch.setattr(operator, "LOCK_TIMEOUT_S", 0.5)
    db.execute(LIVING.encode())
    with psycopg.connect(make_conninfo(patient.uri, application_name="psql")) as other:
        other.execute("LOCK TABLE pgmta.queue")
        found = patient.ask("--no-network")
        pid = other.info.backend_pid
    (locks,) = found["locks"]
    assert locks["severity"] == "error"
    assert f"pid {pid} (psql, login " in locks["finding"]
    assert "idle in transaction" in locks["finding"]
    assert f"pg_terminate_backend({pid})" in locks["remedy"]
    for name in ("workers", "due mail", "hold", "partitions"):
        (each,) = found[name]
        assert (each["severity"], f"pid {pid} " in each["finding"]) == ("unknown", True), each
    assert {found[name][0]["severity"] for name in ("daemons", "days", "queued.yaml")} == {"ok"}


def test_a_session_that_has_a_row_is_named_while_another_waits(
    patient: Doctor, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "_BLOCKING_S", 0.0)
    db.execute(f"{LIVING}; {DUE}; {ROW}".encode())
    with psycopg.connect(patient.uri) as holder, psycopg.connect(patient.uri) as waiter:
        holder.execute("SELECT FROM queue FOR UPDATE")
        pid = holder.info.backend_pid
        waiting = threading.Thread(
            target=waiter.execute, args=("UPDATE queue SET tenant = 'x'",), daemon=True
        )
        waiting.start()
        found = until(lambda: patient.wrong_there().get("locks", []))
        holder.rollback()
        waiting.join()
    (locks,) = found
    assert locks["finding"].startswith(f"pid {pid} (")
    assert "1 sessions wait for it" in locks["finding"]


def test_the_login_of_an_operator_has_a_clean_run(
    patient: Doctor, db: psycopg.Connection, request: pytest.FixtureRequest
) -> None:
    role = f"doctor_{secrets.token_hex(4)}"
    request.addfinalizer(lambda: db.execute(f"DROP ROLE IF EXISTS {role}".encode()))
    db.execute(LIVING.encode())
    db.execute(f"CREATE ROLE {role} IN ROLE pgmta_operator, pg_monitor".encode())
    uri = make_conninfo(patient.uri, options=f"-c role={role}")
    patient.settings["environment"]["database"]["uri"] = uri
    patient.settings["workers"] = [{"name": "all", "action": "deliver", "where": "priority < 9"}]
    smtpd = {
        "environment": {"database": {"uri": uri}, "hostname": "mx.example"},
        "listen": [{"address": "127.0.0.1", "port": 2599}],
    }
    (patient.folder / "smtpd.yaml").write_text(yaml.safe_dump(smtpd))
    found = patient.ask("--no-network")
    for own in ("durability", "disk", "server disk"):  # of the server of the tests
        found.pop(own, None)
    assert [each for every in found.values() for each in every if each["severity"] != "ok"] == []


def test_the_disk_of_the_server_is_looked_at_or_unknown(
    patient: Doctor, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = patient.folder / "queued.yaml"

    def server_disk(examination: Examination) -> AsyncIterator[Diagnosis]:
        return host_checks.HostChecks(config, config, [], examination).server_disk()

    place = Path(db.execute("SHOW data_directory").fetchall()[0][0])
    real, asked = os.statvfs, list[Path]()

    def statvfs(path: Path) -> object:
        asked.append(Path(path))
        full = SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=10**6, f_files=0, f_favail=0)
        return full if Path(path) == place else real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    found = diagnosed(patient.uri, server_disk)
    assert any(
        each.severity == "error" and each.finding.startswith(f"{place} has room for 0 MB")
        for each in found
    ), found
    assert place / "pg_wal" in asked
    monkeypatch.setattr(host_checks, "_runs_here", lambda _: False)
    assert [each.severity for each in diagnosed(patient.uri, server_disk)] == ["unknown"]

    async def full(self: Examination) -> None:
        raise psycopg.errors.DiskFull

    monkeypatch.setattr(Examination, "write", full)
    assert [each.severity for each in diagnosed(patient.uri, server_disk)] == ["error"]
    assert not db.execute("SELECT FROM pg_class WHERE relname = 'room'").fetchall()


@pytest.mark.slow
def test_the_output_for_people(patient: Doctor, db: psycopg.Connection) -> None:
    db.execute(LIVING.encode())
    db.execute("DELETE FROM daemons WHERE program = 'queued'")
    config = patient.folder / "queued.yaml"
    config.write_text(yaml.safe_dump(patient.settings))
    result = CliRunner().invoke(main, ["doctor", "-c", str(config), "--no-network"])
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert "error    daemons: no queued runs" in lines
    assert lines[lines.index("error    daemons: no queued runs") + 1].startswith(
        "         -> start queued"
    )
    assert lines[-1].endswith(" ok")
    (said,) = (line for line in lines if line.startswith("ok"))
    assert said.startswith("ok       loss of a host: the loss of the database's host would lose")
    every = CliRunner().invoke(main, ["doctor", "-c", str(config), "--no-network", "--all"]).stdout
    assert "ok       bloat: nothing wrong" in every.splitlines()


def test_a_database_without_a_queue_is_named(server: str, tmp_path: Path) -> None:
    config = tmp_path / "queued.yaml"
    with fresh_database(server) as uri:
        config.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))
        for words in (
            "forget ann@b.example", "campaign create x --template y --credential z",
            "send --from a@b.example --to c@b.example --subject x --text x", "list",
        ):  # fmt: skip
            result = CliRunner().invoke(main, [*words.split(), "-c", str(config)])
            reason = "the database has no queue yet: run `queuectl database migrate`\n"
            assert reason in result.output, words
        found = Doctor(tmp_path, uri).ask("--probe", "gone.invalid")
    assert [each["remedy"] for each in found["schema"]] == ["run `queuectl database migrate`"]
    assert "days" not in found
    assert "does not exist LINE" not in str(found)
