"""Trace contexts in the form of W3C, in metadata and in the header."""

from __future__ import annotations

import pytest
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

from pgmta.mail.header import traceparent_field
from pgmta.tracing import recorded, tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"
FIELD = f"Traceparent: {GIVEN}\r\n".encode()


@pytest.mark.parametrize(("flags", "found"), [("00", False), ("01", True), ("02", False),
                                              ("03", True), ("ff", True)])  # fmt: skip
def test_the_flag_says_whether_a_trace_is_recorded(flags: str, found: bool) -> None:
    assert recorded(f"00-{TRACE}-{SPAN}-{flags}") is found


@pytest.mark.parametrize("value", ["", None, 1, GIVEN.encode(), GIVEN.upper(), f"{GIVEN}\n",
                                   f" {GIVEN}", f"{GIVEN}-x", GIVEN[:-1], f"01{GIVEN[2:]}",
                                   f"ff{GIVEN[2:]}", f"00-{'0' * 32}-{SPAN}-01",
                                   f"00-{TRACE}-{'0' * 16}-01", GIVEN.replace("4", "\u0664"),
                                   GIVEN.replace("-", "_")])  # fmt: skip
def test_other_values_are_no_trace_context(value: object) -> None:
    assert recorded(value) is None


@pytest.mark.parametrize(("header", "found"), [
    (FIELD, GIVEN),
    (b"Subject: x\r\n" + FIELD.lower(), GIVEN),
    (FIELD.replace(b": ", b":\r\n\t"), GIVEN),
    (FIELD + FIELD, ""),
    (b"X-" + FIELD, ""),
    (b"Subject: x\r\n " + FIELD, ""),
    (b"", ""),
    ("Traceparent: \u0660\r\n".encode(), "\ufffd\ufffd"),
])  # fmt: skip
def test_the_field_counts_if_it_is_there_once(header: bytes, found: str) -> None:
    assert traceparent_field(header) == found


def test_without_a_provider_there_is_no_tracing() -> None:
    assert isinstance(get_tracer_provider(), ProxyTracerProvider)
    assert tracing() is None
