"""OpenSMTPD as a relay on loopback, set up as docs/develop/peers.md explains."""

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

USERS = ("opensmtpd", "opensmtpq")  # compiled into the package, as are the three folders below

CONFIG = """\
smtp max-message-size 100M
smtp limit max-mails 1000000
smtp limit max-rcpt 1000
mta limit max-conn-per-route 20
mta limit max-conn-per-host 20
mta limit conn-delay-route 0
mta limit conn-delay-relay 0
mta limit session-mail-max 1000
listen on {host} port {port}
action "hop" relay host "smtp://{host}:{next_hop}"
match from any for any action "hop"
"""


class OpenSmtpd:
    """OpenSMTPD out of the Debian package."""

    name = "opensmtpd"

    def __init__(self, packages: Path, config: str = CONFIG) -> None:
        need_root()
        self.config = config
        self.root = unpack("opensmtpd", packages)
        self.about = f"Debian package {version('opensmtpd', packages)}"

    @contextlib.contextmanager
    def start(self, cell: Cell, directory: Path, next_hop: int | None) -> Iterator[Running]:
        """Run it on an empty queue; without a next hop its mta is paused."""
        port = free_port()
        folders = {at: directory / at.strip("/").replace("/", "-") for at in ("/var/spool", "/run")}
        folders["/var/lib"] = directory / "var-lib"
        room = furnish(directory, USERS, folders=folders)
        queue_id = room.users["opensmtpq"]
        spool = folders["/var/spool"] / "smtpd"
        for path, owner, group, mode in (
            (folders["/run"], 0, 0, 0o755),
            (folders["/var/lib"] / "opensmtpd" / "empty", 0, 0, 0o755),
            (spool, 0, 0, 0o711),
            (spool / "queue", queue_id, 0, 0o700),
            (spool / "corrupt", queue_id, 0, 0o700),
            (spool / "incoming", queue_id, 0, 0o700),
            (spool / "temporary", queue_id, 0, 0o700),
            (spool / "purge", queue_id, 0, 0o700),
            (spool / "offline", 0, room.groups["opensmtpq"], 0o770),
        ):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
            os.chown(path, owner, group)
        config = directory / "smtpd.conf"
        config.write_text(self.config.format(host=HOST, port=port, next_hop=next_hop or 25))
        command: list[str | Path] = [self.root / "usr/sbin/smtpd", "-d", "-f", config]
        command += ["-P", "mta"] if next_hop is None else []
        environment = {"LD_LIBRARY_PATH": libraries(self.root)}
        daemon = Daemon("opensmtpd", room.command(command), directory / "smtpd.log", environment)
        try:
            daemon.wait_greeting(port)
            groups = {"opensmtpd": [daemon.process.pid]}
            yield Spooler(port, groups, [], daemon, spool / "queue", "message")
        finally:
            daemon.stop()
