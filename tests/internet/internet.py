"""The fake Internet with all cases, and what became of their mail."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import yaml
from click.testing import CliRunner
from psycopg import sql

from queued.cli.queuectl import main as queuectl
from tests.internet.case import Case, Plan, host_script
from tests.internet.hosts import Hosts
from tests.internet.policies import ADDRESS, NOBODY, PolicyServer
from tests.internet.zones import NameServers, Zone
from tests.support.authority import Authority
from tests.support.daemons import Daemon, merge
from tests.support.database import fresh_database
from tests.support.system import Row, System
from tests.support.waiting import free_port, take_time, until

TIMES = dict.fromkeys(("connect", "greeting", "command", "final", "tls"), "5s")
"""Time limits of all cases. A host that hangs costs this much."""

WITHIN = 60.0
"""Seconds within which every case has an outcome."""

_SENT = "Received: by test\r\n"


class Internet:
    """Name servers, hosts, policies, and a queued for each group of cases with equal settings."""

    def __init__(self, folder: Path, server: str, template: str, cases: list[Case]) -> None:
        self.cases = {case.name: case for case in cases}
        self.ids: dict[str, list[int]] = {}
        """Messages by case, those of the step under way."""
        self.folder = folder
        self._server, self._template = server, template
        self._stack = ExitStack()
        self.port = free_port()
        self._other_port = free_port()
        self.sts_port = free_port()
        self.authority = Authority(folder / "certificates")
        self._groups: dict[str, System] = {}
        self._daemons: dict[str, Daemon] = {}
        with ExitStack() as stack:  # whatever has started ends if the rest does not start
            self.hosts = Hosts(cases, self.authority, {c.name: self.port_of(c) for c in cases})
            stack.callback(self.hosts.stop)
            self.policies = PolicyServer(self.authority, self.sts_port)
            stack.callback(self.policies.stop)
            zones = [self._zone(case) for case in cases]
            self.names = NameServers(folder / "zones", zones)
            stack.callback(self.names.stop)
            for key, group in self._by_settings(cases).items():
                self._groups[key] = stack.enter_context(self._system(group))
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """End everything; raise AssertionError if a daemon ended badly or logged errors."""
        self._stack.close()

    # -- the parts --

    def port_of(self, case: Case) -> int:
        wanted = case.settings.get("delivery", {}).get("port")
        return self._other_port if wanted == "other" else self.port

    def _values(self, case: Case) -> dict[str, str]:
        values = {"port": str(self.port_of(case)), "domain": case.domain}
        certificates = {"ca": self.authority.own}
        certificates |= {n: h.certificate for n, h in self.hosts.hosts[case.name].items()}
        for name, each in certificates.items():
            values[f"{name}.spki"] = each.tlsa(1, 1)
            values[f"{name}.cert"] = each.tlsa(0, 1)
            values[f"{name}.spki512"] = each.tlsa(1, 2)
            values[f"{name}.full"] = each.tlsa(1, 0)
        for name in case.hosts:
            values[f"{name}.address"] = case.address(name)
        return values

    def fill(self, case: Case, text: str) -> str:
        """Replace {port}, {mx1.spki} and similar words."""
        values = self._values(case)
        return re.sub(r"\{([\w.]+)\}", lambda found: values[found[1]], text)

    def _zone(self, case: Case) -> Zone:
        records = [self.fill(case, case.zone)]
        for name, host in case.hosts.items():
            if host.ipv6 or host.aaaa:
                records.append(f"{name} AAAA {host.aaaa or '::1'}")
            if host.address != "none" and not (host.ipv6 and host.address is None):
                records.append(f"{name} A {case.address(name)}")
        # a zone cut: otherwise a proof that the name is not there answers for the broken server
        records += [f"{name} NS ns.fake." for name in case.broken if name != "@"]
        if case.sts:
            case.sts["policy"] = self.fill(case, case.sts["policy"])
            self.policies.plans[case.domain] = dict(case.sts)
            at = NOBODY if case.sts.get("unreachable") else ADDRESS
            record = case.sts.get("record", "v=STSv1; id=1;")
            records += [f'_mta-sts TXT "{record}"', f"mta-sts A {at}"]
        broken = {f"{name}.{case.domain}.": how for name, how in case.broken.items()}
        broken = {self.fill(case, name.replace("@.", "")): how for name, how in broken.items()}
        return Zone(f"{case.domain}.", "\n".join(records), case.sign, broken)

    @staticmethod
    def _by_settings(cases: list[Case]) -> dict[str, list[Case]]:
        groups: dict[str, list[Case]] = {}
        for case in cases:
            groups.setdefault(json.dumps(case.settings, sort_keys=True), []).append(case)
        return groups

    @contextmanager
    def _system(self, cases: list[Case]) -> Iterator[System]:
        """Start a queued for these cases and send their mail."""
        number = len(self._groups)
        folder = self.folder / f"group{number}"
        folder.mkdir()
        with fresh_database(self._server, self._template) as uri:
            system = System(folder, uri)
            system.expected = {event for case in cases for event in case.expect.log}
            try:
                self._send(uri, cases)
                daemon = system.queued(**self._config(folder, cases))
                self._daemons |= {case.name: daemon for case in cases}
                yield system
                system.stop()
            finally:
                system.clean()
        assert system.faults() == []

    def _config(self, folder: Path, cases: list[Case]) -> Plan:
        resolver = f"127.0.0.1:{self.names.resolver}"
        settings = json.loads(json.dumps(cases[0].settings))  # a copy
        delivery = settings.setdefault("delivery", {})
        delivery["port"] = self.port_of(cases[0])
        if delivery.get("dns", {}).get("servers") == "plain":
            delivery["dns"]["servers"] = [f"127.0.0.1:{self.names.plain_resolver}"]
        base: Plan = {
            "delivery": {
                "ipv6": True,
                "allowed": ["127.64.0.0/10", "127.128.0.0/9", "::1/128"],  # hosts, policies
                "timeouts": TIMES,
                "dns": {"servers": [resolver], "timeout": "2s"},
                "tls": {"ca": str(self.authority.path), "sts_port": self.sts_port},
            },
            "routes": {"*": "mx"},
            "retry": {"intervals": ["1h"]},
        }
        routes = []
        for case in cases:
            if case.route:
                filled = json.loads(
                    self.fill(case, json.dumps(case.route).replace('"{port}"', "{port}"))
                )
                routes.append({"domain": case.domain, "to": "mx", **filled})
        if routes:
            (folder / "shaping.yaml").write_text(yaml.safe_dump({"routes": routes}))
            base["shaping"] = "shaping.yaml"
        return merge(base, settings)

    # -- mail --

    def _send(self, uri: str, cases: list[Case]) -> None:
        with psycopg.connect(uri) as db:
            for case in cases:
                self.ids[case.name] = self._enqueue(db, case)
            db.execute("NOTIFY pgmta_queue")

    def _enqueue(self, db: psycopg.Connection, case: Case) -> list[int]:
        """Put the mail of a case into the queue; return the ids of its messages."""
        ids = []
        for number in range(case.messages):
            content = case.content.encode()
            of_message = {"size": len(content), "trace": _SENT, "body": content, **case.message}
            row = db.execute(_insert("messages", of_message), list(of_message.values())).fetchone()
            assert row
            ids.append(int(row[0]))
            for each in range(case.recipients):
                local = f"user{number * case.recipients + each + 1}"
                recipient = self.fill(case, case.recipient or f"{local}@{case.domain}")
                values = {
                    "message_id": row[0],
                    "sender": "sender@example.org",
                    "recipient": recipient,
                    "domain": recipient.rpartition("@")[2],
                    **case.columns,
                }
                db.execute(_insert("queue", values), list(values.values()))
        return ids

    def system(self, case: Case) -> System:
        """Return the installation that delivers the mail of the case."""
        return self._groups[json.dumps(case.settings, sort_keys=True)]

    def again(self, case: Case, hosts: Plan, sts: Plan, wait: float) -> None:
        """Change what the case says, and send its mail once more."""
        for name, script in hosts.items():
            self.hosts.change(case.name, name, host_script(script, case.name))
        if sts:
            self.policies.plans[case.domain] = {**case.sts, **sts}
        for host in self.hosts.hosts[case.name].values():
            host.record.kept.clear()
            host.record.commands.clear()
            host.record.connections = host.record.transactions = 0
        self.hosts.seen[case.name].clear()
        take_time(wait)  # until a policy has expired: the clock is the daemon's
        with psycopg.connect(self.system(case).uri) as db:
            self.ids[case.name] = self._enqueue(db, case)
            db.execute("NOTIFY pgmta_queue")

    def wait(self, case: Case) -> list[Row]:
        """Wait until no row of the case waits for a first attempt; return the rows left."""
        system, ids = self.system(case), self.ids[case.name]
        rows: list[Row] = []

        def ended() -> bool:
            query = "SELECT * FROM queue WHERE message_id = ANY(%s) ORDER BY id"
            rows[:] = system.ask(query, ids)
            return all(row["status"] not in ("QUEUED", "SENDING") for row in rows)

        try:
            until(ended, WITHIN)
        except AssertionError:
            states = [(r["recipient"], r["status"], r["last_reply"]) for r in rows][:5]
            raise AssertionError(f"no outcome within {WITHIN} s: {states}") from None
        return rows

    def attempts(self, case: Case) -> list[Row]:
        """Return the attempts at the mail of the case, in order."""
        return self.system(case).ask(
            "SELECT * FROM attempts WHERE message_id = ANY(%s) ORDER BY ended_at, row_id",
            self.ids[case.name],
        )

    def reports(self, case: Case, number: int) -> list[str]:
        """Return the results of TLS that are counted for the domain, once there are `number`."""

        def counted() -> list[Row]:
            return self.system(case).ask(
                "SELECT format('%%s %%s %%s %%s', sum(sessions), policy_type, result,"
                " split_part(host, '.', 1)) AS line FROM tls_reports"
                " WHERE domain = ANY (%s)"
                " GROUP BY policy_type, result, host ORDER BY policy_type, result, host",
                [case.domain, *map(case.fqdn, case.hosts)],
            )

        with suppress(AssertionError):  # the daemon adds them to the table every 10 s
            until(lambda: len(counted()) >= number, WITHIN)
        return [row["line"] for row in counted()]

    def explain(self, case: Case) -> str:
        """Return what `queuectl explain` says about the first message."""
        path = str(self._daemons[case.name].path)
        words = ["explain", "-c", path, str(self.ids[case.name][0])]
        result = CliRunner().invoke(queuectl, words)
        assert result.exit_code == 0, result.output
        return result.output

    def events(self, case: Case) -> list[dict[str, Any]]:
        """Return the log of the case's queued."""
        return list(self._daemons[case.name].log)


def _insert(table: str, values: Plan) -> sql.Composed:
    """Return the statement that inserts a row, and returns its id; its values follow."""
    ids = sql.SQL("nextval('message_ids')") if table == "messages" else sql.DEFAULT
    return sql.SQL("INSERT INTO {} (id, {}) VALUES ({}, {}) RETURNING id").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        ids,
        sql.SQL(", ").join(sql.Placeholder() for _ in values),
    )
