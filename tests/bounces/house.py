"""The daemons for all cases: a database, an smtpd and a queued for each group of equal settings."""

from __future__ import annotations

import json
import smtplib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import yaml
from click.testing import CliRunner
from psycopg import sql
from psycopg.types.json import Jsonb

from queued.cli.queuectl import main as queuectl
from tests.bounces.case import Case, Mail
from tests.bounces.hosts import Kept
from tests.support.daemons import Config, Queued, Smtpd, merge
from tests.support.database import fresh_database
from tests.support.system import System
from tests.support.waiting import PATIENCE, free_port, until

_BASE: Config = {
    "retry": {"intervals": ["300ms"], "jitter": 0, "expire": "1h"},
    "bounces": {"gather": "20s", "delay": []},
    "delivery": {"tls": {"mode": "none"}},
    "process": {"poll": "200ms"},
}


class Group:
    """The installation of some cases."""

    def __init__(self, folder: Path, uri: str, cases: list[Case]) -> None:
        self.cases = cases
        self.system = System(folder, uri)
        self.ids: dict[str, list[int]] = {}
        self._ports: dict[str, int] = {}  # of listeners
        self.queued: Queued
        self.smtpd: Smtpd

    def start(self) -> None:
        self.smtpd = self.system.smtpd(**self._front())
        self.queued = self.system.queued(**self._config(self.system.folder))

    def _front(self) -> Config:
        listeners = {json.dumps(case.listener): case.listener for case in self.cases}
        usual = {"address": "127.0.0.1", "role": "internal"}
        self._ports = {key: free_port() for key in listeners}
        return {
            "dsn": True,
            "limits": {"message_size": "64MB"},
            "listen": [
                usual | {"port": self._ports[key]} | listener for key, listener in listeners.items()
            ],
        }

    def _config(self, folder: Path) -> Config:
        config = merge(_BASE, json.loads(json.dumps(self.cases[0].queued)))
        if templates := config["bounces"].get("templates"):
            config["bounces"]["templates"] = str(self.cases[0].folder / templates)
        routes = []
        for case in self.cases:
            for name, host in case.hosts.items():
                domain = f"{name}.{case.domain_label}.test"
                protocol = "lmtp" if host.lmtp else "smtp"
                to = [host.hop.target]
                routes.append({"domain": domain, "to": to, "transport": protocol, "tls": "none"})
        (folder / "shaping.yaml").write_text(yaml.safe_dump({"routes": routes}))
        return {**config, "shaping": "shaping.yaml"}

    # -- mail --

    def send(self, case: Case) -> None:
        """Send all mail of a case."""
        self.ids[case.name] = [self._send(case, mail) for mail in case.mail]

    def content(self, case: Case, mail: Mail) -> bytes:
        lines = b"0123456789abcdef" * 4 + b"\r\n"
        return case.content + lines * (mail.octets // len(lines))

    def _send(self, case: Case, mail: Mail) -> int:
        recipients = {self._whole(case, each): words for each, words in mail.recipients.items()}
        recipients |= dict.fromkeys(
            (self._whole(case, f"user{number}@b") for number in range(mail.many)), ""
        )
        content = self.content(case, mail)
        if mail.many or mail.columns or mail.submit is not None:
            return self._insert(mail, list(recipients), content)
        port = self._ports[json.dumps(case.listener)]
        with smtplib.SMTP("127.0.0.1", port, "client.test", timeout=PATIENCE) as session:
            session.ehlo()
            session.command_encoding = "utf-8"
            words = f" {mail.parameters}" if mail.parameters else ""
            answer = session.docmd(f"MAIL FROM:<{mail.sender}>{words}")
            assert answer[0] == 250, (case.name, answer)
            for recipient, parameters in recipients.items():
                words = f" {parameters}" if parameters else ""
                answer = session.docmd(f"RCPT TO:<{recipient}>{words}")
                assert answer[0] == 250, (case.name, answer)
            answer = session.data(content)
            assert answer[0] == 250, (case.name, answer)
            return int(answer[1].split()[1])

    @staticmethod
    def _whole(case: Case, recipient: str) -> str:
        return f"{recipient}.{case.domain_label}.test"

    def _insert(self, mail: Mail, recipients: list[str], content: bytes) -> int:
        """Put a message into the queue by SQL: by the function submit, or as rows."""
        with psycopg.connect(self.system.uri, autocommit=True) as db:
            if mail.submit is not None:
                names = sql.SQL("").join(
                    sql.SQL(", {} => {}").format(sql.Identifier(name), sql.Literal(value))
                    for name, value in mail.submit.items()
                )
                call = sql.SQL("SELECT pgmta.submit(%s, %s::text[], %s{})").format(names)
                row = db.execute(call, (mail.sender, recipients, content)).fetchone()
                assert row
                return int(row[0])
        columns = {
            name: Jsonb(value) if isinstance(value, dict) else value
            for name, value in {"on_failed": "bounce", **mail.columns}.items()
        }
        return self.system.enqueue(*recipients, content=content, sender=mail.sender, **columns)

    # -- what became of it --

    def rows(self, case: Case) -> list[str]:
        """`recipient STATUS hold_reason` of each row of the case, DSNs included."""
        rows = self.system.ask(
            "SELECT recipient, status, coalesce(' ' || hold_reason, '') AS reason FROM queue"
            " WHERE recipient LIKE %s ORDER BY id",
            f"%.{case.domain_label}.test",
        )
        return [f"{row['recipient']} {row['status']}{row['reason']}" for row in rows]

    def attempts(self, case: Case) -> list[str]:
        """`recipient event class code` of each attempt, by recipient and time."""
        rows = self.system.ask(
            "SELECT recipient, event, coalesce(class, '-') AS class, code FROM attempts"
            " WHERE recipient LIKE %s ORDER BY recipient, ended_at, row_id",
            f"%.{case.domain_label}.test",
        )
        return [f"{r['recipient']} {r['event']} {r['class']} {r['code']}" for r in rows]

    def reports(self, case: Case) -> list[str]:
        """`recipient kind sent_to (reason)` of each report of the case's messages."""
        rows = self.system.ask(
            "SELECT recipient, kind, coalesce(sent_to, '-') AS sent_to,"
            " coalesce(' (' || reason || ')', '') AS reason FROM reports"
            " WHERE recipient LIKE %s ORDER BY recipient, kind, at",
            f"%.{case.domain_label}.test",
        )
        return [f"{r['recipient']} {r['kind']} {r['sent_to']}{r['reason']}" for r in rows]

    def wait(self, case: Case, rows: list[str], dsns: int) -> list[Kept]:
        """Wait until the queue and the senders have what they should; return the DSNs."""
        sender = case.hosts["a"]

        def there() -> bool:
            return (
                len(sender.kept) >= dsns and len(self.rows(case)) == len(rows) and self._ended(case)
            )

        try:
            until(there, PATIENCE)
        except AssertionError:
            found = "\n".join([*self.rows(case), *self.attempts(case), *self.reports(case)])
            print(
                b"\n=====\n".join(kept.content for kept in sender.kept).decode("utf-8", "replace")
            )
            raise AssertionError(
                f"{len(sender.kept)} DSNs, expected {dsns}; rows:\n{found}"
            ) from None
        return sender.kept

    def _ended(self, case: Case) -> bool:
        moving = ("QUEUED", "SENDING", "DEFERRED", "REPORT")
        return not any(row.split(" ")[1] in moving for row in self.rows(case))

    def queuectl(self, case: Case, words: list[str]) -> None:
        """Run a command of an operator."""
        result = CliRunner().invoke(queuectl, [words[0], "-c", str(self.queued.path), *words[1:]])
        assert result.exit_code == 0, (case.name, result.output)


def groups(cases: list[Case]) -> dict[str, list[Case]]:
    """Return the cases with equal settings of queued together, by the name of the first one."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        own = str(case.folder) if case.queued.get("bounces", {}).get("templates") else ""
        found.setdefault(json.dumps([case.queued, own], sort_keys=True), []).append(case)
    return {cases[0].name: cases for cases in found.values()}


@contextmanager
def running(folder: Path, server: str, template: str, cases: list[Case]) -> Iterator[Group]:
    """Run a group, with the mail of its cases under way; no daemon may log an error."""
    with ExitStack() as stack, fresh_database(server, template) as uri:
        for host in (host for case in cases for host in case.hosts.values()):
            stack.enter_context(host.start())
        group = Group(folder, uri, cases)
        try:
            group.start()
            for case in cases:
                group.send(case)
            yield group
            group.system.stop()
        finally:
            group.system.clean()
    assert group.system.faults() == []
