"""The relay policy, and the trace field (pure)."""

from __future__ import annotations

import email
import email.policy
import email.utils
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgmta.mail.address import normalise_domain
from pgmta.mail.received_field import trace_field
from smtpd.config import Relay
from smtpd.policy import Policy
from smtpd.session.accepted_message import trace_date

NETWORKS = ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "fe80::/10"]


def accepts(policy: Policy, client: str, mailbox: str, domain: str) -> bool:
    """Whether the client may send to the mailbox, as `Commands` and `RelayHandler` decide it."""
    return policy.trusted(client) or policy.admits(mailbox, domain)


@pytest.mark.parametrize(
    ("client", "trusted"),
    [
        ("10.1.2.3", True),
        ("11.0.0.1", False),
        ("192.0.2.1", True),
        ("192.0.2.2", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:11.1.2.3", False),
        ("2001:db8:1::1", True),
        ("2001:db9::1", False),
        ("fe80::1%eth0", True),
        ("::1", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_networks(client: str, trusted: bool) -> None:
    policy = Policy(Relay.model_validate({"networks": NETWORKS}))
    assert policy.trusted(client) is trusted
    assert accepts(policy, client, "r@anywhere.example", "anywhere.example") is trusted


@pytest.mark.parametrize(
    ("domain", "accepted"),
    [
        ("example.org", True),
        ("EXAMPLE.org", True),
        ("www.example.org", False),
        ("sub.example", False),
        ("a.sub.example", True),
        ("b.a.Sub.Example", True),
        ("notsub.example", False),
        ("bücher.example", True),
        ("example.org.evil.example", False),
        ("[192.0.2.9]", True),
        ("[192.0.2.8]", False),
        ("org", False),
    ],
)
def test_domains_are_open_to_everybody(domain: str, accepted: bool) -> None:
    domains = ["Example.ORG", "*.sub.example", "xn--bcher-kva.example", "[192.0.2.9]"]
    policy = Policy(Relay.model_validate({"networks": [], "domains": domains}))
    assert accepts(policy, "203.0.113.1", f"r@{domain}", normalise_domain(domain)) is accepted


def test_nothing_is_trusted_without_networks() -> None:
    policy = Policy(Relay.model_validate({"networks": []}))
    assert not any(
        accepts(policy, client, "r@a.example", "a.example") for client in ("127.0.0.1", "::1", "?")
    )


FIELD = re.compile(
    r"Received: from (\S+) \((\[(?:IPv6:)?[0-9A-Fa-f:.]+\])\)\r\n"
    r"\tby (\S+) \(pgmta\) with (SMTP|ESMTP|UTF8SMTP) id ([0-9]+);\r\n"
    r"\t((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} \+0000)\r\n"
)

HELOS = ["mx.example.org", "[192.0.2.1]", "[IPv6:2001:db8::1]", "localhost", "a_b.example"]


@given(
    st.one_of(st.sampled_from(HELOS), st.text(max_size=400)),
    st.ip_addresses().map(str),
    st.sampled_from(["SMTP", "ESMTP", "UTF8SMTP"]),
    st.integers(1, 2**63 - 1),
    st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)),
    st.integers(-12, 14),
)
@example("x\r\nX-Injected: 1\r\n\r\nbody", "::1", "SMTP", 1, datetime(2026, 1, 1), 0)
@example("x (comment", "::1", "SMTP", 1, datetime(2026, 1, 1), 0)
@example("a;b <c> \udcff\0", "::1", "SMTP", 1, datetime(2026, 1, 1), 0)
def test_received_is_one_field_whatever_the_client_calls_itself(
    helo: str, client: str, protocol: str, message_id: int, moment: datetime, hours: int
) -> None:
    now = moment.replace(tzinfo=timezone(timedelta(hours=hours)))
    beginning = trace_field(helo, client, "mx.example", protocol)
    date = trace_date(int(now.timestamp()))
    field = f"{beginning}{message_id};\r\n\t{date}\r\n"
    match = FIELD.fullmatch(field)
    assert match, field
    assert field.isascii()
    assert all(len(line) <= 998 for line in field.split("\r\n"))
    assert match[1] == helo or helo not in HELOS
    assert re.fullmatch(r"[^()<>,;@\\\"\s]+", match[1])
    assert match[2] == (f"[IPv6:{client}]" if ":" in client else f"[{client}]")
    assert (match[4], match[5]) == (protocol, str(message_id))
    parsed = email.message_from_string(field + "\r\n", policy=email.policy.SMTP)
    assert parsed.keys() == ["Received"]
    stamp = email.utils.parsedate_to_datetime(match[6])
    assert stamp == now.astimezone(UTC).replace(microsecond=0)
