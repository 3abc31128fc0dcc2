"""smtpd and queued on two hosts, by the files of packaging/cluster, a campaign, and their mail."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import yaml
from psycopg.conninfo import make_conninfo

from bench.daemons import merged
from bench.helper import Helper
from bench.loss.cluster import DATABASES, PACKAGING, Cluster, ClusterError, wait
from bench.loss.hosts import Hosts, inner, outer
from bench.loss.load import RATED_DOMAIN
from bench.rate_run import START, TEMPLATE, make_campaign

RELAYS = {"mx1": 3, "mx2": 2}
"""The hosts of pgmta, and the processes of queued on each."""
RATED_SENDER, CAMPAIGN_SENDER = "rated@a.example", "campaign@a.example"
_SINK_PORT = 25
_PASSWORD = "secret"
_LOGINS = ("owner", "smtpd", "queued", "operator")
_JOBS = """
SELECT (SELECT count(*) FROM queue), (SELECT count(*) FROM queue WHERE status = 'HOLD'),
    (SELECT count(*) FROM campaign_jobs WHERE status NOT IN ('STOPPED', 'LOGGED'))
"""


@dataclass(frozen=True)
class Rates:
    """How much mail begins per second at the next hop, at most."""

    route: float
    campaign: float


class Relay:
    """The daemons and the helpers, on the hosts."""

    def __init__(self, hosts: Hosts, cluster: Cluster, rates: Rates) -> None:
        self._hosts, self._cluster, self._rates = hosts, cluster, rates
        self._commands = Path(sys.executable).parent
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._files: dict[str, tuple[str, Path]] = {}
        self._load: Helper | None = None
        self._sink: Helper | None = None
        self.events, self.arrivals = hosts.folder / "events", hosts.folder / "arrivals"

    def _uri(self, login: str) -> str:
        addresses = ",".join(map(inner, DATABASES))
        return f"postgresql://{login}:{quote(_PASSWORD)}@{addresses}/pgmta"

    def prepare(self, recipients: int) -> None:
        """Make logins, tables and the campaign. Raises psycopg.Error, ClusterError."""
        primary = self._cluster.wait_primary()
        with self._cluster.connect(primary) as db:
            self._run_roles(db)
        owner = self._write("owner", {"environment": {"database": {"uri": self._uri("owner")}}})
        queuectl = str(self._commands / "queuectl")
        command = [*self._hosts.words("mx1"), queuectl, "database", "migrate", "-c", str(owner)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        if done.returncode:
            raise ClusterError(f"queuectl database migrate: {done.stderr[-300:]}")
        with self._cluster.connect(primary, "pgmta") as db:
            db.execute("SET search_path = pgmta")
            db.execute("GRANT pgmta_submit TO operator")
            db.execute(TEMPLATE)
            make_campaign(db, CAMPAIGN_SENDER, recipients)

    def _run_roles(self, db: psycopg.Connection[Any]) -> None:
        """Run roles.sql, whose variables are those of psql."""
        text = (PACKAGING / "roles.sql").read_text()
        for login in _LOGINS:
            text = text.replace(f":'{login}'", f"'{_PASSWORD}'")
        lines = [line for line in text.splitlines() if not line.startswith("--")]
        for statement in filter(str.strip, "\n".join(lines).split(";")):
            db.execute(statement.encode())

    def _write(self, name: str, settings: dict[str, Any]) -> Path:
        path = self._hosts.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False))
        return path

    def _settings(self, host: str, daemon: str, more: dict[str, Any]) -> Path:
        """Write the file of a daemon: that of packaging/cluster, and what the bench needs."""
        folder = self._hosts.folder / host
        settings = yaml.safe_load((PACKAGING / f"{daemon}.yaml").read_text())
        environment = {
            "hostname": f"{host}.example.org",
            "directory": str(folder),
            "database": {"uri": self._uri(daemon)},
        }
        more = {"environment": environment, "log": {"level": "warning"}, **more}
        return self._write(f"{host}/{daemon}", merged(settings, more))

    def start(self, rate: float, sessions: int) -> None:
        """Start sink, daemons and load. Raises HelperError, OSError."""
        words = self._hosts.words("client")
        sink = {"file": str(self.arrivals), "address": outer("client"), "port": _SINK_PORT}
        self._sink = Helper("loss.sink", sink, self._hosts.folder / "sink.log", words)
        self._sink.wait("ready")
        for host, workers in RELAYS.items():
            self._start_daemons(host, workers)
        uri = make_conninfo(
            self._uri("operator"), target_session_attrs="read-write", connect_timeout=3,
            tcp_user_timeout=5000, keepalives_idle=3, keepalives_interval=1, keepalives_count=2,
        )  # fmt: skip
        load = {
            "file": str(self.events), "rate": rate, "sessions": sessions, "uri": uri,
            "smtp": {host: outer(host) for host in RELAYS},
        }  # fmt: skip
        for host in RELAYS:
            wait(f"smtpd of {host}", partial(self._takes_mail, host), 180)
        self._load = Helper("loss.load", load, self._hosts.folder / "load.log", words)
        self._load.wait("ready")
        with self._operator() as db:
            db.execute(START, (1, self._rates.campaign, 1))

    def _takes_mail(self, host: str) -> bool:
        return self._hosts.get(host, 9101, "/readyz") == 200

    def _start_daemons(self, host: str, workers: int) -> None:
        (self._hosts.folder / host).mkdir()
        to = f"{outer('client')}:{_SINK_PORT}"
        rated = {
            "name": "rated",
            "domain": RATED_DOMAIN,
            "to": to,
            "rate": f"{self._rates.route:g}/s",
        }
        self._write(f"{host}/shaping", {"routes": [rated, {"name": "all", "to": to}]})
        smtpd = {
            "maildrop": {"directory": None},
            "relay": {"networks": ["198.51.100.0/24"]},
            "processes": 1,
        }
        self._daemon(host, "smtpd", self._settings(host, "smtpd", smtpd))
        for number in range(workers):
            metrics = {"listen": f"127.0.0.1:{9110 + number}"}
            path = self._settings(host, "queued", {"shaping": "shaping.yaml", "metrics": metrics})
            own = path.with_name(f"queued{number}.yaml")
            path.rename(own)
            self._daemon(host, "queued", own)

    def _daemon(self, host: str, command: str, path: Path) -> None:
        name = f"{path.stem} of {host}"
        self._files[name] = host, path
        with path.with_suffix(".log").open("ab") as log:
            process = subprocess.Popen(
                [*self._hosts.words(host), self._commands / command, "run", "-c", path],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, cwd=path.parent,
            )  # fmt: skip
        self._processes[name] = process

    def kill_worker(self, name: str) -> None:
        """Kill a process of queued, and start it again at once, as systemd does."""
        host, path = self._files[name]
        self._processes[name].kill()
        self._processes[name].wait()
        self._daemon(host, "queued", path)

    @property
    def workers(self) -> list[str]:
        """The names of the processes of queued."""
        return [name for name in self._files if name.startswith("queued")]

    def ended(self) -> list[str]:
        """Return the daemons that have ended."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def _operator(self) -> psycopg.Connection[Any]:
        """Return a session with the primary, in its schema."""
        db = self._cluster.connect(self._cluster.wait_primary(), "pgmta")
        db.execute("SET search_path = pgmta")
        return db

    def ask(self, question: Callable[[psycopg.Connection[Any]], Any]) -> Any:
        """Return what the function finds in a session with the primary."""
        with self._operator() as db:
            return question(db)

    def drain(self, seconds: float) -> None:
        """End the load and the campaign, and wait until the queue is empty. Raises ClusterError."""
        assert self._load
        self._load.tell("stop")
        self._load.wait("stopped", 90)
        with self._operator() as db:
            db.execute("SELECT campaign_stop(1)")

            def idle() -> bool:
                row = db.execute(_JOBS).fetchone()
                return row is not None and row[0] == row[1] and row[2] == 0

            try:
                wait("an empty queue", idle, seconds)
            except ClusterError as error:
                raise ClusterError(f"{error}: {db.execute(_JOBS).fetchone()}") from None

    def close(self) -> None:
        """End the helpers; the daemons end with their hosts."""
        for helper in (self._load, self._sink):
            if helper:
                helper.close()
