"""pgmta as one of the systems: its daemons and a fresh database, as bench/relay starts them."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench.certificate import make_certificate
from bench.cpu import Groups
from bench.daemons import Product
from bench.database import Server, Watch, check_durability, fresh
from bench.peer.cells import Cell
from bench.peer.milter import DOMAIN, make_key


def settings(cell: Cell, directory: Path) -> dict[str, Any]:
    """Return what queued.yaml says beyond the defaults."""
    delivery: dict[str, Any] = {}
    more: dict[str, Any] = {}
    if cell.refused:  # the bench refuses more mail than the usual limits of DSNs allow in an hour
        more["bounces"] = {"limits": {"sender": 1_000_000, "all": 1_000_000}}
    if cell.tls:
        delivery["tls"] = {"mode": "encrypt"}
    if cell.tls == "each":
        delivery["transactions"] = 1
    if cell.sign:
        key = {"domain": DOMAIN, "selector": "bench", "file": str(make_key(directory, cell.sign))}
        more["signing"] = {"keys": [key]}
    return {"delivery": delivery, **more} if delivery or more else {}


def front(cell: Cell, directory: Path) -> dict[str, Any]:
    """Return the settings of smtpd and its listener beyond the defaults: TLS."""
    if not cell.front:
        return {}
    certificate, key = make_certificate(directory, "pgmta")
    return {
        "more": {"certificates": [{"certificate": str(certificate), "key": str(key)}]},
    }


@dataclass
class Relay:
    """pgmta running on a database."""

    port: int
    groups: Groups
    notes: list[str]
    product: Product
    watch: Watch

    def check(self) -> None:
        """Raise when a daemon has ended."""
        self.product.check()

    def queued(self) -> int:
        """Return the rows in messages."""
        return self.watch.counts()[0]

    def commits(self) -> float:
        """Return the commits of its database since the start."""
        return self.watch.spent()["commits"]


class Pgmta:
    """pgmta with default settings, one queued, and the embedded PostgreSQL."""

    name = "pgmta"

    def __init__(self, server: Server, commands: Path, processes: int | None) -> None:
        self.server = server
        self.commands = commands
        self.processes = processes
        self.about = f"this commit, PostgreSQL {server.version}, default settings"

    @contextlib.contextmanager
    def start(self, cell: Cell, directory: Path, next_hop: int | None) -> Iterator[Relay]:
        """Run it on an empty database; without a next hop queued does not run."""
        notes: list[str] = []
        with fresh(self.server, keep=False) as uri:
            check_durability(uri)
            product = Product(self.commands, directory, uri, notes)
            product.migrate()
            watch = Watch(uri)
            groups: Groups = {}
            if self.server.postmaster:
                groups["postgres"] = [self.server.postmaster]
            try:
                if next_hop is not None:
                    groups["queued"] = product.start_queued(1, next_hop, settings(cell, directory))
                pid, port = product.start_smtpd(self.processes, **front(cell, directory))
                groups["smtpd"] = [pid]
                yield Relay(port, groups, notes, product, watch)
            finally:
                product.stop()
                watch.close()
        # what PostgreSQL still has to write may not fall into the cell of a peer
        with psycopg.connect(self.server.uri, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
        os.sync()
