"""Recipients of relay domains, known to a file, the table or the next hop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiosmtpd.smtp import Envelope

from pgmta.config.loader import load
from pgmta.errors import ConfigError
from smtpd.config import SmtpdConfig
from smtpd.recipients import table as table_module
from smtpd.recipients.callout import verdict_of
from smtpd.recipients.recipient_file import check
from smtpd.recipients.recipient_verdict import Remembered, Verdict
from tests.support.nexthop import Do, NextHop, Transaction, at, hanging_at
from tests.support.serving import Client, serving
from tests.support.waiting import until

STRANGER = "127.0.0.5"


def relaying(*recipients: dict[str, Any]) -> dict[str, Any]:
    """The section relay, for two domains."""
    domains = ["example.org", "*.example.net"]
    return {"networks": ["127.0.0.1"], "domains": domains, "recipients": list(recipients)}


@contextmanager
def begun(port: int, source: str = STRANGER) -> Iterator[Client]:
    """A client in a transaction."""
    with Client(port, source).hello() as client:
        assert client.say("MAIL FROM:<a@b.example>")[:3] == "250"
        yield client


def answers(client: Client, *addresses: str) -> list[str]:
    """Codes of the replies to these recipients, in one write."""
    client.send("".join(f"RCPT TO:<{address}>\r\n" for address in addresses).encode())
    return [client.reply()[:9] for _ in addresses]


GOOD, BAD, LATER = "250 2.1.5", "550 5.1.1", "451 4.4.3"


def test_a_file_is_read_again(database: str, db: psycopg.Connection, tmp_path: Path) -> None:
    file = tmp_path / "recipients"
    file.write_text("# customers\nOne@Example.org\n@sub.example.net\nzoë@example.org # new\n")
    entry = {"file": str(file), "delimiter": "+"}
    with serving(database, relay=relaying(entry)) as port, begun(port) as client:
        found = answers(client, "one@example.org", "ONE+tag@example.org", "two@example.org",
                        "any@SUB.example.net", "any@other.example.net", "postmaster@example.org",
                        "r@elsewhere.example", "+one@example.org", '"one"@example.org',
                        '"O\\NE+tag"@example.org', '"postmaster"@example.org',
                        '"one "@example.org')  # fmt: skip
        # those of one spelling are one row
        assert found == [GOOD, GOOD, BAD, GOOD, BAD, GOOD, "550 5.7.1", BAD, GOOD, GOOD, GOOD, BAD]
        with begun(port, "127.0.0.1") as trusted:  # trust is about where mail goes
            assert answers(trusted, "two@example.org", "r@elsewhere.example") == [BAD, GOOD]
        file.write_text("two@example.org\nno address\n")
        next_file = tmp_path / "next"
        next_file.write_text("two@example.org\n")
        until(lambda: answers(client, "one@example.org") == [GOOD])  # the mistake changes nothing
        next_file.rename(file)
        with begun(port, "127.0.0.1") as trusted:
            until(lambda: answers(trusted, "two@example.org") == [GOOD])
            assert answers(trusted, "one@example.org") == [BAD]
        client.send(b"DATA\r\n.\r\n")
        assert [client.reply()[:3] for _ in range(2)] == ["354", "250"]
    assert db.execute("SELECT count(*) FROM queue").fetchone() == (4,)


def test_mistakes_of_a_file_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a@b.example\nno address\n\n@\n")
    path = tmp_path / "smtpd.yaml"
    path.write_text(
        f"relay:\n  domains: [b.example]\n  recipients:\n"
        f"    - file: {tmp_path}/list\n    - file: {tmp_path}/none\n"
    )
    with pytest.raises(ConfigError) as caught:
        check(path, load(path, SmtpdConfig).relay)
    first, second = caught.value.problems
    assert first.startswith(f"{path}:4: relay.recipients[0].file: {tmp_path}/list:2: ")
    assert f"{tmp_path}/list:4: " in first
    assert (
        second == f"{path}:5: relay.recipients[1].file: {tmp_path}/none: No such file or directory"
    )


def test_the_table(database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for verdict in (Verdict.KNOWN, Verdict.UNKNOWN):
        monkeypatch.setitem(table_module._SECONDS, verdict, 0.2)
    db.execute("INSERT INTO recipients VALUES ('one@example.org'), ('@sub.example.net')")
    with serving(database, relay=relaying({"table": True})) as port:
        with begun(port) as client:
            found = answers(client, "ONE@example.org", "two@example.org", "x@sub.example.net",
                            "one@example.org", "r@elsewhere.example")  # fmt: skip
            assert found == [GOOD, BAD, GOOD, GOOD, "550 5.7.1"]
        with begun(port, "127.0.0.1") as client:
            db.execute("INSERT INTO recipients VALUES ('two@example.org')")
            until(lambda: answers(client, "two@example.org") == [GOOD])
            db.execute("DELETE FROM recipients WHERE address = 'two@example.org'")
            until(lambda: answers(client, "two@example.org") == [BAD])
        db.execute("REVOKE EXECUTE ON FUNCTION recipients_known(text[]) FROM PUBLIC")
        db.execute("ALTER FUNCTION recipients_known(text[]) RENAME TO away")
        with begun(port, "127.0.0.1") as client:
            until(lambda: answers(client, "three@example.org") == [LATER])
            db.execute("ALTER FUNCTION away(text[]) RENAME TO recipients_known")
            until(lambda: answers(client, "three@example.org") == [BAD])


def test_smtpd_asks_and_cannot_list(database: str, db: psycopg.Connection) -> None:
    db.execute("INSERT INTO recipients VALUES ('one@example.org')")
    db.execute("SET ROLE pgmta_smtpd")
    asked = db.execute("SELECT recipients_known('{one@example.org,two@example.org}')").fetchone()
    assert asked == (["one@example.org"],)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.execute("SELECT FROM recipients")
    db.execute("SET ROLE pgmta_operator")
    db.execute("INSERT INTO recipients (address) VALUES ('@example.net')")
    for wrong in ("A@example.org", "example.org", "a@b@", "a@b c"):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.execute("INSERT INTO recipients (address) VALUES (%s)", [wrong])


def knows(point: str, line: str, _: Transaction | None) -> Do | None:
    """A next hop that knows some recipients, and says so once it is released."""
    if point != "RCPT":
        return None
    good = line.startswith("RCPT TO:<good")
    return Do(hold=True, line="" if good else "550 5.1.1 Unknown user")


@pytest.fixture
def hop() -> Iterator[NextHop]:
    with NextHop(knows) as hop:
        yield hop


def asked(hop: NextHop) -> list[str]:
    return [line[9:].split(">")[0] for line in hop.commands if line.startswith("RCPT TO:<")]


def test_a_callout_asks_each_recipient_once(database: str, hop: NextHop) -> None:
    entry = {"callout": f"127.0.0.1:{hop.port}"}
    with serving(database, relay=relaying(entry)) as port, ExitStack() as stack:
        clients = [stack.enter_context(begun(port)) for _ in range(5)]
        for client in clients:
            client.send(b"RCPT TO:<good@example.org>\r\nRCPT TO:<bad@example.org>\r\nDATA\r\n.\r\n")
        until(lambda: asked(hop))
        with begun(port) as other:  # a slow next hop slows no other domain and no other command
            assert answers(other, "r@elsewhere.example") == ["550 5.7.1"]
        hop.release()
        for client in clients:
            assert [client.reply()[:9] for _ in range(4)][:3] == [GOOD, BAD, "354 End d"]
        assert sorted(asked(hop)) == ["bad@example.org", "good@example.org"]
        assert all(each.sender == "" for each in hop.transactions)
        with begun(port, "127.0.0.1") as client:
            many = [f"good{n}@sub.example.net" for n in range(20)]
            assert answers(client, *many) == [GOOD] * 20
            assert hop.connections <= 4
            assert answers(client, "good/Case@example.org") == [GOOD]
            assert asked(hop)[-1] == "good/Case@example.org"


@pytest.mark.parametrize(
    ("unavailable", "expected"), [("defer", LATER), ("accept", GOOD)], ids=["defer", "accept"]
)
def test_a_next_hop_that_is_away(
    database: str, hop: NextHop, monkeypatch: pytest.MonkeyPatch, unavailable: str, expected: str
) -> None:
    for name, seconds in (("_UNSURE_S", 0.2), ("_ANSWER_TIMEOUT_S", 2.0), ("KNOWN_S", 0.1)):
        monkeypatch.setattr(f"smtpd.recipients.callout.{name}", seconds)
    entry = {
        "domains": ["example.org"],
        "callout": {"hosts": [f"127.0.0.1:{hop.port}"], "unavailable": unavailable},
    }
    with serving(database, relay=relaying(entry)) as port, begun(port, "127.0.0.1") as client:
        hop.release()
        assert answers(client, "good@example.org", "bad@example.org") == [GOOD, BAD]
        for script, name in (
            (at("RCPT", "550 5.7.1 We do not like your network"), "policy"),
            (at("RCPT", "450 4.7.1 Greylisted"), "grey"),
            (hanging_at("RCPT"), "slow"),
        ):
            hop.script = script
            assert answers(client, f"{name}@example.org") == [expected]
        hop.stop()
        # a known recipient stays known, and a refusal counts for its time
        found = answers(client, "good@example.org", "bad@example.org", "good2@example.org")
        assert found == [GOOD, BAD, expected]
        assert answers(client, "any@x.example.net") == [GOOD]  # no entry has this domain
        hop.script = knows
        hop.start()
        until(lambda: answers(client, "bad2@example.org") == [BAD])


def test_unknown_recipients_end_a_session(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smtpd.commands.tally.MAX_UNKNOWN_RECIPIENTS", 3)
    file = tmp_path / "recipients"
    file.write_text("one@example.org\n")
    with serving(database, relay=relaying({"file": str(file)})) as port:
        with begun(port) as client:
            client.send(b"RCPT TO:<one@example.org>\r\nDATA\r\n.\r\nMAIL FROM:<a@b>\r\n")
            client.send(b"RCPT TO:<two@example.org>\r\n" * 9)
            found = [reply[:3] for reply in client.rest()]
            assert found == ["250", "354", "250", "250", *["550"] * 4, "421"]
        with begun(port, "127.0.0.1") as client:  # a mailing list of ours
            assert answers(client, *["two@example.org"] * 50, "one@example.org")[-1] == GOOD


def test_hooks_are_asked_about_known_recipients_only(database: str, hop: NextHop) -> None:
    entry = {"callout": f"127.0.0.1:{hop.port}"}
    hooks = [f"{__name__}:Customers"]
    hop.release()
    with serving(database, relay=relaying(entry), hooks=hooks) as port, begun(port) as client:
        found = answers(client, "good@example.org", "bad@example.org", "good.no@example.org")
        assert found == [GOOD, BAD, "550 5.2.1"]
        client.send(b"DATA\r\n.\r\n")
        assert [client.reply()[:3] for _ in range(2)] == ["354", "250"]


class Customers:
    """A hook."""

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        assert not address.startswith("bad")
        if ".no@" in address:
            return "550 5.2.1 Not any more"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Ok"


@pytest.mark.parametrize(
    ("code", "text", "verdict"),
    [
        (250, "2.1.5 Ok", Verdict.KNOWN),
        (251, "will forward", Verdict.KNOWN),
        (550, "5.1.1 no", Verdict.UNKNOWN),
        (550, "no such user", Verdict.UNKNOWN),
        (553, "5.1.3 bad", Verdict.UNKNOWN),
        (550, "5.2.1 disabled", Verdict.UNKNOWN),
        (552, "5.2.2 full", Verdict.UNSURE),
        (550, "5.7.1 policy", Verdict.UNSURE),
        (554, "5.7.1 policy", Verdict.UNSURE),
        (554, "no", Verdict.UNSURE),
        (450, "4.1.1 later", Verdict.UNSURE),
        (421, "bye", Verdict.UNSURE),
    ],
)
def test_verdicts(code: int, text: str, verdict: Verdict) -> None:
    assert verdict_of(code, text) is verdict


def test_what_is_remembered() -> None:
    now = 0.0
    memory, key = Remembered(lambda: now), ("a@b",)
    assert memory.get(key) is None
    memory.keep(key, Verdict.KNOWN, 10)
    now = 9.0
    assert memory.get(key) is Verdict.KNOWN
    now = 11.0
    assert memory.get(key) is None
    for later in (12.0, 15.0):
        now = later
        memory.keep(key, Verdict.UNSURE, 2)
        assert memory.get(key) is Verdict.KNOWN  # it was known once
    memory.keep(key, Verdict.UNKNOWN, 2)
    assert memory.get(key) is Verdict.UNKNOWN
    memory.keep(key, Verdict.UNSURE, 2)
    assert memory.get(key) is Verdict.UNSURE
