"""`queuectl dkim`: the keys that sign mail, and their records in DNS."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pgmta.command import EXIT_FAILURE, print_json, print_line
from pgmta.errors import ConfigError, PgmtaError
from pgmta.model import DkimKey
from pgmta.postgres.operator import connected
from pgmta.store.records.dkim_keys import KeyTable
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    command,
    database_of,
    print_rows,
    who,
)
from queued.cli.options.shown_keys import (
    UNPUBLISHED_STATE,
    ShownKey,
    check_keys,
    publish,
    shown_keys,
)
from queued.config import parse_instant, parse_selector, parse_signing_domain, read_config
from queued.signing.signing_key import (
    MAX_BITS,
    MIN_BITS,
    new_private,
    pem_of,
    public_of,
    record_of,
    zone_line,
)

_KEY_FILE_MODE = 0o600


@click.group()
def dkim() -> None:
    """Make, list and test the keys that sign mail (DKIM)."""


def _argument(parse: Callable[[str], Any], name: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError([f"{name}: {error}"]) from None


@command(dkim, json=True)
@click.argument("domain")
@click.argument("selector")
@click.option("--type", "kind", type=click.Choice(["rsa", "ed25519"]), default="rsa",
              show_default=True, help="Type of the key.")  # fmt: skip
@click.option("--bits", type=click.IntRange(MIN_BITS, MAX_BITS),
              help="Size of an RSA key.  [default: 2048]")  # fmt: skip
@click.option("--file", type=click.Path(path_type=Path), help="Write the key into this new file.")
@click.option("--table", is_flag=True, help="Store the key in the table dkim_keys.")
@click.option(
    "--force",
    is_flag=True,
    help="With --table: sign before `queuectl dkim test` has seen the record.",
)
@click.option("--active-from", metavar="TIME",
              help="Sign from this time on (RFC 3339); default: at once.")  # fmt: skip
async def new(
    config: Path,
    domain: str,
    selector: str,
    kind: str,
    bits: int | None,
    file: Path | None,
    table: bool,
    force: bool,
    active_from: str | None,
    as_json: bool,
) -> None:
    """Make a key for a domain and DKIM selector, and print its record in DNS.

    Publish the record before mail is signed. A key in the table signs once `queuectl dkim test` has
    seen it.
    """
    domain = _argument(parse_signing_domain, "DOMAIN", domain)
    selector = _argument(parse_selector, "SELECTOR", selector)
    active = _argument(parse_instant, "--active-from", active_from)
    if table == bool(file):
        raise ConfigError(["give either --file PATH or --table"])
    if force and not table:
        raise ConfigError(["--force is for --table: a key in a file signs if queued.yaml names it"])
    if bits and kind != "rsa":
        raise ConfigError([f"--bits is for keys of type rsa, not {kind}"])
    private = new_private(kind, bits or 2048)
    public = public_of(private)
    if file:
        _write(file, pem_of(private))
    else:
        key = DkimKey(domain, selector, kind, active or 0.0, pem_of(private))
        await _store(config, key, public, at_once=active is None, unpublished=not force)
    record, owner = record_of(kind, public), f"{selector}._domainkey.{domain}"
    if as_json:
        place = {"file": str(file)} if file else {"table": True, "unpublished": not force}
        print_json({"domain": domain, "selector": selector, "type": kind, **place,
                    "active_from": _time(active or 0.0), "owner": owner,
                    "record": record})  # fmt: skip
        return
    print_line(zone_line(owner, record))
    if file:
        print_line(f"the key is in {file}; queued has to be able to read it. For queued.yaml:",
                   err=True)  # fmt: skip
        print_line("signing:", err=True)
        print_line("  keys:", err=True)
        entry = f"domain: {domain}, selector: {selector}, file: {file.resolve()}"
        from_then = f", active_from: {active_from}" if active_from else ""
        print_line(f"    - {{{entry}{from_then}}}", err=True)
    elif not force:
        print_line(f"the key signs nothing yet: publish its record, then run `queuectl dkim test "
                   f"{domain} {selector}`", err=True)  # fmt: skip


def _write(path: Path, text: str) -> None:
    try:
        number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, _KEY_FILE_MODE)
    except FileExistsError:
        raise PgmtaError(f"there is a file {path} already") from None
    except OSError as error:
        raise PgmtaError(f"{path}: {error.strerror}") from None
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(number)


async def _store(
    config: Path, key: DkimKey, public: str, *, at_once: bool, unpublished: bool
) -> None:
    used = read_config(config, passwords=False).signing.table
    async with connected(database_of(config)) as db:
        table = KeyTable(db, who())
        if not await table.add(key, public, at_once=at_once, unpublished=unpublished):
            raise PgmtaError(f"there is a key {key.domain}/{key.selector} already")
    if not used:
        print_line(f"warning: {config}: signing.table is false: queued does not use the key",
                   err=True)  # fmt: skip


@command(dkim)
@click.argument("domain")
@click.argument("selector")
async def remove(config: Path, domain: str, selector: str) -> None:
    """Remove a key from the table; its record in DNS may go a week later."""
    domain = _argument(parse_signing_domain, "DOMAIN", domain)
    selector = _argument(parse_selector, "SELECTOR", selector)
    async with connected(database_of(config)) as db:
        table = KeyTable(db, who())
        if not await table.remove(domain, selector):
            raise PgmtaError(f"the table has no key {domain}/{selector}")
    print_line(f"key {domain}/{selector} removed")


async def _find(config: Path, domain: str | None, selector: str | None) -> list[ShownKey]:
    return await shown_keys(
        config,
        _argument(parse_signing_domain, "DOMAIN", domain),
        _argument(parse_selector, "SELECTOR", selector),
    )


@command(dkim, "list", rows=True)
@click.argument("domain", required=False)
async def list_keys(config: Path, domain: str | None, form: Form) -> None:
    """List the keys of queued.yaml and of the table; exit 1 if one is broken or there is none.

    Of the keys of a domain and type the last one that is active signs. No private part is shown.
    """
    found = await _find(config, domain, None)
    columns: dict[str, Column] = {
        "DOMAIN": "domain",
        "SELECTOR": "selector",
        "TYPE": lambda each: each["type"] or "-",
        "ACTIVE FROM": lambda each: each["active_from"] or "always",
        "SOURCE": Cut("source"),
        "STATE": "state",
    }
    rows = [{**_facts(each), "state": each.state} for each in found]
    print_rows(rows, columns, form)
    if any(each.key.problem for each in found):
        sys.exit(EXIT_FAILURE)


@command(dkim, json=True)
@click.argument("domain", required=False)
@click.argument("selector", required=False)
async def dns(config: Path, domain: str | None, selector: str | None, as_json: bool) -> None:
    """Print the records of the keys as a zone file has them, in strings of 255 octets.

    Exits with 1 if a key is broken.
    """
    found = await _find(config, domain, selector)
    broken = [each for each in found if not each.record]
    if as_json:
        print_json([{**_facts(each), "record": each.record or None} for each in found])
    else:
        for each in found:
            if each.record:
                print_line(zone_line(each.key.owner, each.record))
    for each in broken:
        print_line(f"error: key {each.key.name}: {each.key.problem}", err=True)
    if broken:
        sys.exit(EXIT_FAILURE)


@command(dkim, json=True)
@click.argument("domain", required=False)
@click.argument("selector", required=False)
async def test(config: Path, domain: str | None, selector: str | None, as_json: bool) -> None:
    """Check the records in DNS against the keys, then sign and verify a sample.

    The name servers of queued.yaml are asked. A key of the table without an error signs from then
    on. Exits with 1 if a check fails.
    """
    found = await _find(config, domain, selector)
    results = await check_keys(read_config(config, passwords=False), found)
    pairs = zip(found, results, strict=True)
    seen = [(e, r) for e, r in pairs if e.state == UNPUBLISHED_STATE and not r.error]
    if seen:
        allowed = await publish(config, [each for each, _ in seen])
        denied = "it signs nothing: this login may not change keys"
        for _, result in seen:
            result.remarks.append("it signs from now on" if allowed else denied)
    if as_json:
        print_json([
            {**_facts(each), "owner": each.key.owner, "error": result.error or None,
             "remarks": result.remarks}
            for each, result in zip(found, results, strict=True)
        ])  # fmt: skip
    else:
        for each, result in zip(found, results, strict=True):
            print_line(f"{each.key.name}: {result.error or 'ok'}")
            for remark in result.remarks:
                print_line(f"  {remark}")
    if any(result.error for result in results):
        sys.exit(EXIT_FAILURE)


def _facts(shown: ShownKey) -> dict[str, Any]:
    key = shown.key
    return {
        "domain": key.domain,
        "selector": key.selector,
        "type": key.type or None,
        "active_from": _time(key.active_from),
        "source": key.source,
        "problem": key.problem or None,
    }


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None
