"""Until when rows are tried, by the policies of a queued.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pgmta.command import print_line
from pgmta.errors import ConfigError
from pgmta.states import Status
from queued.config import QueuedConfig, read_config
from queued.delivery.routes import Routes
from queued.upkeep.retry_until import end_of

_TRIED = (Status.QUEUED, Status.SENDING, Status.DEFERRED)


def add_retry_end(config: Path, rows: list[dict[str, Any]], history: list[dict[str, Any]]) -> None:
    """Give each row `tried_until`: a time, or None if it is not tried or has no end.

    No time is known if a file that `config` names can't be read; then a warning says so.
    """
    classes = {entry["row_id"]: entry["class"] for entry in history}  # the last one counts
    settings: QueuedConfig | None = None
    try:
        settings = read_config(config, passwords=False)
        routes = Routes(settings.routes, settings.routing)
    except ConfigError as error:
        for problem in error.problems:
            print_line(f"warning: it is unknown when rows are given up: {problem}", err=True)
    for row in rows:
        row["tried_until"] = None
        if settings and row["status"] in _TRIED:
            metadata = json.dumps(row["metadata"])
            own = routes.retry(row["domain"], row["sender"], metadata, row["tenant"])
            answer_class = classes.get(row["id"]) or ""
            row["tried_until"] = end_of(own or settings.retry, row["ts"], answer_class, metadata)
