"""Extensions in each state of a session, early input, submission, and the trace field of each."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from pgmta.accounts.login import Login
from smtpd.commands import commands
from smtpd.commands.commands import Commands
from smtpd.commands.parameters import orcpt_of
from tests.smtpd.tls.test_tls import secure
from tests.support.certificates import Certificate
from tests.support.serving import Client, serving

USER = Login(
    "user@a.example", "PLAIN", tenant="t7", senders=("user@A.example", "@b.example"),
    priorities=(3, 7), metadata={"team": "red"},
)  # fmt: skip
ANY = Login("any", "PLAIN", senders=("any",))
USERS = {"user": USER, "any": ANY}

EHLO = "EHLO c > 250"
LOGIN = "AUTH PLAIN user > 235"
MAIL = "MAIL FROM:<user@a.example>"
RCPT = "RCPT TO:<r@example.org> > 250"
DATA = "DATA > 354"
OWN = "From: user@a.example\r\n\r\nx\r\n. > 250 2.0.0 [0-9]+ queued$"
OK = "Subject: x\r\n\r\nx\r\n. > 250 2.0.0 [0-9]+ queued$"

RELAY: dict[str, list[str]] = {
    "announced": [
        "EHLO c > (?s)250-mx.example\n250-SIZE [0-9]+\n250-8BITMIME\n250-SMTPUTF8\n250-PIPELINING\n"
        "250-CHUNKING\n250-LIMITS RCPTMAX=1000\n250-STARTTLS\n250-DSN\n"
        "250 ENHANCEDSTATUSCODES$",
        "TLS > ", "EHLO c > (?!(?s:.*)STARTTLS)(?s:.*)250-REQUIRETLS\n250-DSN\n"
        "250 ENHANCEDSTATUSCODES",
    ],
    "REQUIRETLS": [
        EHLO, f"{MAIL} REQUIRETLS > 530 5.7.0", "TLS > ", EHLO, f"{MAIL} REQUIRETLS=1 > 555",
        f"{MAIL} REQUIRETLS REQUIRETLS > 501 5.5.4", f"{MAIL} REQUIRETLS > 250", RCPT, DATA, OK,
    ],
    "parameters without an announcement": [
        EHLO, f"{MAIL} RET=FULL > 555 5.5.4 .*RET", f"{MAIL} ENVID=a > 555",
        f"{MAIL} AUTH=<> > 555",
        f"{MAIL} MT-PRIORITY=3 > 555", "AUTH PLAIN > 502", f"{MAIL} > 250",
        "RCPT TO:<r@example.org> NOTIFY=NEVER > 555",
        "RCPT TO:<r@example.org> ORCPT=rfc822;a > 555",
        RCPT,
    ],
}  # fmt: skip

DSN: dict[str, list[str]] = {
    "announced": ["EHLO c > (?s).*250-DSN\n"],
    "of MAIL": [
        EHLO, f"{MAIL} RET=ALL > 501", f"{MAIL} RET=FULL RET=HDRS > 501", f"{MAIL} ENVID= > 501",
        f"{MAIL} ENVID={'x' * 101} > 501", f"{MAIL} ENVID=a+2b > 501", f"{MAIL} ENVID=ü > 501",
        f"{MAIL} RET > 501", f"{MAIL} size=5 ret=hdrs envid=aB+2B > 250", RCPT, DATA, OK,
    ],
    "of RCPT": [
        EHLO, f"{MAIL} > 250", *(f"RCPT TO:<r@example.org> {words} > 501" for words in (
            "NOTIFY", "NOTIFY=", "NOTIFY=NEVER,DELAY", "NOTIFY=DELAY,DELAY", "NOTIFY=X",
            "NOTIFY=NEVER NOTIFY=NEVER", "ORCPT", "ORCPT=a", "ORCPT=rfc822;", "ORCPT=rfc822;a=b",
            f"ORCPT=rfc822;{'x' * 501}", "ORCPT=rfc822;a ORCPT=rfc822;a",
            "NOTIFY=NEVER ORCPT=\udcff;a", "ORCPT=utf-8;\udcff@b", "ORCPT=rfc822;ü@b",
        )),
        "RCPT TO:<r@example.org> SIZE=1 > 555", "RCPT TO:<r@elsewhere.example> NOTIFY=NEVER > 250",
        "RCPT TO:<a@example.org> notify=failure,Delay orcpt=rfc822;A+2Bb@example.org > 250",
        "RCPT TO:<a@example.org> NOTIFY=NEVER > 250", "RCPT TO:<b@example.org> > 250",
        "RCPT TO:<c@example.org> ORCPT=UTF-8;grün\\x{20AC}@b > 250", DATA, OK,
    ],
}  # fmt: skip

SUBMISSION: dict[str, list[str]] = {
    "TLS first": [
        "NOOP > 250", "EHLO c > (?!(?s:.*)AUTH )(?s:.*)250-STARTTLS\n250-DSN\n250-MT-PRIORITY",
        "RSET > 250",
        *(f"{word} > 530 5.7.0 .*STARTTLS"
          for word in ("AUTH PLAIN x", MAIL, "RCPT", "DATA", "VRFY x", "EXPN x", "HELP")),
        "BDAT 6 LAST\r\nQUIT > 530 5.7.0", "NOOP > 250", "QUIT > 221",
    ],
    "a user then": [
        EHLO, "TLS > ", "EHLO c > (?s).*250-AUTH [A-Z]", f"{MAIL} > 530 5.7.0 Auth", LOGIN,
        f"{LOGIN.partition(' >')[0]} > 503 5.5.1", "EHLO c > (?!(?s:.*)AUTH )250",
        f"{MAIL} AUTH=<> > 250", "AUTH PLAIN user > 503 5.5.1", RCPT,
        "RCPT TO:<any@where.example> > 250", DATA, OWN,
    ],
    "senders of the user": [
        EHLO, "TLS > ", EHLO, LOGIN, "MAIL FROM:<other@a.example> > 553 5.7.1",
        "MAIL FROM:<user@sub.b.example> > 553", "MAIL FROM:<USER@a.Example> > 250", "RSET > 250",
        "MAIL FROM:<x@B.example> > 250", "RSET > 250", "MAIL FROM:<> > 250",
    ],
    "any sender": [EHLO, "TLS > ", EHLO, "AUTH PLAIN any > 235", "MAIL FROM:<x@y.example> > 250"],
    "priorities": [
        EHLO, "TLS > ", EHLO, LOGIN,
        *(f"{MAIL} MT-PRIORITY={value} > 501" for value in ("", "10", "-10", "x", "+1", "-0", "²")),
        f"{MAIL} MT-PRIORITY=9 > 250 2.3.6 4 ", "RSET > 250",
        f"{MAIL} MT-PRIORITY=-9 > 250 2.3.6 -4 ", "RSET > 250",
        f"{MAIL} MT-PRIORITY=0 > 250 2.1.0", "RSET > 250",
        f"{MAIL} MT-PRIORITY=3 > 250 2.1.0", RCPT, DATA, OWN,
    ],
    "no TLS in a chunked transaction": [
        EHLO, "TLS > ", EHLO, LOGIN, f"{MAIL} > 250", RCPT, "BDAT 3\r\nx > 250", "STARTTLS > 503",
        "RSET > 250",
    ],
}  # fmt: skip


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> None:
    """AUTH that needs no password."""
    judge = Commands._auth

    def auth(self: Commands, argument: str) -> str:
        reply = judge(self, argument)
        if reply == "334":
            self.log_in(USERS[argument.split()[1]])
            reply = "235 2.7.0 Ok"
        return reply

    monkeypatch.setitem(commands.Commands.METHODS, b"AUTH", auth)


def talk(client: Client, root: Certificate, steps: list[str]) -> None:
    for step in steps:
        command, _, expected = step.rpartition(" > ")
        if command == "TLS":
            assert client.say("STARTTLS")[:3] == "220"
            secure(client, root)
            continue
        reply = client.say(command)
        assert re.match(expected, reply), f"{command[:70]!r}: {reply!r}, not {expected!r}"


@contextmanager
def listening(database: str, files: dict[str, Any], role: str, **more: Any) -> Iterator[Client]:
    config = {
        "certificates": [files],
        "listen": [{"role": role}],
        "relay": {"networks": ["127.0.0.0/8"], "domains": ["example.org"]},
        **more,
    }
    with ExitStack() as stack:
        client = stack.enter_context(Client(stack.enter_context(serving(database, **config))))
        assert client.reply()[:3] == "220"
        yield client


@pytest.mark.parametrize("name", RELAY)
def test_relay(
    database: str, db: psycopg.Connection, files: dict[str, Any], root: Certificate, name: str
) -> None:
    with listening(database, files, "relay", dsn=name == "announced") as client:
        talk(client, root, RELAY[name])
    rows = db.execute("SELECT requiretls, trace FROM messages").fetchall()
    assert [(asked, " with ESMTPS (TLSv1.3 " in trace) for asked, trace in rows] == (
        [(True, True)] if name == "REQUIRETLS" else []
    )


@pytest.mark.parametrize("name", DSN)
def test_dsn(
    database: str, db: psycopg.Connection, files: dict[str, Any], root: Certificate, name: str
) -> None:
    with listening(database, files, "relay") as client:
        talk(client, root, DSN[name])
    if name == "of MAIL":
        assert db.execute("SELECT ret, envid FROM messages").fetchall() == [("HDRS", "aB+2B")]
    if name == "of RCPT":
        rows = db.execute("SELECT recipient, notify, orcpt FROM queue ORDER BY id").fetchall()
        assert rows == [
            ("r@elsewhere.example", "NEVER", None),
            ("a@example.org", "FAILURE,DELAY", "rfc822;A+2Bb@example.org"),
            ("b@example.org", None, None),
            ("c@example.org", None, r"UTF-8;gr\x{FC}n\x{20AC}@b"),
        ]


@pytest.mark.usefixtures("logins")
@pytest.mark.parametrize("name", SUBMISSION)
def test_submission(
    database: str, db: psycopg.Connection, files: dict[str, Any], root: Certificate, name: str
) -> None:
    rules = {"from": {"from": "user"}, "team": {"from": "listener"}}
    with listening(database, files, "submission", metadata=rules) as client:
        talk(client, root, SUBMISSION[name])
    found = db.execute(
        "SELECT m.submitted_by, q.tenant, q.priority, q.metadata, m.trace FROM messages m "
        "JOIN queue q ON q.message_id = m.id"
    ).fetchall()
    priority = 3 if name == "priorities" else 5
    for user, tenant, row_priority, metadata, trace in found:
        assert (user, tenant, row_priority) == ("user@a.example", "t7", priority)
        assert metadata == {"from": "user@a.example", "team": "red"}
        assert re.search(r" with ESMTPSA \(TLSv1\.3 TLS_[A-Z0-9_]+\)\r\n\tid \d+;\r\n\t", trace)
        assert "user@" not in trace
    assert bool(found) == (name in ("a user then", "priorities"))


def test_tls_required_goes_into_the_row_unless_requiretls_does(
    database: str, db: psycopg.Connection, files: dict[str, Any], root: Certificate
) -> None:
    """RFC 8689, section 4.1."""
    optional = "TLS-Required: No\r\n" + OK
    large = "tls-required:\r\n no\r\n\r\n" + f"{'y' * 900}\r\n" * 800 + OK
    with listening(database, files, "relay") as client:
        talk(client, root, [
            EHLO, "TLS > ", EHLO, f"{MAIL} > 250", RCPT, DATA, optional,
            f"{MAIL} REQUIRETLS > 250", RCPT, DATA, optional, f"{MAIL} > 250", RCPT, DATA, OK,
            f"{MAIL} > 250", RCPT, DATA, large,
        ])  # fmt: skip
    rows = db.execute("SELECT requiretls, tls_optional FROM messages ORDER BY id").fetchall()
    assert rows == [(False, True), (True, False), (False, False), (False, True)]


def test_orcpt_of_a_recipient() -> None:
    assert orcpt_of("a+b=c@b.example") == "rfc822;a+2Bb+3Dc@b.example"
    assert orcpt_of('"a b"@b.example') == 'rfc822;"a+20b"@b.example'
    assert orcpt_of("gr\u00fcn+\\@b.example") == r"utf-8;gr\x{FC}n\x{2B}\x{5C}@b.example"
    assert orcpt_of("\U0001f600" * 300 + "@b.example") is None


EARLY = {
    "EHLO": (b"EHLO c\r\nNOOP\r\n", ["554"]),
    "a second EHLO": (
        b"EHLO c\r\n", ["250"], b"NOOP\r\nEHLO c\r\nMAIL FROM:<a@b>\r\n", ["250", "554"],
    ),
    "HELO": (b"HELO c\r\nMAIL FROM:<a@b>\r\n", ["554"]),
    "after HELO": (
        b"HELO c\r\n", ["250"], b"MAIL FROM:<a@b>\r\nRCPT TO:<r@example.org>\r\n", ["554"],
    ),
    "nothing before EHLO": (b"NOOP\r\nNOOP\r\n", ["554"]),
    "DATA": (
        b"EHLO c\r\n", ["250"],
        b"MAIL FROM:<a@b>\r\nRCPT TO:<r@example.org>\r\nDATA\r\nx\r\n.\r\n", ["250", "250", "554"],
    ),
    "DATA that is refused": (b"EHLO c\r\n", ["250"], b"DATA\r\nMAIL FROM:<a@b>\r\n", ["554"]),
    "AUTH": (b"EHLO c\r\n", ["250"], b"AUTH LOGIN\r\neA==\r\n", ["554"]),
    "HTTP": (b"POST / HTTP/1.1\r\nHost: x\r\n\r\nEHLO c\r\n", ["502"]),
    "a group as it should be": (
        b"EHLO c\r\n", ["250"], b"MAIL FROM:<a@b>\r\nRCPT TO:<r@example.org>\r\nDATA\r\n",
        ["250", "250", "354"], b"x\r\n.\r\nNOOP\r\nRSET\r\nQUIT\r\n", ["250", "250", "250", "221"],
    ),
    "BDAT needs no wait": (
        b"EHLO c\r\n", ["250"],
        b"MAIL FROM:<a@b>\r\nRCPT TO:<r@example.org>\r\nBDAT 1 LAST\r\nxQUIT\r\n",
        ["250", "250", "250", "221"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EARLY)
def test_early_input(
    database: str, db: psycopg.Connection, files: dict[str, Any], name: str
) -> None:
    with listening(database, files, "relay") as client:
        steps: list[Any] = list(EARLY[name])
        for sent, codes in zip(steps[::2], steps[1::2], strict=True):
            client.send(sent)
            assert [client.reply()[:3] for _ in codes] == codes
        assert client.rest() == []
    taken = name in ("a group as it should be", "BDAT needs no wait")
    assert len(db.execute("SELECT FROM queue").fetchall()) == taken


def test_input_before_the_greeting(database: str, db: psycopg.Connection) -> None:
    """It is there when smtpd accepts the connection, because smtpd is busy until then."""
    with serving(database, listen=[{}]) as port:
        replies = set()
        end = time.monotonic() + 60
        while "554" not in replies and time.monotonic() < end:
            with ExitStack() as stack:
                clients = []
                for _ in range(20):
                    clients.append(stack.enter_context(Client(port)))
                    clients[-1].send(b"EHLO c\r\n")
                replies |= {client.reply()[:3] for client in clients}
    assert replies <= {"220", "554"}
    assert "554" in replies
