"""The command `queuectl daemons`."""

from __future__ import annotations

from pathlib import Path

import click

from pgmta.command import config_option, print_table, reporting
from pgmta.postgres.operator import connect_operator
from queued.cli.options.queue_command import CONFIG_NAME, database_of


@click.command()
@config_option(CONFIG_NAME)
@reporting
def daemons(config: Path) -> None:
    """Show the daemons that run."""
    with connect_operator(database_of(config)) as db:
        rows = db.execute("SELECT program, host, version FROM daemons ORDER BY program").fetchall()
    print_table(["PROGRAM", "HOST", "VERSION"], [list(row.values()) for row in rows])
