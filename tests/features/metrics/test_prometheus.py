"""A Prometheus scrapes real daemons: each alert fires for its fault, each query has series."""

from __future__ import annotations

import base64
import json
import re
import smtplib
import subprocess
import threading
import urllib.parse
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
import yaml

from tests.support.daemons import ROOT
from tests.support.database import PrivateServer
from tests.support.nexthop import at
from tests.support.submit import Client, post
from tests.support.system import System
from tests.support.users import add_user
from tests.support.waiting import PATIENCE, free_port, until

FOLDER = ROOT / "etc" / "prometheus"
_LENGTH = re.compile(r"(?<=[\[ ])(\d+)([mh])\b")
_SECONDS = {"m": 1, "h": 60}


def hurried(text: str) -> str:
    """Return an expression or a period with seconds for its minutes."""
    return _LENGTH.sub(lambda found: f"{int(found[1]) * _SECONDS[found[2]]}s", f" {text}").strip()


class Prometheus:
    """Scrapes the pages of daemons by job, and judges the rules, once per second."""

    def __init__(self, folder: Path, jobs: dict[str, int], **ages: str) -> None:
        """`ages` replace limits of rules in seconds, which `hurried` does not change."""
        self.port = free_port()
        rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
        for group in rules["groups"]:
            for rule in group["rules"]:
                rule["expr"] = hurried(ages.get(rule["alert"], rule["expr"]))
                rule["for"] = hurried(rule["for"])
        (folder / "alerts.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
        often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        scrapes = [
            {"job_name": job, "scrape_timeout": "1s",
             "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for job, port in jobs.items()
        ]  # fmt: skip
        config = {"global": often, "rule_files": ["alerts.yaml"], "scrape_configs": scrapes}
        path = folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'series'}",
             f"--web.listen-address=127.0.0.1:{self.port}"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def __enter__(self) -> Self:
        until(self._ready)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _ready(self) -> bool:
        try:
            return bool(self.query("count(up)"))
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        place = f"http://127.0.0.1:{self.port}/api/v1/{path}"
        with urllib.request.urlopen(place, timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now."""
        words = urllib.parse.urlencode({"query": expression})
        found: list[dict[str, Any]] = self._get(f"query?{words}")["result"]
        return found

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        found = self._get("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}


CONTENT = b"Subject: x\r\n\r\nx\r\n"
FILL = """
WITH made AS (
    INSERT INTO messages (id, size, trace, body)
    SELECT nextval('message_ids'), 3, E'Received: by test\r\n', E'\r\nx'
    FROM generate_series(1, %(rows)s) RETURNING id
)
INSERT INTO queue (message_id, sender, recipient, domain, next_attempt)
SELECT id, 's@a.example', 'r@' || %(domain)s, %(domain)s, now() - make_interval(secs => %(late)s)
FROM made
"""
MANY = {"new_connections_per_address": 100_000}
# the count of the queue is at most a minute old in a sound system, so that its minutes stay
STALE = "pgmta_queue_count_age_seconds > 90"
_UNUSED = re.compile("tls|hook|dsns")  # no client and no hook makes such a series here


class Load:
    """Mail and clients that keep on until the end, each kind in one thread."""

    def __init__(self, uri: str, relay: int, submission: int) -> None:
        self._uri, self._relay, self._submission = uri, relay, submission
        self._ended = threading.Event()
        each = (self._mail, *[self._ask] * 4, *[self._guess] * 12)  # a reply takes a second
        self._threads = [threading.Thread(target=work) for work in each]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _mail(self) -> None:
        """Mail of which most is deferred, some fails, and a little arrives."""
        with psycopg.connect(self._uri, autocommit=True) as db:
            while not self._ended.wait(0.5):
                for domain, rows in (("defers", 40), ("fails", 20), ("b", 2)):
                    db.execute(FILL, {"domain": f"{domain}.example", "rows": rows, "late": 0})

    def _ask(self) -> None:
        """Ask to relay as a stranger."""
        while not self._ended.wait(0.2):
            with suppress(OSError), Client(self._relay) as client:
                client.command("EHLO c.example")
                client.command("MAIL FROM:<s@a.example>")
                for number in range(5):
                    client.command(f"RCPT TO:<r{number}@elsewhere.example>")

    def _guess(self) -> None:
        """Guess passwords of many users."""
        number = 0
        while not self._ended.wait(0.02):
            number += 1
            with suppress(OSError), Client(self._submission) as client:
                client.command("EHLO c.example")
                words = base64.b64encode(f"\0user{number}\0wrong".encode()).decode()
                client.command(f"AUTH PLAIN {words}")


def queries() -> list[str]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    return [hurried(t["expr"]) for panel in dashboard["panels"] for t in panel.get("targets", ())]


@pytest.mark.slow
@pytest.mark.needs("prometheus")
@pytest.mark.timeout(600)
def test_each_alert_fires_for_its_fault_and_each_query_has_series(
    private_system: System, private_server: PrivateServer, tmp_path: Path
) -> None:
    system = private_system
    pages = {"smtpd": free_port(), "queued": free_port()}
    relay, submission = free_port(), free_port()
    defers, fails = (system.hop(at("RCPT", line)) for line in ("451 4.2.1 later", "550 5.7.1 no"))
    good = system.hop()
    routes = {"defers.example": defers.target, "fails.example": fails.target, "*": good.target}
    listen: list[dict[str, Any]] = [
        {"port": relay},
        {"port": submission, "role": "submission", "tls": "none", "auth_without_tls": True},
    ]
    system.smtpd(listen=listen, metrics={"listen": f"127.0.0.1:{pages['smtpd']}"},
                 relay={"domains": ["b.example"], "networks": []}, limits=MANY)  # fmt: skip
    queued = system.queued(
        routes=routes, metrics={"listen": f"127.0.0.1:{pages['queued']}"},
        workers=[{"name": "most", "where": "domain <> 'stuck.example'"}],
        retry={"intervals": ["1h"], "jitter": 0},
    )  # fmt: skip
    add_user(system.uri, "ann@own.example", "a password")
    with ExitStack() as stack:
        prometheus = stack.enter_context(Prometheus(tmp_path, pages, PgmtaCountStale=STALE))

        def fires(*names: str) -> None:
            missing = set(names)  # one after the other will do

            def seen() -> bool:
                missing.difference_update(prometheus.firing())
                return not missing

            with suppress(AssertionError):
                until(seen, 150)
            assert missing == set()

        post(relay, "s@a.example", ["r@b.example"], CONTENT)
        good.wait_kept(1)
        until(lambda: prometheus.query("sum(pgmta_queued_attempts_total) == 1"))
        assert prometheus.firing() == set()
        with Load(system.uri, relay, submission):
            fires("PgmtaDeferrals", "PgmtaNextHopRefuses", "PgmtaFailures", "PgmtaRefusals",
                  "PgmtaLoginFailures")  # fmt: skip
            empty = [each for each in queries() if not _UNUSED.search(each)]

            def all_found() -> bool:  # the first count of the queue comes within a minute
                empty[:] = [each for each in empty if not prometheus.query(each)]
                return not empty

            with suppress(AssertionError):
                until(lambda: all_found() or len(empty) == 1, 90)  # one is of due mail
        with psycopg.connect(system.uri, autocommit=True) as db:
            db.execute(FILL, {"domain": "stuck.example", "rows": 3000, "late": 1000})
        fires("PgmtaQueueGrows", "PgmtaNoWorker", "PgmtaOldestDueMail")
        all_found()
        assert empty == []
        private_server.read_only(True)

        def stopped() -> bool:
            with suppress(AssertionError, smtplib.SMTPException):  # no 250, or no 354
                post(relay, "s@a.example", ["r@b.example"], CONTENT)
            return "PgmtaIntakeStopped" in prometheus.firing()

        until(stopped, 60)
        private_server.read_only(False)
        private_server.crash()
        fires("PgmtaNotReady", "PgmtaCountStale")
        queued.kill()
        fires("PgmtaDown")
        private_server.start()
