"""Each case of the table in docs/programs/suppressions.md, in one run of a relay."""

from __future__ import annotations

import re
import smtplib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.types.json import Jsonb

import pgmta
from tests.features.lifecycle.tokens import put_template
from tests.features.suppressions.campaign import SOURCE, Campaign, sections
from tests.support.nexthop import Do, NextHop, Script, Transaction, as_usual, at, holding_at
from tests.support.queuectl import queuectl
from tests.support.rows import column, fetch
from tests.support.serving import serving
from tests.support.system import Row, System
from tests.support.waiting import SLACK, take_time, until

DOCS = Path(__file__).parents[3] / "docs" / "programs" / "suppressions.md"
SENDER = "s@a.example"
MOMENTS = ("waits", "claimed", "deferred", "transaction")
EXEMPT = {"campaign test": "test", "DSN": "report", "operator": "operator "}
PLAIN = replace(SOURCE, body="Hello", html="")


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    number: int
    reason: str
    suppressed: str
    mail: str
    way: str
    when: str
    outcome: str

    @property
    def moment(self) -> str:
        return self.when.partition(",")[0]

    @property
    def recipient(self) -> str:
        return f"c{self.number}@{self.moment}.example"

    @property
    def tenant(self) -> str:
        return self.mail.rpartition(" ")[0]

    @property
    def scope(self) -> str:
        return self.mail.rpartition(" ")[2]

    @property
    def options(self) -> dict[str, str]:
        """Arguments of a submission."""
        scope = {} if self.scope == "transactional" else {"unsubscribe": self.scope}
        return scope | ({"tenant": self.tenant} if self.tenant else {})

    @property
    def mailing(self) -> pgmta.Mail:
        return pgmta.Mail(sender=SENDER, to=[self.recipient], body="x", **self.options)  # type: ignore[arg-type]


def cases() -> Iterator[Case]:
    text = DOCS.read_text(encoding="utf-8").partition("\n### Case by case\n")[2]
    for number, *cells in re.findall(r"^\| (\d+) " + r"\| (.+?) " * 6 + r"\|$", text, re.M):
        yield Case(int(number), *cells)


CASES = list(cases())


def at_moment(*moments: str) -> list[Case]:
    return [case for case in CASES if case.moment in moments]


def suppress(db: psycopg.Connection, given: list[Case]) -> None:
    """Suppress the recipients of these cases in one commit."""
    with db.transaction():
        for case in given:
            reason, _, ended = case.reason.partition(", ")
            tenant, _, scope = case.suppressed.rpartition(" ")
            if reason == "forgotten":
                db.execute("SELECT forget(%s, 'suppressions')", (case.recipient,))
                continue
            db.execute(
                "SELECT suppress(%s, %s, %s, %s, %s, now() - interval '2 days')",
                (
                    case.recipient,
                    tenant,
                    scope if scope != "all" else "",
                    reason,
                    f"case {case.number}",
                ),
            )
            if ended == "over":
                db.execute(
                    "UPDATE suppressions SET until = now() - interval '1 day' WHERE address = %s",
                    (case.recipient,),
                )
            if ended == "released":
                db.execute("SELECT suppression_release(%s, %s)", (case.recipient, tenant))


class Doors:
    """The ways in that the table names."""

    def __init__(self, db: psycopg.Connection, system: System, stack: ExitStack) -> None:
        self.db = db
        self.client = stack.enter_context(pgmta.SyncClient(system.uri))
        relay = {"networks": ["127.0.0.1"]}
        self.ports = {
            way: stack.enter_context(
                serving(system.uri, relay=relay, listen=[{"name": "here", "suppressed": said}])
            )
            for way, said in (("SMTP", "accept"), ("SMTP, refuse", "refuse"))
        }
        self.config = system.folder / "queuectl.yaml"
        self.config.write_text(yaml.safe_dump({"environment": {"database": {"uri": system.uri}}}))
        put_template(db, "plain", PLAIN)
        self.refused: dict[int, tuple[int, bytes]] = {}
        self.campaigns: dict[str, Campaign] = {}
        for number, mail in enumerate(sorted({c.mail for c in CASES if "campaign" in c.way})):
            scope = "" if mail == "none" else mail
            self.campaigns[mail] = Campaign(db, f"campaign{number}", scope)
        self.doors: dict[str, Callable[[Case], object]] = {
            "submit": lambda case: self._call(
                case, "submit", sender=SENDER, recipients=[case.recipient],
                content=b"Subject: x\r\n\r\nx\r\n",
            ),
            "submit_mail": lambda case: self._mail(case),
            "operator": lambda case: self._mail(case, metadata=Jsonb({"_exempt": "asked for"})),
            "submit_template": lambda case: self._call(
                case, "submit_template", template="plain", recipient=case.recipient,
                params=Jsonb({"name": "Ann"}),
            ),
            "submit_mails": self._mails,
            "client": lambda case: self.client.send(case.mailing),
            "queuectl send": self._command,
            "SMTP": self._smtp,
            "SMTP, refuse": self._smtp,
            "campaign": lambda case: self.campaigns[case.mail].add(case.recipient),
            "campaign test": lambda case: fetch(
                db, "SELECT campaign_test(%s, %s, '{\"name\": \"Ann\"}')",
                self.campaigns[case.mail].id, case.recipient,
            ),
            "DSN": lambda case: db.execute(
                "SELECT submit_mail(%s, '{nobody@fails.example}', body => 'x',"
                " on_failed => 'bounce')", (case.recipient,),
            ),
        }  # fmt: skip

    def submit(self, given: list[Case]) -> None:
        for case in given:
            self.doors[case.way](case)
        for campaign in self.campaigns.values():
            campaign.start()
            campaign.feed()

    def _call(self, case: Case, function: str, **arguments: Any) -> None:
        given = arguments | case.options
        names = ", ".join(f'"{name}" => %s' for name in given)
        self.db.execute(f"SELECT {function}({names})".encode(), list(given.values()))

    def _mail(self, case: Case, **more: Any) -> None:
        self._call(case, "submit_mail", sender=SENDER, to=[case.recipient], body="x", **more)

    def _mails(self, case: Case) -> None:
        mail = {"sender": SENDER, "from": SENDER, "to": [case.recipient], "body": "x"}
        found = fetch(self.db, "SELECT problems, suppressed FROM submit_mails(%s)",
                      Jsonb([mail | case.options]))  # fmt: skip
        assert (found[0], found[1] is None) == (None, case.outcome != "at submission")

    def _command(self, case: Case) -> None:
        words = [f"--{name}={value}" for name, value in case.options.items()]
        done = queuectl(self.config, "send", f"--to={case.recipient}", f"--from={SENDER}",
                        "--subject=x", "--text=x", "--on-failed=remove", *words)  # fmt: skip
        assert done.exit_code == 0, done.output

    def _smtp(self, case: Case) -> None:
        with smtplib.SMTP("127.0.0.1", self.ports[case.way], "client.example") as session:
            try:
                session.sendmail(SENDER, [case.recipient], "Subject: x\r\n\r\nx\r\n")
            except smtplib.SMTPRecipientsRefused as error:
                self.refused |= {case.number: error.recipients[case.recipient]}


def deferring(cases_: list[Case]) -> Script:
    """Hold each mail at its end; then defer that of these cases, and take the others."""
    put_off = {case.recipient for case in cases_}

    def script(point: str, _: str, transaction: Transaction | None) -> Do | None:
        if point != "end of data" or not transaction:
            return None
        late = put_off.intersection(transaction.recipients)
        return Do(hold=True, line="450 4.3.0 not now" if late else "")

    return script


@pytest.mark.slow
def test_each_case_of_the_table(system: System, db: psycopg.Connection) -> None:
    assert [case.number for case in CASES] == list(range(1, 41))
    db.execute("SELECT suppression_scope('news', '*'), suppression_scope('offers', '*')")
    late = [case for case in CASES if case.when == "transaction, 450"]
    scripts = {
        "*": as_usual, "fails.example": at("RCPT", "550 5.7.1 no"),
        "claimed.example": holding_at("connect"), "deferred.example": at("RCPT", "450 4.2.1 no"),
        "transaction.example": deferring(late),
    }  # fmt: skip
    hops = {domain: system.hop(script) for domain, script in scripts.items()}
    with ExitStack() as stack:
        doors = Doors(db, system, stack)
        suppress(db, at_moment("before"))
        doors.submit(CASES)
    ended = {row["recipient"]: row for row in system.attempts()}
    for case in CASES:
        found = case.recipient in ended
        assert found == (case.outcome == "at submission"), case
    suppress(db, at_moment("waits"))
    withdrawn(system, at_moment("waits"))

    system.queued(
        routes={domain: hop.target for domain, hop in hops.items()}, retry={"intervals": ["1h"]},
        bounces={"gather": "1s"},
        **sections(system.folder, "https://mail.example"),
    )  # fmt: skip
    under_way = {
        ("DEFERRED" if case.moment == "deferred" else "SENDING", case.recipient)
        for case in at_moment("claimed", "deferred", "transaction")
    }
    system.wait_queue(lambda rows: {(r["status"], r["recipient"]) for r in rows} == under_way)
    held = hops["transaction.example"]
    held.wait(lambda: sum(t.content is not None for t in held.transactions)
              == len(at_moment("transaction")))  # fmt: skip

    suppress(db, at_moment("claimed", "deferred", "transaction"))
    withdrawn(system, at_moment("deferred"))
    take_time(1.0 + SLACK)  # from then on no attempt begins
    for hop in hops.values():
        hop.release()
    hops["deferred.example"].script = as_usual
    system.wait_queue(lambda rows: {row["status"] for row in rows} <= {"DEFERRED"})
    db.execute("UPDATE queue SET next_attempt = clock_timestamp(); NOTIFY pgmta_queue")
    system.wait_empty()
    logs: dict[str, list[Row]] = {}
    for row in system.ask("SELECT * FROM attempts ORDER BY ended_at, row_id"):
        logs.setdefault(row["recipient"], []).append(row)
    wrong = [
        f"{case}: {problem}"
        for case in CASES
        for problem in judge(case, logs.get(case.recipient, []), list(hops.values()), doors)
    ]
    assert not wrong, "\n".join(wrong)
    invalid = (
        "SELECT recipient FROM campaign_recipients WHERE state = 'invalid'"
        " AND error_code = 'suppressed'"
    )
    expected = {c.recipient for c in CASES if c.way == "campaign" and c.outcome != "goes"}
    until(lambda: set(column(db, invalid)) == expected)  # queued reconciles books with the log


def withdrawn(system: System, given: list[Case]) -> None:
    """Check which rows went in the commit of the suppressions."""
    left = system.rows()
    for case in given:
        assert (case.recipient not in left) == (case.outcome == "withdrawn"), case


def judge(case: Case, log: list[Row], hops: list[NextHop], doors: Doors) -> Iterator[str]:
    """Yield what is wrong with the outcome of a case."""
    events = [row["event"] for row in log]
    came = sum(hop.deliveries()[case.recipient] for hop in hops)
    asked = sum(t.asked.count(case.recipient) for hop in hops for t in hop.transactions)
    deferrals = ["deferred"] * (case.moment == "deferred" or case.when == "transaction, 450")
    if case.outcome in ("550", "left out"):
        wanted = []
    else:
        wanted = [*deferrals, "delivered" if case.outcome == "goes" else "suppressed"]
    if events != wanted:
        yield f"the log has {events}"
        return
    if (came, asked) != ((1, len(wanted)) if case.outcome == "goes" else (0, len(deferrals))):
        yield f"the next hop was asked {asked} times, and has it {came} times"
    if (case.number in doors.refused) != (case.outcome == "550"):
        yield f"smtpd said {doors.refused.get(case.number)}"
    if events[-1:] == ["suppressed"]:
        proof = case.reason + f" (case {case.number})" * (case.reason != "forgotten")
        reason = log[-1]["reply"]
        if not re.fullmatch(rf"suppressed since .* UTC: {re.escape(proof)}", reason):
            yield f"the reason is {reason}"
        if log[-1]["attempt"] != len(deferrals):
            yield f"attempt {log[-1]['attempt']} is counted"
    exempt = (log[-1]["metadata"] or {}).get("_exempt", "") if log else ""
    if not exempt.startswith(EXEMPT.get(case.way, "")) or bool(exempt) != (case.way in EXEMPT):
        yield f"it is exempt by {exempt!r}"
