"""Exim as a relay on loopback, set up as docs/develop/peers.md explains."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from bench.daemons import HOST, free_port
from bench.peer.cells import Cell
from bench.peer.package import libraries, need_root, unpack, version
from bench.peer.room import furnish
from bench.peer.system import Daemon, Running
from tests.peers.spooler import Spooler

USER = "Debian-exim"  # compiled into the package
SPARE = 20

CONFIG = """\
exim_path = {program}
primary_hostname = bench.pgmta.test
spool_directory = {directory}/spool
log_file_path = {directory}/log/%slog
pid_file_path = {directory}/exim.pid
local_interfaces = {host}
daemon_smtp_ports = {port}
domainlist local_domains =
hostlist relay_from_hosts = 127.0.0.0/8
acl_smtp_rcpt = accept_all
acl_smtp_data = accept_all
host_lookup =
rfc1413_hosts =
rfc1413_query_timeout = 0s
tls_advertise_hosts =
chunking_advertise_hosts =
prdr_enable = false
dns_dnssec_ok = -1
disable_ipv6 = true
deliver_drop_privilege = true
smtp_accept_max = {limit}
smtp_accept_max_per_host = {limit}
smtp_accept_max_per_connection = 0
smtp_accept_queue_per_connection = 0
smtp_accept_max_nonmail = 1000
smtp_connect_backlog = 1024
message_size_limit = 100M
check_spool_space = 0
check_log_space = 0
split_spool_directory = true
message_logs = false
queue_only = {queue_only}

begin acl
accept_all:
  accept

begin routers
hop:
  driver = manualroute
  domains = *
  transport = hop
  route_list = * {host} byname
  self = send

begin transports
hop:
  driver = smtp
  port = {next_hop}
  hosts_try_fastopen =
  hosts_avoid_tls = *
  hosts_try_chunking =
  max_rcpt = 50

begin retry
* * F,1h,1s
"""


class Exim:
    """Exim out of the Debian package exim4-daemon-light."""

    name = "exim"

    def __init__(self, packages: Path, config: str = CONFIG) -> None:
        need_root()
        self.config = config
        self.root = unpack("exim4-daemon-light", packages)
        self.about = f"Debian package {version('exim4-daemon-light', packages)}"
        # not setuid: the loader would not look at LD_LIBRARY_PATH, and one user is enough here
        (self.root / "usr/sbin/exim4").chmod(0o755)

    @contextlib.contextmanager
    def start(self, cell: Cell, directory: Path, next_hop: int | None) -> Iterator[Running]:
        """Run it on an empty spool; without a next hop it only queues."""
        port = free_port()
        room = furnish(directory, [USER])
        for name in ("spool", "log"):
            (directory / name).mkdir(mode=0o750)
            os.chown(directory / name, room.users[USER], room.groups[USER])
        config = directory / "exim.conf"
        config.write_text(
            self.config.format(
                program=self.root / "usr/sbin/exim4",
                directory=directory,
                host=HOST,
                port=port,
                next_hop=next_hop or 25,
                limit=cell.sessions + SPARE,
                queue_only=str(next_hop is None).lower(),
            )
        )
        command: list[str | Path] = [self.root / "usr/sbin/exim4", "-C", config, "-bdf"]
        command += ["-q1m"] if next_hop is not None else []
        environment = {"LD_LIBRARY_PATH": libraries(self.root)}
        daemon = Daemon("exim", room.command(command), directory / "exim.log", environment)
        try:
            daemon.wait_greeting(port)
            groups = {"exim": [daemon.process.pid]}
            yield Spooler(port, groups, [], daemon, directory / "spool" / "input", "-H")
        finally:
            daemon.stop()
