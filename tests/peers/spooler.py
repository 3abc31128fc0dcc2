"""A running mail server of others whose queue is files."""

from dataclasses import dataclass
from pathlib import Path

from bench.cpu import Groups
from bench.peer.system import Daemon, files


@dataclass
class Spooler:
    """A running peer with one main process, whose queue is files with a common ending."""

    port: int
    groups: Groups
    notes: list[str]
    daemon: Daemon
    spool: Path
    ending: str

    def check(self) -> None:
        """Raise when the main process has ended."""
        self.daemon.check()

    def queued(self) -> int:
        """Count the files, one of each message."""
        return files(self.spool, ending=self.ending)

    def commits(self) -> float:
        """Return 0: it has no database."""
        return 0.0
