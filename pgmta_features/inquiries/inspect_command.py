"""`queuectl inspect`: a destination over all processes, with its connections and ceilings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from pgmta.command import EXIT_FAILURE, age, print_json, print_line
from pgmta.postgres.operator import connected
from pgmta_features.inquiries.asking import Answered, ask
from pgmta_features.inquiries.store import INSPECT
from queued.cli.options.ceiling_lines import ceiling_lines
from queued.cli.options.queue_command import Column, Cut, Form, command, database_of, print_rows


@command(rows=True)
@click.argument("destination")
async def inspect(config: Path, destination: str, form: Form) -> None:
    """Show a destination: its connections, what each waits for, limits and ceilings.

    DESTINATION names a recipient domain, a host or a route. Each running process answers.
    --csv has a line per connection.
    """
    async with connected(database_of(config)) as db:
        asked = await ask(db, INSPECT, destination)
    queues, connections = _rows(asked)
    left_out = sum(answer["left_out"] for answer in asked.answers.values())
    if form == Form.JSON:
        print_json({"workers": asked.workers, "silent": [*asked.silent], "left_out": left_out,
                    "destinations": queues, "connections": connections})  # fmt: skip
    elif form == Form.CSV:
        print_rows(connections, _CONNECTIONS, form)
    elif queues:
        _print(queues, connections, asked, form)
    elif asked.answers:
        print_line(f"{destination}: no connection, and no mail under way; "
                   "`queuectl route` shows its ceiling")  # fmt: skip
    if left_out:
        print_line(f"warning: {left_out} more destinations are left out", err=True)
    asked.warn()
    if not asked.answers:
        print_line("error: no process that delivers mail answers", err=True)
        sys.exit(EXIT_FAILURE)


type Rows = list[dict[str, Any]]


def _rows(asked: Answered) -> tuple[Rows, Rows]:
    """Return the destinations of each worker, and their connections."""
    queues: Rows = []
    connections: Rows = []
    for process, answer in asked.answers.items():
        for each in answer["destinations"]:
            place = {key: each[key] for key in ("worker", "destination")}
            own = each.pop("connections")
            connections += ({"process": process, **place, **connection} for connection in own)
            queues.append({"process": process, **each})
    return queues, connections


def _print(queues: Rows, connections: Rows, asked: Answered, form: Form) -> None:
    ceilings = {json.dumps(each): each for queue in queues for each in queue["ceilings"]}
    for each in ceilings.values():
        for label, text in [("route", each["route"]), *ceiling_lines(each, asked.workers)]:
            print_line(f"{label:<10} {text}")
    print_line("")
    print_rows(queues, _QUEUES, form)
    if connections:
        print_line("")
        print_rows(connections, _CONNECTIONS, form)


_QUEUES: dict[str, Column] = {
    "DESTINATION": Cut("destination", 40),
    "WORKER": "worker",
    "PROCESS": "process",
    "OPEN": "open",
    "OPENING": "opening",
    "LIMIT": lambda each: f"{each['limit']} of {each['most']}",
    "PAUSE": lambda each: age(each["pause"]) if each["pause"] else "-",
    "WAITING": "waiting",
    "UNDER WAY": "under_way",
}

_CONNECTIONS: dict[str, Column] = {
    "ID": "id",
    "WORKER": "worker",
    "HOST": Cut("host", 40),
    "ADDRESS": "address",
    "PHASE": "phase",
    "FOR": lambda each: age(each["seconds"]),
    "AGE": lambda each: age(each["age"]),
    "TLS": Cut(lambda each: each["tls"] or "-", 10),
    "SENT": "sent",
    "MESSAGE": lambda each: each["message_id"] or "-",
    "ROWS": "rows",
}
