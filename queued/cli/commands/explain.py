"""`queuectl explain`: why a message is in its state."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pgmta.action import IS_MALFORMED, Action
from pgmta.command import instant, print_json, print_line
from pgmta.errors import ConfigError, PgmtaError
from pgmta.mail.metadata import DEADLINE_KEY as DEADLINE
from pgmta.postgres.operator import connected
from pgmta.states import WAITING, Status
from pgmta.store.changes.listing import Listing
from pgmta.store.changes.overview import Overview
from queued.cli.commands.show import (
    arrival,
    print_arrival,
    print_history,
    print_origin,
    print_reports,
    print_senders,
    quarantine_of,
)
from queued.cli.options.queue_command import command, database_of
from queued.config import QueuedConfig, read_config
from queued.delivery.transports import parsers
from queued.explaining.explainer import explainers, first_reason, mail_of
from queued.explaining.waits import waits_for
from queued.routing.retry_until import end_of
from queued.routing.routes import Routes


@command(json=True)
@click.argument("message_id", metavar="ID", type=int)
async def explain(config: Path, message_id: int, as_json: bool) -> None:
    """Explain a message: status, worker, what it waits for, every attempt, DSNs."""
    async with connected(database_of(config)) as db:
        listing, overview = Listing(db), Overview(db)
        rows = await listing.rows(f"message_id = {message_id}", 100_000)
        history = await listing.history(message_id)
        came = arrival(await listing.arrival(message_id), history)
        reports = await listing.reports(message_id)
        workers = [entry for entry in await overview.workers() if entry["alive"]]
        rules = await overview.rules()
        conditions = [
            *(entry["takes"] or "true" for entry in workers),
            *(rule["takes"] for rule in rules),
        ]
        says = await overview.verdict(message_id, conditions)
        (malformed,) = await overview.verdict(message_id, [IS_MALFORMED])
        names = [*(f"worker {w['name']}" for w in workers), *(f"rule {r['name']}" for r in rules)]
        refused = await overview.refused(dict(zip(names, conditions, strict=True)))
        if not rows and not history and not any(reports):
            raise PgmtaError(f"no message {message_id}, neither in the queue nor in the log")
        routes, redirect = add_retry_end(config, rows, history)
        for each in explainers():
            await each.add_facts(db, rows, routes)
    now = datetime.now(UTC)
    deliver = {w["name"]: w["takes"] for w in workers if w["action"] == Action.DELIVER}
    for row in rows:
        verdict = [found.get(row["id"]) for found in says]  # "": matches; None: not; or an error
        row["workers"] = sorted({w["name"] for w, hit in zip(workers, verdict, strict=False)
                                 if hit == "" and w["action"] == Action.DELIVER})  # fmt: skip
        row["rules"] = [r["name"] for r, hit in
                        zip(rules, verdict[len(workers):], strict=True)
                        if hit is not None]  # fmt: skip
        row["fails"] = {n: error for n, error in zip(names, verdict, strict=True) if error}
        row["malformed"] = row["id"] in malformed
        row["waits_for"] = waits_for(row, now, deliver)
    for row in rows:
        row["redirect"] = redirect
        row["waits_for"] = first_reason(row, explainers()) or row["waits_for"]
    if as_json:
        faults = [asdict(fault) for fault in refused]
        print_json({"id": message_id, **came, "recipients": rows, "history": history,
                    **reports.as_json(), "faults": faults})  # fmt: skip
        return
    for fault in refused:
        print_line(f"warning: {fault}", err=True)
    if not rows:
        print_line(f"message {message_id} is done")
    print_senders(rows or history)
    print_arrival(came)
    print_origin(reports)
    _print_rows(rows)
    print_history(history)
    print_reports(reports)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        tries = row["attempts"]
        print_line(
            f"{row['recipient']}: {row['status']}, {tries} attempt{'s' if tries != 1 else ''}"
        )
        print_line(f"  waits for  {row['waits_for']}")
        if quarantine := quarantine_of(row):
            print_line(f"  quarantine {quarantine}")
        if row["status"] != Status.REPORT:  # rows whose delivery has ended need no route
            print_line(f"  worker     {', '.join(row['workers']) or 'none that runs matches it'}")
        if row["rules"]:
            print_line(f"  held by    {', '.join(row['rules'])} (standing rule)")
        for label, text in (line for each in explainers() for line in each.lines(row)):
            print_line(f"  {label:<10} {text}")
        for name, error in row["fails"].items():
            print_line(f"  fails here {name}: {error}")
        if row["status"] in WAITING:
            print_line(f"  next       {instant(row['next_attempt'])}")
        if row["redirect"] and row["status"] in WAITING:
            print_line(f"  staging    it goes to {row['redirect']} instead (delivery.redirect)")
        if end := row["tried_until"]:
            print_line(f"  gives up   {instant(end)}")
        metadata = row["metadata"]
        if isinstance(metadata, dict) and (deadline := metadata.get(DEADLINE)):
            print_line(f"  deadline   {str(deadline)[:100]}")
        print_line(f"  on failure {row['on_failed']}")
        if row["last_reply"]:
            print_line(f"  last reply {row['last_reply']}")


_ATTEMPTED_STATUSES = (*WAITING, Status.SENDING)


def add_retry_end(
    config: Path, rows: list[dict[str, Any]], history: list[dict[str, Any]]
) -> tuple[Routes | None, str | None]:
    """Give each row `tried_until`: a time, or None if it is not tried or has no end.

    No time is known if a file that `config` names can't be read; then a warning says so. Returns
    the routes, if they are known, and the address to which a staging system sends all mail.
    """
    classes = {entry["row_id"]: entry["class"] for entry in history}  # the last attempt counts
    settings: QueuedConfig | None = None
    routes: Routes | None = None
    try:
        settings = read_config(config, parsers(), passwords=False)
        routes = Routes(settings.routes, settings.routing)
    except ConfigError as error:
        for problem in error.problems:
            print_line(f"warning: it is unknown when rows are given up: {problem}", err=True)
    for row in rows:
        row["tried_until"] = None
        if settings and routes and row["status"] in _ATTEMPTED_STATUSES:
            mail = mail_of(row)
            own = routes.retry(mail)
            answer_class = classes.get(row["id"]) or ""
            row["tried_until"] = end_of(
                own or settings.retry, row["ts"], answer_class, mail.metadata or "{}"
            )
    return routes, settings.delivery.redirect if settings else None
