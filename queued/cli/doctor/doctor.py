"""The command `queuectl doctor`: faults, each with a remedy."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click
import psycopg

from pgmta.command import EXIT_FAILURE, print_json, print_line, progress
from pgmta.errors import ConfigError, FormerDatabase, LoginRefused, PgmtaError, StoreUnavailable
from pgmta.features import loaded
from pgmta.postgres.operator import OperatorConnection, connect_operator
from pgmta.postgres.primary import host_count
from pgmta.store.admin.examination import TIME_LIMITS, Examination
from queued.cli.doctor.diagnosis import NOTHING, Check, Diagnosis, error, unknown
from queued.cli.doctor.host_checks import HostChecks
from queued.cli.doctor.internet_checks import InternetChecks
from queued.cli.doctor.queue_checks import OF_HEARTBEATS, QueueChecks
from queued.cli.doctor.server_checks import LOST_HOSTS, ServerChecks
from queued.cli.options.queue_command import command, database_of
from queued.config import QueuedConfig, read_config
from queued.delivery.transports import parsers

_MAILDROP = Path("/var/spool/pgmta/maildrop")
_AGAIN = "look at the server, and run `queuectl doctor` again"


@command(json=True)
@click.option(
    "--smtpd", type=click.Path(path_type=Path), metavar="FILE",
    help="The smtpd.yaml; default: the one beside queued.yaml, if there is one.",
)  # fmt: skip
@click.option("--no-network", is_flag=True, help="Ask no name servers, and connect to no host.")
@click.option(
    "--probe", default="gmail.com", show_default=True, metavar="DOMAIN",
    help="Domain whose MX hosts are tried, unless mail went out lately.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Also name the checks that found nothing.")
async def doctor(
    config: Path, smtpd: Path | None, no_network: bool, probe: str, every: bool, as_json: bool
) -> None:
    """Check database, queue, files, host and DNS, and print a remedy for each fault.

    It changes nothing. Exits with 1 if there is an error or a warning. A count of the queue takes a
    second per million rows.
    """
    if smtpd and not smtpd.exists():
        raise ConfigError([f"--smtpd: there is no file {smtpd}"])
    beside = smtpd or config.with_name("smtpd.yaml")
    found = [each async for each in _examined(config, beside, "" if no_network else probe)]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        _print(found, every=every)
    if any(each.severity in ("error", "warning") for each in found):
        sys.exit(EXIT_FAILURE)


async def _examined(config: Path, smtpd: Path, probe: str) -> AsyncIterator[Diagnosis]:
    """Run all checks, and yield what they find; a check that finds nothing is ok."""
    settings: QueuedConfig | None = None
    with suppress(ConfigError):  # the check of that file names its mistakes
        settings = read_config(config, parsers(), passwords=False)
    db: OperatorConnection | None = None
    examination: Examination | None = None
    own_login = True
    if settings:
        try:
            uri = database_of(config)
            db = await connect_operator(uri, TIME_LIMITS)
            examination = Examination(db)
            own_login = (await examination.ask("delivers"))[0]["delivers"]
        except (StoreUnavailable, ConfigError) as fault:
            text = " ".join(str(fault).split())
            # the text of a refused login, or of a former database, has its remedy
            there = isinstance(fault, (LoginRefused, FormerDatabase))
            remedy = _remedy(settings.environment.database.uri)
            yield error("database", text, "" if there else remedy)
    checks: dict[str, Check] = HostChecks(
        config, smtpd, _folders(settings), examination, own_login=own_login
    ).all()
    try:
        if settings and examination and not await _has_queue(examination):
            remedy = "run `queuectl database migrate`"
            yield error("schema", "the database has no queue yet", remedy)
            examination = None  # the other checks would ask its tables
        elif settings and examination:
            embedded = not settings.environment.database.uri
            hosts = host_count(uri)
            checks |= ServerChecks(examination, embedded=embedded, hosts=hosts).all()
            checks |= QueueChecks(examination, uri, smtpd=smtpd.exists()).all()
            checks |= await _of_features(examination)
            if await _takes_no_writes(examination):
                for name in OF_HEARTBEATS:
                    del checks[name]
        if settings and probe:
            checks |= InternetChecks(config, settings, examination, probe).all()
        with progress("checks", len(checks)) as advance:
            lost = False
            for name, check in checks.items():
                async for each in _run(name, check, db):
                    if each.check != "database" or not lost:
                        yield each
                    lost = lost or each.check == "database"
                advance(1)
    finally:
        if db:
            await db.close()


def _remedy(uri: str | None) -> str:
    if not uri:
        return "start the embedded PostgreSQL: `queuectl database run`"
    if host_count(uri) > 1:
        return f"{LOST_HOSTS}; or mend environment.database.uri"
    return "start PostgreSQL, or mend environment.database.uri"


async def _has_queue(examination: Examination) -> bool:
    try:
        await examination.ask("schema")
    except psycopg.errors.UndefinedTable:
        return False
    except (psycopg.Error, PgmtaError):  # the check of the schema says so
        return True
    return True


async def _takes_no_writes(examination: Examination) -> bool:
    with suppress(psycopg.Error, PgmtaError):  # the check of the settings says so
        return any(
            row["name"] == "transaction_read_only" and row["setting"] == "on"
            for row in await examination.ask("settings")
        )
    return False


async def _of_features(examination: Examination) -> dict[str, Check]:
    found: dict[str, Check] = {}
    for checks in loaded("doctor_checks"):
        with suppress(psycopg.Error, PgmtaError):  # the other checks say so
            found |= await checks(examination)
    return found


async def _run(name: str, check: Check, db: OperatorConnection | None) -> AsyncIterator[Diagnosis]:
    nothing = True
    try:
        async for each in check():
            nothing = False
            yield each
    except psycopg.errors.InsufficientPrivilege as fault:
        yield unknown(name, f"this login may not: {fault.diag.message_primary}")
    except psycopg.errors.QueryCanceled:
        yield unknown(name, "the question took more than 10 s")
    except (psycopg.Error, PgmtaError) as fault:
        text = " ".join(str(fault).split())
        if db and db.closed:
            yield error("database", f"the connection was lost during the checks: {text}", _AGAIN)
        else:
            yield unknown(name, text)
    else:
        if nothing:
            yield Diagnosis(name, "ok", NOTHING)


def _folders(settings: QueuedConfig | None) -> list[Path]:
    """Return the folders of this host that grow: the embedded server's, and the maildrop."""
    found = [_MAILDROP] if _MAILDROP.exists() else []
    if settings and not settings.environment.database.uri:
        found.append(settings.environment.directory)
    return found


def _print(found: list[Diagnosis], *, every: bool) -> None:
    order = ("error", "warning", "unknown", "ok")
    for each in sorted(found, key=lambda each: order.index(each.severity)):
        if each.severity != "ok" or each.finding != NOTHING or every:
            print_line(f"{each.severity:<8} {each.check}: {each.finding}")
            if each.remedy:
                print_line(f"{'':<8} -> {each.remedy}")
    counts = {word: sum(each.severity == word for each in found) for word in order}
    print_line(", ".join(f"{number} {word}" for word, number in counts.items()))
