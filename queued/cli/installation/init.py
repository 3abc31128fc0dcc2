"""The command `queuectl init`: the files of a new installation."""

from __future__ import annotations

import grp
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from pgmta.command import print_line, reporting
from pgmta.config.config_place import SYSTEM_FOLDER
from pgmta.config.environment import Environment
from pgmta.config.loader import load, read_settings
from pgmta.config.types import parse_listen_address, parse_network
from pgmta.errors import AddressError, ConfigError, PgmtaError
from pgmta.mail.address import normalise_domain
from pgmta.postgres.embedded.folders import make_parents
from pgmta.postgres.locate import existing
from pgmta.shipped import shipped
from pgmta.store.admin.migrate import migrate as apply_migrations
from queued.config import whole_model

DATA_FOLDER = Path("/var/lib/pgmta")
"""The folder of an embedded PostgreSQL, if the files are those of an installation."""

_FILE_GROUP = "pgmta"
_FILE_MODE = 0o640  # the URI may have a password
_LOCAL_NETWORKS = ("127.0.0.0/8", "::1/128")


@click.command()
@click.argument(
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=SYSTEM_FOLDER,
    required=False,
)
@click.option("--database", metavar="URI", help="PostgreSQL to use; '' for the embedded one.")
@click.option("--hostname", help="Name of this host in 220, EHLO and Received.")
@click.option(
    "--domain", "domains", multiple=True,
    help="Take mail for recipients in this domain (or *.domain) from any client; may be repeated.",
)  # fmt: skip
@click.option(
    "--network", "networks", multiple=True,
    help="Take mail to any address from these clients, such as 10.0.0.0/8; may be repeated.  "
    "[default: this host]",
)  # fmt: skip
@click.option("--address", default="0.0.0.0", show_default=True, help="IP address of smtpd.")  # noqa: S104
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=25,
    show_default=True,
    help="TCP port of smtpd.",
)
@click.option("--migrate", is_flag=True, help="Also make the schema in the database.")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@reporting
def init(
    folder: Path,
    database: str | None,
    hostname: str | None,
    domains: tuple[str, ...],
    networks: tuple[str, ...],
    address: str,
    port: int,
    migrate: bool,
    force: bool,
) -> None:
    """Write smtpd.yaml, queued.yaml and shaping.yaml into FOLDER (/etc/pgmta).

    On a terminal the command asks for what no option says. Elsewhere the defaults hold: the
    embedded database, the full name of this host, and mail of this host alone.
    """
    asks = sys.stdin.isatty()
    if database is None:
        question = "URI of the database (empty: the embedded one)"
        database = click.prompt(question, default="", show_default=False) if asks else ""
    if hostname is None:
        found = socket.getfqdn()
        hostname = click.prompt("Name of this host", default=found) if asks else found
    if asks and not domains:
        domains = _ask("Domains whose mail comes from anywhere (with blanks between; or none)")
    if asks and not networks:
        networks = _ask("Networks that may send to any address", " ".join(_LOCAL_NETWORKS))
    environment: dict[str, Any] = {"hostname": hostname}
    if database:
        environment["database"] = {"uri": database}
    elif folder == SYSTEM_FOLDER:
        environment["directory"] = str(DATA_FOLDER)
    read_settings(environment, Environment)  # raises for a mistake before a file is written
    for domain in domains:
        _valid("--domain", normalise_domain, domain.removeprefix("*."))
    for network in networks:
        _valid("--network", parse_network, network)
    _valid("--address", parse_listen_address, address)
    texts = {
        "smtpd.yaml": _smtpd(environment, address, port, domains, networks or _LOCAL_NETWORKS),
        "queued.yaml": _queued(environment),
        "shaping.yaml": _SHAPING,
    }
    _write(folder, texts, force=force)
    print_line(f"wrote smtpd.yaml, queued.yaml and shaping.yaml into {folder}")
    if migrate:
        settings = load(folder / "queued.yaml", whole_model())
        apply_migrations(existing(settings.environment), print_line)
    _next_steps(folder, embedded=not database, migrated=migrate)


def _valid(option: str, parse: Callable[[str], object], value: str) -> None:
    """Check a value that smtpd.yaml will have. Raises ConfigError."""
    try:
        parse(value)
    except (AddressError, ValueError) as error:
        raise ConfigError([f"{option}: {error}"]) from None


def _ask(question: str, default: str = "") -> tuple[str, ...]:
    answer: str = click.prompt(question, default=default, show_default=bool(default))
    return tuple(answer.replace(",", " ").split())


def _section(name: str, value: Any) -> str:
    """Return a line of YAML; JSON is YAML too."""
    return f"{name}: {json.dumps(value, ensure_ascii=False)}\n"


def _smtpd(
    environment: dict[str, Any],
    address: str,
    port: int,
    domains: Sequence[str],
    networks: Sequence[str],
) -> str:
    listen = {"address": address, "port": port}
    return (
        f"# smtpd takes mail. Every option: {shipped('etc') / 'smtpd.yaml'}\n"
        f"{_section('environment', environment)}"
        "listen:\n"
        f"  - {json.dumps(listen)}\n"
        "relay:\n"
        f"  # these clients may send to any address\n  {_section('networks', [*networks])}"
        f"  # any client may send to these domains\n  {_section('domains', [*domains])}"
    )


def _queued(environment: dict[str, Any]) -> str:
    return (
        f"# queued delivers mail. Every option: {shipped('etc') / 'queued.yaml'}\n"
        f"{_section('environment', environment)}"
        "shaping: shaping.yaml\n"
    )


_SHAPING = (
    "# shaping.yaml says where mail goes, if not to the MX hosts of its domain. Every option:\n"
    f"# {shipped('etc') / 'shaping.yaml'}\n"
    "routes: []\n"
)


def _write(folder: Path, texts: dict[str, str], *, force: bool) -> None:
    """Write the files, all of them or none. Raises PgmtaError."""
    there = [str(folder / name) for name in texts if (folder / name).exists()]
    if there and not force:
        raise PgmtaError(f"{', '.join(there)} exists already: --force overwrites it")
    make_parents(folder)
    paths = [(folder / name, folder / f".{name}.new") for name in texts]
    try:
        for (_, new), text in zip(paths, texts.values(), strict=True):
            new.unlink(missing_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
            _lend(new)
        for path, new in paths:
            new.rename(path)
    finally:
        for _, new in paths:
            new.unlink(missing_ok=True)


def _lend(path: Path) -> None:
    """Let the group of the daemons read a file of root."""
    if os.geteuid() == 0:
        with suppress(KeyError):  # raised if no package has made the group
            os.chown(path, 0, grp.getgrnam(_FILE_GROUP).gr_gid)
    path.chmod(_FILE_MODE)


def _next_steps(folder: Path, *, embedded: bool, migrated: bool) -> None:
    option = "" if folder == SYSTEM_FOLDER else f" -c {folder / 'queued.yaml'}"
    smtpd = "" if folder == SYSTEM_FOLDER else f" -c {folder / 'smtpd.yaml'}"
    if embedded and not migrated:
        print_line(f"next: queuectl database run{option} (or the unit pgmta-database)")
    if not migrated:
        print_line(f"next: queuectl database migrate{option}")
    print_line(f"next: smtpd check{smtpd}; queued check{option}")
