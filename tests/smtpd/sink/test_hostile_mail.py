"""Mail that breaks Python's parser, or that takes it hours: its source is shown all the same."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.smtpd.sink.sink import Sink
from tests.support.serving import Client
from tests.support.waiting import SLACK

MIXED = b"Content-Type: multipart/mixed"
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a parameter": lambda: MIXED + b';"' * (2 << 20) + b"\n\nx",
    "parts": lambda: MIXED + b"; boundary=b\n\n" + b"--b\n\n" * (4 << 20),
    "messages in messages": lambda: b"Content-Type: message/rfc822\n\n" * 20_000,
    "parts in parts": lambda: b"".join(
        MIXED + b"; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(9_000)
    ),
    "lines": lambda: b"A: b\n\n" + b"a\n" * (12 << 20),
    "fields": lambda: b"A: b\n" * (6 << 20),
}
ODD = {
    "parameters": b"Content-Type: text/plain" + b"; x" * 9_000 + b"\n\nx",
    "encoded words": b"Subject: " + b"=?utf-8?q?=" * 90_000 + b"\n\n",
    "equals signs": b"Content-Transfer-Encoding: base64\n\n" + b"=" * (4 << 20),
    "links": b"Content-Type: text/html\n\n" + b"<a href =" * (1 << 17),
    "brackets": b"A: b\n\nhttp://a" + b")" * (1 << 20),
    "pictures": MIXED + b"; boundary=b\n\n--b\nContent-Type: text/html\n\n"
    + b"<img src=cid:a>" * 50_000 + b"\n--b\nContent-Type: image/png\nContent-ID: <a>\n\n"
    + b"x" * 1_000_000,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_mail_shows_its_source(sink: Sink, what: str) -> None:
    content = HOSTILE[what]()
    name = sink.put(content)
    began = time.monotonic()
    answer = sink.ask(f"/m/{name}")
    assert time.monotonic() - began < 20 + SLACK
    assert "can't be taken apart" in answer.text
    assert "Delivered-To: r@b.example" in answer.text
    assert sink.ask(f"/m/{name}/frame").status == sink.ask(f"/m/{name}/part/0").status == 404
    assert len(sink.ask(f"/m/{name}/raw").body) > len(content)
    assert "1 mail<" in sink.ask("/").text
    with Client(sink.port) as client:  # it takes mail all the while
        assert client.reply()[:3] == "220"


@pytest.mark.slow
def test_odd_mail_is_shown_soon(shared: Sink) -> None:
    for what, content in ODD.items():
        began = time.monotonic()
        answer = shared.ask(f"/m/{shared.put(content)}")
        assert time.monotonic() - began < SLACK, what
        assert answer.status == 200, what
        assert "can't be taken apart" not in answer.text, what
        assert len(answer.body) < 8 << 20, what


def test_a_long_subject_stops_nobody(shared: Sink) -> None:
    began = time.monotonic()
    with Client(shared.port) as client:
        assert client.reply()[:3] == "220"
        client.send(b"EHLO c\r\nMAIL FROM:<s@a.example>\r\nRCPT TO:<r@b.example>\r\nDATA\r\n")
        assert [client.reply()[:3] for _ in range(4)] == ["250", "250", "250", "354"]
        client.send(b"Subject: " + b"=?utf-8?q?a?= " * 200_000 + b"\r\n")
        assert client.say(".")[:3] == "250"
    assert time.monotonic() - began < SLACK


@pytest.mark.slow
def test_of_huge_mail_the_beginning_is_shown(shared: Sink) -> None:
    body = b"--b\n\nhello\n--b\nContent-Disposition: attachment; filename=big\n"
    body += b"Content-Transfer-Encoding: base64\n\n" + (b"A" * 76 + b"\n") * (95 << 20 >> 6)
    name = shared.put(MIXED + b"; boundary=b\n\n" + body)
    answer = shared.ask(f"/m/{name}")
    assert "hello" in answer.text
    assert "Only the first 32.0 MB of this mail are shown" in answer.text
    assert "big" in shared.ask(f"/m/{name}/attachments").text
    assert len(shared.ask(f"/m/{name}/source").body) < 2 << 20
