"""Real replies of the large providers: as an answer, in a returned DSN, and with a complaint."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from pgmta.errors import Stage
from pgmta.mail.answer_class import AnswerClass
from pgmta.postgres.link import Link
from pgmta.states import Event
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.settle import Settlements
from queued.answers.answer_rules import AnswerRules
from queued.config import Retry
from queued.config.answer_index import shipped_index
from queued.config.answer_text import parse_reply
from queued.delivery.transport.result import Result
from queued.worker.verdict import judge
from tests.answers.corpus import Sample, samples
from tests.scenarios.test_returned_mail import configuration, shape
from tests.support.rows import column, fetch
from tests.support.system import System

HARD = {AnswerClass.UNKNOWN_USER, AnswerClass.DISABLED, AnswerClass.BAD_DOMAIN}
OURS = [  # step and reply: our relay, login, address or sender is refused, not the recipient
    ("greeting", "554 does not accept mail from you"),
    ("greeting", "521 5.1.2 mx.b.example accepts no mail"),
    ("EHLO", "521 no mail here"),
    ("MAIL", "550 5.1.1 user unknown"),
    ("MAIL", "550 5.2.1 Your account is suspended"),
    ("MAIL", "554 5.7.1 Your account is suspended"),
    ("MAIL", "552 5.2.2 mailbox full"),
    ("RCPT", "554 5.7.1 <x@b.example>: Relay access denied"),
    ("RCPT", "550 relaying denied for <x@b.example>"),
    ("RCPT", "521 no mail here"),
    ("RCPT", "550 5.2.1 Your account is suspended"),
    ("RCPT", "554 5.7.1 Sorry, this account is disabled"),
    ("RCPT", "550 5.7.13 user account disabled"),
    ("RCPT", "550 Rejected"),
    ("RCPT", "550 Not authorised. Login first."),
    ("RCPT", "553 sorry, your mail was refused"),
    ("RCPT", "550 5.7.1 Sender address not found in our list"),
    ("RCPT", "550 5.7.23 SPF: the address 192.0.2.1 is not valid for a.example"),
    ("DATA", "553 message refused"),
    ("DATA", "550 mailbox unavailable"),
    ("end of data", "554 5.3.0 HTTP 403 Forbidden error_text=account suspended"),
    ("end of data", "554 5.3.0 HTTP 404 Not Found error_text=/Accounts/7 was not found"),
]
SAMPLES = [*samples(), *(
    Sample("ours", number, f"refused{number}", "", text,
           (parse_reply(text), "mx.b.example:25", Stage(step)))
    for number, (step, text) in enumerate(OURS)
)]  # fmt: skip
MANY = len(SAMPLES)
SUPPRESSED = "SELECT concat_ws(' ', address, tenant, scope, reason) FROM suppressions ORDER BY 1"


def is_hard(sample: Sample) -> bool:
    """Whether the sample proves for good that there is no such mailbox."""
    name, _, lasting = sample.expected.partition("/")
    if sample.answer[2] not in (Stage.RCPT, Stage.END_OF_DATA):
        return False
    detail = sample.answer[0].enhanced[1:]
    if name == "bad_domain" and detail != ".1.2":
        return False
    if name == "disabled" and detail.startswith(".7."):
        return False
    by_code = "permanent" if sample.answer[0].code >= 500 else "temporary"
    return name in HARD and (lasting or by_code) == "permanent"


def expected(prefix: str, hard: Iterable[int]) -> list[str]:
    return sorted(f"{prefix}{number}@b.example t  bounced" for number in hard)


async def test_answers_of_an_attempt(db: psycopg.Connection, link: Link) -> None:
    """Those of each step: also a policy or a full mailbox that is for good suppresses nobody."""
    people = [f"a{number}@b.example" for number in range(MANY)]
    db.execute("SELECT submit('s@a.example', %s, 'Subject: x\r\n\r\nx\r\n', tenant => 't')",
               (people,))  # fmt: skip
    items = (await Claims(link, "w", 60).claim(MANY, [])).items
    assert len(items) == MANY
    rules, retry, now = AnswerRules(shipped_index()), Retry(), datetime.now(UTC)
    outcomes = []
    wanted = (n for n, s in enumerate(SAMPLES) if is_hard(s) and s.answer[2] is Stage.END_OF_DATA)
    shared = next(wanted)  # as if several recipients had this answer after data
    for item in items:
        number = int(item.recipient[1:].partition("@")[0])
        reply, host, stage = SAMPLES[number].answer
        event = Event.FAIL if reply.code >= 500 else Event.DEFER
        answer = rules.read_reply(reply, host, stage)
        result = Result(event, reply, host, stage)
        if number == shared:
            result.shared = True
        outcomes.append(judge(item, result, answer, retry, started=now, now=now, chance=0.0))
    await Settlements(link, "w").settle(outcomes)
    hard = [number for number, s in enumerate(SAMPLES) if is_hard(s) and number != shared]
    assert column(db, SUPPRESSED) == expected("a", hard)
    assert len({SAMPLES[number].provider for number in hard}) >= 10
    full = {
        f"a{number}@b.example"
        for number, sample in enumerate(SAMPLES)
        if sample.expected.startswith("mailbox_full")
        and sample.answer[0].code >= 500
        and sample.answer[2] in (Stage.RCPT, Stage.END_OF_DATA)
    }
    assert set(column(db, "SELECT address FROM soft_bounces")) == full
    assert full


def dsn(sample: Sample) -> bytes:
    """The DSN of a host that got this reply for good."""
    reply, host, _ = sample.answer
    return (
        "From: MAILER-DAEMON@b.example\r\nMIME-Version: 1.0\r\n"
        'Content-Type: multipart/report; report-type=delivery-status; boundary="x"\r\n\r\n'
        "--x\r\nContent-Type: message/delivery-status\r\n\r\n"
        "Reporting-MTA: dns; mx.b.example\r\n\r\n"
        "Final-Recipient: rfc822; joe@b.example\r\nAction: failed\r\n"
        f"Remote-MTA: dns; {host.partition(':')[0]}\r\nStatus: {reply.enhanced or '5.0.0'}\r\n"
        f"Diagnostic-Code: smtp; {reply}\r\n\r\n--x--\r\n"
    ).encode()


@pytest.mark.slow
def test_returned_dsns_and_complaints(
    system: System, db: psycopg.Connection, tmp_path: Path
) -> None:
    """One sample of each provider and class, of those at RCPT, comes back to its VERP address."""
    chosen = {
        (sample.provider, sample.expected): number
        for number, sample in enumerate(SAMPLES)
        if sample.answer[2] == "RCPT"
    }
    complaints = {number for (_, name), number in chosen.items() if name in ("spam", "policy")}
    hop = system.hop()
    system.queued(shaping=configuration(tmp_path, hop))
    people = [f"d{n}@b.example" for n in chosen.values()] + [f"k{n}@b.example" for n in complaints]
    db.execute("SELECT submit('s@a.example', %s, 'Subject: x\r\n\r\nx\r\n', tenant => 't')",
               (people,))  # fmt: skip
    verp = {kept.recipients[0]: kept.sender for kept in hop.wait_kept(len(people))}
    system.wait_empty()
    for address, sender in verp.items():
        content = shape("complaint")
        if address[0] == "d":
            content = dsn(SAMPLES[int(address[1:].partition("@")[0])])
        system.enqueue(sender, content=content, sender="")
    system.wait_empty()
    wanted = expected("d", (n for n in chosen.values() if is_hard(SAMPLES[n])))
    complained = [f"k{number}@b.example t  complained" for number in complaints]
    assert column(db, SUPPRESSED) == sorted(wanted + complained)
    assert fetch(db, "SELECT count(*) FROM soft_bounces") == (0,)
