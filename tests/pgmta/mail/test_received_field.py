"""The trace field of smtpd is read as it was written, by Python and by SQL."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgmta.mail.received_field import ClientFacts, client_of, trace_field
from tests.support.rows import fetch

PROTOCOLS = ("SMTP", "ESMTP", "LMTPA", "UTF8SMTPSA (TLSv1.3 TLS_AES_256_GCM_SHA384)\r\n\t")
DATE = "17;\r\n\tFri, 27 Nov 2026 00:00:00 +0000\r\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=300),
    st.ip_addresses().map(str),
    st.from_regex(r"[a-z0-9.-]{1,40}", fullmatch=True),
    st.sampled_from(PROTOCOLS),
)
@example("x (pgmta) with y", "::ffff:192.0.2.1", "android", "ESMTPS (TLSv1.2 X-id)\r\n\t")
@example("", "192.0.2.1", "id", "SMTP")
def test_both_read_what_smtpd_writes(
    db: psycopg.Connection, helo: str, address: str, host: str, protocol: str
) -> None:
    trace = trace_field(helo, address, host, protocol) + DATE
    client = client_of(trace)
    assert client
    assert client[0] == address
    assert client.protocol == protocol.strip()
    assert client.helo[:5] == ("".join(c if c.isascii() and (c.isalnum() or c in ".:_[]-") else "?"
                                       for c in helo)[:5] or "unkno")  # fmt: skip
    assert fetch(db, "SELECT trace_client(%s)", trace) == ("|".join(client),)


@pytest.mark.parametrize(
    "trace",
    [
        "",
        "Received: by mx.example (pgmta) with SQL id 7;\r\n\tFri\r\n",
        "Received: from x ([:::]) by mx.example (pgmta) with ESMTP id 7;",
        "Received: from x ([999.1.1.1]) by mx.example (pgmta) with ESMTP id 7;",
        "Received: from x ([192.0.2.1]) by mx.example (Other) with ESMTP id 7;",
        "Subject: x (pgmta) with id ",
    ],
)
def test_other_fields_have_no_client(db: psycopg.Connection, trace: str) -> None:
    assert client_of(trace) is None
    assert fetch(db, "SELECT trace_client(%s)", trace) == (None,)


def test_a_client_has_names() -> None:
    trace = trace_field("me", "192.0.2.1", "mx", "ESMTP") + DATE
    assert client_of(trace) == ClientFacts(address="192.0.2.1", helo="me", protocol="ESMTP")
