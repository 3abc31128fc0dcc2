"""Postfix as a relay on loopback, set up as docs/develop/peers.md explains."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.certificate import make_certificate
from bench.cpu import Groups
from bench.daemons import HOST, free_port
from bench.peer.cells import Cell
from bench.peer.milter import signer_socket, start_signer
from bench.peer.package import libraries, need_root, unpack, version
from bench.peer.room import furnish
from bench.peer.slow_sync import VARIABLE
from bench.peer.system import Daemon, files

OWNED = (
    *("active", "bounce", "corrupt", "defer", "deferred", "flush", "hold", "incoming"),
    *("private", "saved", "trace"),
)
QUEUES = ("incoming", "active", "deferred", "hold", "maildrop")
SPARE_PROCESSES = 20  # of a service, beyond one for each session

SERVICES = """\
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
smtp unix - - n - - smtp
lmtp unix - - n - - lmtp
error unix - - n - - error
retry unix - - n - - error
scache unix - - n - 1 scache
tlsmgr unix - - n 1000? 1 tlsmgr
tlsproxy unix - - n - 0 tlsproxy
postlog unix-dgram n - n - 1 postlogd
"""


def settings(cell: Cell, next_hop: int | None) -> dict[str, str]:
    """Return what main.cf says beyond places of files; docs/develop/peers.md has the reasons."""
    chosen = {
        "compatibility_level": "3.6",
        "myhostname": "bench.pgmta.test",
        "inet_interfaces": HOST,
        "inet_protocols": "ipv4",
        "mynetworks": "127.0.0.0/8",
        "mydestination": "",
        "local_recipient_maps": "",
        "alias_maps": "",
        "smtpd_relay_restrictions": "permit_mynetworks, reject",
        # without queries to DNS
        "smtpd_peername_lookup": "no",
        "smtp_dns_support_level": "disabled",
        "smtp_host_lookup": "native",
        "smtpd_tls_security_level": "none",
        "smtp_tls_security_level": "none",
        # without limits for clients, so without anvil
        **{
            f"smtpd_client_{what}_limit": "0"
            for what in ("connection_count", "connection_rate", "message_rate", "recipient_rate")
        },
        "in_flow_delay": "0",
        "default_process_limit": str(max(100, cell.sessions + SPARE_PROCESSES)),
        "max_use": "1000",
        # a relay leaves header and body as they are
        "local_header_rewrite_clients": "",
        "receive_override_options": "no_header_body_checks, no_address_mappings, no_milters",
        "message_size_limit": "104857600",
        "mailbox_size_limit": "0",
        "smtp_destination_concurrency_limit": "20",
        "initial_destination_concurrency": "20",
    }
    if cell.tls:
        chosen |= {
            "smtp_tls_security_level": "encrypt",
            # as in Debian: a new connection may resume a session of TLS
            "smtp_tls_session_cache_database": "btree:$data_directory/smtp_scache",
            "smtp_tls_connection_reuse": "yes" if cell.tls == "kept" else "no",
            "smtp_connection_cache_on_demand": "yes" if cell.tls == "kept" else "no",
        }
    if cell.front:
        chosen |= {
            "smtpd_tls_security_level": "may",
            "smtpd_tls_cert_file": "$config_directory/postfix.pem",
            "smtpd_tls_key_file": "$config_directory/postfix.key",
        }
    if next_hop is None:
        chosen["smtpd_client_restrictions"] = "static:HOLD"
    else:
        chosen["relayhost"] = f"[{HOST}]:{next_hop}"
    return chosen


@dataclass
class Relay:
    """A running Postfix."""

    port: int
    groups: Groups
    notes: list[str]
    master: Daemon
    queue: Path

    def check(self) -> None:
        """Raise when master has ended."""
        self.master.check()

    def queued(self) -> int:
        """Count queue files."""
        return files(*(self.queue / name for name in QUEUES))

    def commits(self) -> float:
        """Return 0: it has no database."""
        return 0.0


class Postfix:
    """Postfix out of the Debian package."""

    name = "postfix"

    def __init__(self, packages: Path, changes: Mapping[str, str]) -> None:
        need_root()
        self.root = unpack("postfix", packages)
        self.changes = changes
        self.about = f"Debian package {version('postfix', packages)}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that its programs need."""
        own = self.root / "usr/lib/postfix"
        return {"LD_LIBRARY_PATH": f"{own}:{libraries(self.root)}"}

    def tool(self, name: str) -> Path:
        """Return the path of one of its commands."""
        return self.root / "usr/sbin" / name

    def _write(
        self, cell: Cell, directory: Path, port: int, next_hop: int | None
    ) -> tuple[Path, Path]:
        config, queue = directory / "etc", directory / "queue"
        places = {
            "command_directory": self.root / "usr/sbin",
            "daemon_directory": self.root / "usr/lib/postfix/sbin",
            "shlib_directory": self.root / "usr/lib/postfix",
            "queue_directory": queue,
            "data_directory": directory / "data",
            "mail_owner": "postfix",
            "setgid_group": "postdrop",
            "import_environment": f"MAIL_CONFIG TZ LANG=C LD_LIBRARY_PATH {VARIABLE}",
            "maillog_file": directory / "log" / "maillog",
            "maillog_file_prefixes": directory,
        }
        for place in (config, queue, directory / "data", directory / "log"):
            place.mkdir()
        if cell.front:
            make_certificate(config, "postfix")
        lines = {**places, **settings(cell, next_hop), **self.changes}
        if cell.sign:
            # at intake, as OpenDKIM works with Postfix
            lines["smtpd_milters"] = f"unix:{signer_socket(directory)}"
            lines["receive_override_options"] = "no_header_body_checks, no_address_mappings"
        (config / "main.cf").write_text("".join(f"{k} = {v}\n" for k, v in lines.items()))
        (config / "master.cf").write_text(f"{HOST}:{port} inet n - n - - smtpd\n{SERVICES}")
        return config, queue

    @contextlib.contextmanager
    def start(self, cell: Cell, directory: Path, next_hop: int | None) -> Iterator[Relay]:
        """Run it on an empty queue; without a next hop all mail is put on hold."""
        port = free_port()
        config, queue = self._write(cell, directory, port, next_hop)
        root = furnish(directory, ["postfix"], ["postdrop"])
        owner, group = root.users["postfix"], root.groups["postdrop"]
        for name in OWNED:
            _folder(queue / name, owner, 0, 0o700)
        _folder(queue / "maildrop", owner, group, 0o730)
        _folder(queue / "public", owner, group, 0o710)
        _folder(queue / "pid", 0, 0, 0o755)
        _folder(directory / "data", owner, 0, 0o700)
        program = self.root / "usr/lib/postfix/sbin/master"
        command: list[str | Path] = [program, "-c", config, "-d"]
        log = directory / "postfix.log"
        signer = start_signer(directory, cell.sign) if cell.sign else None
        master = Daemon("postfix", root.command(command), log, self.environment)
        try:
            master.wait_greeting(port)
            groups = {"postfix": [master.process.pid]}
            if signer:
                groups["opendkim"] = [signer.process.pid]
            yield Relay(port, groups, [], master, queue)
        finally:
            master.stop()
            if signer:
                signer.stop()


def _folder(path: Path, owner: int, group: int, mode: int) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(mode)
    os.chown(path, owner, group)
