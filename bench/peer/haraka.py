"""Haraka as a relay on loopback, set up as docs/peers.md explains."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.daemons import HOST, free_port
from bench.peer.cells import Cell
from bench.peer.package import Unavailable, run
from bench.peer.system import Daemon, Running, Spooler

VERSION = "3.3.4"
# npm does not find the releases of these that Haraka's MIME parser asks for; nothing is parsed here
OVERRIDES = {
    "encoding-japanese": "2.2.0",
    "libbase64": "1.3.0",
    "libmime": "5.3.7",
    "libqp": "2.1.1",
}

CONNECTION = """\
[main]
[haproxy]
[headers]
max_lines=1000
max_received=100
[max]
bytes=104857600
mime_parts=1000
line_length=2048
data_line_length=2048
[message]
helo=at your service
close=closing
[uuid]
banner_chars=6
deny_chars=0
"""

# Haraka has no setting for it, and would wait 40 ms for acknowledgements
NODELAY = """\
'use strict'
const { Socket, Server } = require('net')
const emit = Server.prototype.emit
Server.prototype.emit = function (event, socket, ...rest) {
  if (event === 'connection') socket.setNoDelay(true)
  return emit.call(this, event, socket, ...rest)
}
const connect = Socket.prototype.connect
Socket.prototype.connect = function (...rest) {
  return connect.apply(this, rest).setNoDelay(true)
}
"""

PLUGIN = """\
'use strict'
exports.hook_rcpt = function (next, connection) {
  connection.relaying = true
  next(OK)
}
exports.hook_get_mx = function (next) {
  next(OK, { priority: 0, exchange: '%(host)s', port: %(next_hop)d })
}
"""


class Haraka:
    """Haraka out of npm."""

    name = "haraka"

    def __init__(self, packages: Path) -> None:
        for tool in ("node", "npm"):
            if not shutil.which(tool):
                raise Unavailable(f"no {tool} here")
        self.root = packages / "haraka"
        if not (self.root / "installed").exists():
            self._install()
        self.about = f"npm package {VERSION}, node {run(['node', '--version']).strip()}"

    def _install(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        wanted = {"private": True, "dependencies": {"Haraka": VERSION}, "overrides": OVERRIDES}
        (self.root / "package.json").write_text(json.dumps(wanted))
        run(
            ["npm", "install", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"],
            within=300.0,
            cwd=self.root,
        )
        (self.root / "installed").touch()

    @contextlib.contextmanager
    def start(self, cell: Cell, directory: Path, next_hop: int | None) -> Iterator[Running]:
        """Run it on an empty queue; without a next hop delivery is disabled."""
        port = free_port()
        _configure(
            directory,
            {
                "config/me": "bench.pgmta.test\n",
                "config/loglevel": "WARN\n",
                "config/plugins": "hop\n",
                "config/smtp.ini": f"listen={HOST}:{port}\nnodes={os.cpu_count()}\n",
                "config/connection.ini": CONNECTION,
                "config/outbound.ini": "concurrency_max=20\nenable_tls=false\n"
                "received_header=disabled\n"
                f"disabled={str(next_hop is None).lower()}\n",
                "nodelay.js": NODELAY,
                "plugins/hop.js": PLUGIN % {"host": HOST, "next_hop": next_hop or 25},
            },
        )
        (directory / "queue").mkdir()
        command: list[str | Path] = [self.root / "node_modules/.bin/haraka", "-c", directory]
        environment = {
            "NODE_ENV": "production",
            "NODE_OPTIONS": f"--require={directory / 'nodelay.js'}",
        }
        daemon = Daemon("haraka", command, directory / "haraka.log", environment)
        try:
            daemon.wait_greeting(port)
            groups = {"haraka": [daemon.process.pid]}
            yield Spooler(port, groups, [], daemon, directory / "queue", "")
        finally:
            daemon.stop()


def _configure(directory: Path, contents: Mapping[str, str]) -> None:
    for name, text in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
