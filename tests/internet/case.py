"""One case: a domain, its hosts, its mail, and the expected result."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).parent / "cases"
Plan = dict[str, Any]

SIGNED = re.compile("secure|none|expired|bogus [A-Z]+")
LISTENING = ("yes", "no", "full")


@dataclass
class HostScript:
    """The behaviour of one host.

    `at` maps a point of the dialogue ('connect', 'EHLO', 'LHLO', 'HELO', 'MAIL', 'RCPT', 'DATA',
    'content', 'end of data', 'QUIT') to a reply, or to 'close', 'hang' or 'drip': one octet per
    second.
    """

    listen: str = "yes"  # 'no': refused; 'full': SYN without an answer
    at: dict[str, str] = field(default_factory=dict)
    address: str | None = None  # 'none': no A record; otherwise instead of the generated one
    ipv6: bool = False  # listens on ::1, and has it as AAAA record
    aaaa: str | None = None
    extensions: list[str] = field(
        default_factory=lambda: ["PIPELINING", "8BITMIME", "ENHANCEDSTATUSCODES", "SIZE 10485760"]
    )
    tls: Plan | None = None  # certificate, handshake, inject; None: no STARTTLS
    recipients: int | None = None  # 452 at the next one, or `too_many`
    too_many: str = "452 4.5.3 Too many recipients"
    transactions: int | None = None  # 421 at the next message on a connection
    connections: int | None = None  # 421 at the next connection
    lmtp: list[str] | None = None  # speaks LMTP, with these replies to the dot, then 250


@dataclass
class Expected:
    """The expected result of a case; texts are regular expressions."""

    kept: dict[str, int] = field(default_factory=dict)  # messages by host; others have none
    connections: dict[str, int | str] = field(default_factory=dict)  # a number, or '<= number'
    encrypted: dict[str, int] = field(default_factory=dict)  # messages that came over TLS
    dialogue: dict[str, list[str]] = field(default_factory=dict)  # commands that a host saw
    order: list[str] = field(default_factory=list)  # hosts, by their first connection
    queue: list[str] = field(default_factory=list)  # 'STATUS reply' of each row left
    attempts: list[str] = field(default_factory=list)  # 'event stage host reply', in order
    verified: dict[str, str | None] = field(default_factory=dict)  # tls_verified by host
    explain: list[str] = field(default_factory=list)  # lines of `queuectl explain`
    log: list[str] = field(default_factory=list)  # events that queued logs
    once: dict[str, int] = field(default_factory=dict)  # transactions begun by host
    reports: list[str] | None = None  # 'sessions policy_type result host' of the domain's TLSRPT


@dataclass
class Step:
    """A change, after which the mail is sent again, and the expected result."""

    wait: float = 0.0
    hosts: Plan = field(default_factory=dict)
    sts: Plan = field(default_factory=dict)
    expect: Expected = field(default_factory=Expected)


@dataclass
class Case:
    """A case, from a file of `cases` or a variant in it."""

    name: str
    about: str
    hosts: dict[str, HostScript]
    expect: Expected
    zone: str = ""
    sign: str = "secure"
    messages: int = 1
    recipients: int = 1
    recipient: str | None = None  # instead of user@DOMAIN
    route: Plan = field(default_factory=dict)
    settings: Plan = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)  # names below, or @: silent or servfail
    sts: Plan = field(default_factory=dict)
    then: list[Step] = field(default_factory=list)
    columns: Plan = field(default_factory=dict)  # of the rows of the queue
    message: Plan = field(default_factory=dict)  # columns of the messages
    content: str = "Subject: x\r\n\r\nx\r\n"

    @property
    def domain(self) -> str:
        return f"{self.name.replace('_', '-')}.test"

    @property
    def number(self) -> int:
        """A number from 1 to 65000 that hardly any other case has."""
        return zlib.crc32(self.name.encode()) % 65000 + 1

    def address(self, host: str) -> str:
        """Return the IPv4 address of a host: a host of another case has another one."""
        given = self.hosts[host].address
        if given and given != "none":
            return given
        high, low = divmod(self.number, 256)
        place = list(self.hosts).index(host) + 1
        return f"127.{128 + place}.{high}.{low}"

    def fqdn(self, host: str) -> str:
        """Return the full name of a host, without the final dot."""
        return f"{host}.{self.domain}"


def _typed[T](kind: type[T], plan: Plan, where: str) -> T:
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    unknown = set(plan) - known
    assert not unknown, f"{where}: unknown keys {sorted(unknown)}"
    return kind(**plan)


def host_script(plan: Plan | None, where: str) -> HostScript:
    """Return a host's script. Raises AssertionError for a mistake in it."""
    script = _typed(HostScript, plan or {}, where)
    # YAML reads yes and no as booleans
    script.listen = {"True": "yes", "False": "no"}.get(str(script.listen), script.listen)
    assert script.listen in LISTENING, f"{where}: listen: {script.listen}"
    return script


def load(path: Path) -> list[Case]:
    """Return the case of a file, or one for each of its variants, which replace keys.

    Raises AssertionError for a mistake in it.
    """
    plan = yaml.safe_load(path.read_text())
    variants = plan.pop("variants", None)
    if not variants:
        return [_case(path.stem, plan)]
    return [_case(f"{path.stem}_{name}", plan | variant) for name, variant in variants.items()]


def _case(name: str, plan: Plan) -> Case:
    hosts = {
        host: host_script(script, f"{name}: {host}")
        for host, script in (plan.get("hosts") or {}).items()
    }
    expect = _typed(Expected, plan.get("expect") or {}, name)
    steps = []
    for step in plan.get("then", []):
        then = _typed(Expected, step.get("expect") or {}, name)
        steps.append(_typed(Step, {**step, "expect": then}, name))
    assert SIGNED.fullmatch(plan.get("sign", "secure")), f"{name}: sign: {plan['sign']}"
    whole = {**plan, "name": name, "hosts": hosts, "expect": expect, "then": steps}
    return _typed(Case, whole, name)


def all_cases() -> list[Case]:
    """Return every case, by name."""
    return [case for path in sorted(CASES.glob("*.yaml")) for case in load(path)]
