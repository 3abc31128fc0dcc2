"""Each row of the table in docs/mail/dkim.md is sent, delivered, and verified by two programs."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from aiosmtpd.smtp import MISSING
from click.testing import CliRunner

from queued.daemon.queued import main as queued_command
from smtpd.cli import main as smtpd_command
from tests.queued.signing.test_sign import PLACE, SCRIPT
from tests.scenarios.test_sendmail import Sendmail
from tests.smtpd.handlers import examples
from tests.sql.test_roles import acting
from tests.support.certificates import Certificate
from tests.support.dkim import Keys
from tests.support.key_server import serving_keys
from tests.support.serving import Client, serving
from tests.support.submit import stuff
from tests.support.system import System
from tests.support.users import add_user, log_in

DOCS = Path(__file__).parents[2] / "docs" / "mail" / "dkim.md"
HEADING = "The domain that signs, case by case"
STRANGER, NETWORK = "127.0.0.1", "127.0.0.2"
ESCAPES = {"\\r": "\r", "\\n": "\n", "\\t": "\t"}
DOMAINS = ("own.example", "other.example")


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    number: int
    way: str
    header: str
    sender: str
    rules: str
    signer: str

    @property
    def recipient(self) -> str:
        return f"c{self.number}@b.example"

    @property
    def content(self) -> bytes:
        return f"{self.header}\r\nSubject: {self.number}\r\n\r\ntext {self.number}\r\n".encode()


def spans(cell: str) -> list[str]:
    found = re.findall("`(.+?)`", cell)
    return [re.sub(r"\\[rnt]", lambda match: ESCAPES[match[0]], each) for each in found]


def cases() -> Iterator[Case]:
    text = DOCS.read_text(encoding="utf-8").partition(f"## {HEADING}\n")[2]
    text = text.partition("\n## ")[0]
    for line in text.splitlines():
        if re.match(r"\| \d", line):
            number, way, header, sender, rules, signer = (
                cell.strip() for cell in line.split("|")[1:-1]
            )
            yield Case(int(number), way, "\r\n".join(spans(header)), spans(sender)[0],
                       "".join(spans(rules)), signer.strip("*"))  # fmt: skip


class Forger:
    """Changes what it is asked to change."""

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> Any:
        content = envelope.content
        if b"X-Do: forge" in content:
            content = content.replace(b"From: ann@own.example", b"From: x@other.example")
        if b"X-Do: note" in content:
            content = b"X-Noted: yes\r\n" + content
        envelope.content = content
        return MISSING


class House:
    """Listeners, and the ways in that the table names."""

    def __init__(self, system: System, folder: Path) -> None:
        self.system = system
        self.stack = ExitStack()
        root = Certificate.root()
        certificate, key = root.issue("mx.example").files(folder)
        own = root.issue("web1.example").files(folder)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.load_verify_locations(cadata=root.der)
        self.context.load_cert_chain(*own)
        clients = {"authorities": str(root.files(folder)[0]), "names": ["web1.example"]}
        examples.LIVE["handler"] = Forger()
        hook = {"handler": "tests.smtpd.handlers.examples:live", "arguments": ["handler"]}
        users = {"role": "submission", "tls": "none", "auth_without_tls": True}
        relay: dict[str, Any] = {"networks": [f"{NETWORK}/32"], "domains": ["b.example"]}
        files = [{"certificate": str(certificate), "key": str(key)}]

        def port(listener: dict[str, Any], **more: Any) -> int:
            config = {"listen": [listener], "relay": relay, **more}
            return self.stack.enter_context(serving(system.uri, **config))

        relaying, speaking = port({}), port({"xclient": [NETWORK]})
        delivering, proxied = port({"protocol": "lmtp"}), port({"proxy": [NETWORK]})
        trusting = port({"tls": "implicit", "client_certificates": clients}, certificates=files)
        checked = port(users)
        free = port(users, submission={"check_from": False})
        hooked = port(users, hooks=[hook])
        local = Sendmail(folder, port({}, relay={"networks": [f"{STRANGER}/32"]}))
        add_user(system.uri, "ann@own.example", "a password")
        add_user(system.uri, "web", "a password", senders=["@own.example"])
        add_user(system.uri, "bot", "a password", any_sender=True)
        self.ways: dict[str, Callable[[Case], str]] = {
            "stranger": lambda case: self.send(case, relaying),
            "stranger, by XCLIENT": lambda case: self.send(
                case, speaking, NETWORK, f"XCLIENT ADDR={STRANGER}"
            ),
            "client unknown to XCLIENT": lambda case: self.send(
                case, speaking, NETWORK, "XCLIENT ADDR=[UNAVAILABLE]"
            ),
            "network": lambda case: self.send(case, relaying, NETWORK),
            "network, by LMTP": lambda case: self.send(case, delivering, NETWORK, hello="LHLO"),
            "stranger, by a proxy": lambda case: self.send(
                case, proxied, NETWORK, proxy=f"TCP4 {STRANGER} {STRANGER} 5 25"
            ),
            "network, by a proxy": lambda case: self.send(
                case, proxied, NETWORK, proxy=f"TCP4 {NETWORK} {NETWORK} 5 25"
            ),
            "client unknown to a proxy": lambda case: self.send(
                case, proxied, NETWORK, proxy="UNKNOWN"
            ),
            "certificate": lambda case: self.send(case, trusting, tls=True),
            "`ann@own.example`": lambda case: self.send(case, checked, user="ann@own.example"),
            "`web`": lambda case: self.send(case, checked, user="web"),
            "`bot`": lambda case: self.send(case, checked, user="bot"),
            "`ann@own.example`, unchecked": lambda case: self.send(
                case, free, user="ann@own.example"
            ),
            "`ann@own.example`, hook": lambda case: self.send(case, hooked, user="ann@own.example"),
            "`submit()`": self.submit,
            "INSERT by a program": self.store,
            "`sendmail`": lambda case: str(
                250 + local.run("-f", case.sender, case.recipient, given=case.content).returncode
            ),
        }

    def send(
        self, case: Case, port: int, source: str = STRANGER, xclient: str = "", *,
        tls: bool = False, user: str = "", hello: str = "EHLO", proxy: str = "",
    ) -> str:  # fmt: skip
        """Send by SMTP; the last reply."""
        with Client(port, source) as client:
            if tls:
                client.over(self.context.wrap_socket(client.socket, server_hostname="mx.example"))
            if proxy:
                client.send(f"PROXY {proxy}\r\n".encode())
            assert client.reply()[:3] == "220"
            assert client.say(f"{hello} c")[:3] == "250"
            if xclient:
                assert client.say(xclient)[:3] == "220"
                assert client.say("EHLO c")[:3] == "250"
            if user:
                assert log_in(client, user, "a password")[:3] == "235"
            sender = case.sender if case.sender == "<>" else f"<{case.sender}>"
            for line in (f"MAIL FROM:{sender}", f"RCPT TO:<{case.recipient}>", "DATA"):
                reply = client.say(line)
                if reply[0] not in "23":
                    return reply
            client.send(stuff(case.content) + b".\r\n")
            return client.reply()

    def submit(self, case: Case) -> str:
        sender = "" if case.sender == "<>" else case.sender
        with psycopg.connect(acting(self.system.uri, "pgmta_submit"), autocommit=True) as db:
            # the long way and the short one
            metadata = '{"origin": "user"}' if case.number % 2 else "{}"
            db.execute(
                "SELECT pgmta.submit(%s, %s, %s, metadata => %s)",
                (sender, [case.recipient], case.content, metadata),
            )
        return "250"

    def store(self, case: Case) -> str:
        self.system.enqueue(case.recipient, content=case.content, sender=case.sender)
        return "250"


def by_dkimpy(contents: dict[int, bytes], keys: Keys, folder: Path) -> dict[int, str]:
    names = {f"{domain}/s": domain for domain in DOMAINS}
    return {
        number: " ".join(names.get(one, one) for one in keys.signers(content)) or "none"
        for number, content in contents.items()
    }


def by_mail_dkim(contents: dict[int, bytes], keys: Keys, folder: Path) -> dict[int, str]:
    """The domain of the signature, if Mail::DKIM verifies it."""
    for number, content in contents.items():
        (folder / str(number)).write_bytes(content)
    paths = "".join(f"{folder / str(number)}\n" for number in contents)
    with serving_keys(folder, PLACE, keys.records) as asking:
        done = subprocess.run(
            [*asking, "perl", str(SCRIPT)], input=paths, text=True, capture_output=True, check=True
        )
    found = {}
    for line in done.stdout.splitlines():
        path, *results = line.split()
        number = int(Path(path).name)
        match = re.search(rb"\bd=([a-z.]+);", contents[number].partition(b"\r\n\r\n")[0])
        domain = match[1].decode() if match else ""
        found[number] = " ".join(domain if each == "s=pass" else each for each in results) or "none"
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "verify",
    [by_dkimpy, pytest.param(by_mail_dkim, marks=pytest.mark.needs("libmail-dkim-perl", "root"))],
)
def test_table(
    system: System,
    tmp_path: Path,
    verify: Callable[[dict[int, bytes], Keys, Path], dict[int, str]],
) -> None:
    keys, hop = Keys(tmp_path), system.hop()
    signing = {"keys": [keys.entry("s", "rsa", domain) for domain in DOMAINS]}
    house = House(system, tmp_path)
    queued = system.queued(hop, signing=signing)
    wrong, sent = [], []
    table = list(cases())
    assert [case.number for case in table] == list(range(1, len(table) + 1))
    assert len(table) >= 40
    with house.stack:
        for rules, group in groupby(table, lambda case: case.rules):
            queued.reload(
                {**queued.config, "signing": {**signing, "rules": yaml.safe_load(f"[{rules}]")}}
            )
            for case in group:
                reply = house.ways[case.way](case)
                if (reply[:3] == "250") is (case.signer == "refused"):
                    wrong.append((case, reply))
                if reply[:3] == "250":
                    sent.append(case)
            system.wait_empty()
    contents = {
        int(each.recipients[0][1:].partition("@")[0]): each.content
        for each in hop.transactions
        if each.content is not None
    }
    found = verify(contents, keys, tmp_path)
    wrong += [(c, found[c.number]) for c in sent if found[c.number] != c.signer]
    assert wrong == []


def test_checks_name_what_is_signed_for_others(database: str, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    rules = [
        {"from": "a.example"},
        {"origin": ["user", "stranger", "login"]},
        {"origin": "stranger", "sign": "none"},
    ]
    path = tmp_path / "queued.yaml"
    where = {"environment": {"database": {"uri": database}}}
    signing = {"keys": [keys.entry("s")], "rules": rules}
    path.write_text(yaml.safe_dump({**where, "signing": signing}))
    result = CliRunner().invoke(queued_command, ["check", "-c", str(path)])
    assert result.exit_code == 0
    lines = path.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.strip() == "- origin:")
    assert result.stderr.splitlines() == [
        f"warning: {path}:{line}: signing.rules[1]: signs mail of strangers and users with a From "
        "of others: receivers take it for mail of the domain that signs"
    ]
    path.write_text(yaml.safe_dump({"signing": {"rules": [{"origin": "strangers"}]}}))
    result = CliRunner().invoke(queued_command, ["check", "-c", str(path)])
    assert "no mail comes in as 'strangers'; did you mean 'stranger'?" in result.stderr

    add_user(database, "ann@a.example", "a password")
    add_user(database, "bot", "a password", any_sender=True)
    path = tmp_path / "smtpd.yaml"
    listen = {"role": "submission", "tls": "none", "auth_without_tls": True}
    path.write_text(yaml.safe_dump({
        "environment": {"database": {"uri": acting(database, "pgmta_smtpd")}}, "listen": [listen],
    }))  # fmt: skip
    result = CliRunner().invoke(smtpd_command, ["check", "-c", str(path)])
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"warning: {path}: user bot: `senders: any` lets the user send from any address, and "
        "queued sign by any key"
    ]
