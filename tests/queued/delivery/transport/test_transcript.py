"""Transcripts: every line with its time, no secrets, no content, at most 16 KB."""

from __future__ import annotations

import re
import time
from collections import deque

import pytest

from pgmta.errors import DeliveryError
from queued.config import Delivery
from queued.delivery.dns.hop import Hop
from queued.delivery.smtp.connection import ClientProtocol
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from queued.delivery.transport.transcript import (
    CONTENT,
    MAX_ENTRIES,
    MAX_TRANSCRIPT_OCTETS,
    NOTE,
    RECEIVED,
    SENT,
    Entry,
    transcript,
)
from tests.queued.delivery.sending import CONTENT as BODY
from tests.queued.delivery.sending import connect, envelope
from tests.queued.delivery.smtp.test_session import LARGE, QUICK, large
from tests.support.rawhop import DROP, HANG, LOCK_STEP, RawHop, run, serving
from tests.support.waiting import let_others_run

TIME = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")


def text(*said: tuple[str, bytes | int | str], setup: tuple[Entry, ...] = ()) -> list[str]:
    """The lines of a dialogue without date and times."""
    now = time.monotonic()
    whole = transcript((setup, [(now, kind, what) for kind, what in said]))
    date, *lines = whole.splitlines()
    assert re.fullmatch(r"# \d{4}-\d\d-\d\d, UTC", date)
    return [TIME.sub("", line) for line in lines]


def test_secrets_and_control_characters_stay_out() -> None:
    assert text(
        (RECEIVED, b"250-hop\r\n250 AUTH PLAIN LOGIN\r\n"),
        (SENT, b"AUTH PLAIN AHNob3AAc2VjcmV0\r\n"),
        (RECEIVED, b"334 VXNlcm5hbWU6\r\n"),
        (SENT, b"c2hvcA==\r\n"),
        (SENT, b"DATAc2VjcmV0\r\n"),
        (SENT, b"*\r\n"),
        (RECEIVED, b"535 5.7.8 what is shop secret?\r\n"),
        (SENT, b"QUIT\r\n"),
        (RECEIVED, b"221 2.0.0 \x1b[31mno\x07\xe2\x80\xae\xff\r\n"),
    ) == [
        "< 250-hop",
        "< 250 AUTH PLAIN LOGIN",
        "> AUTH PLAIN (left out)",
        "< 334 (left out)",
        "> (left out)",
        "> (left out)",
        "> (left out)",
        "< 535 5.7.8 (left out)",
        "> QUIT",
        "< 221 2.0.0 \ufffd[31mno\ufffd\ufffd\ufffd",
    ]


def test_a_secret_stays_out_if_the_host_drips_it() -> None:
    now = time.monotonic()
    setup = deque([(now, SENT, b"AUTH PLAIN AHNob3AAc2VjcmV0\r\n")], maxlen=MAX_ENTRIES)
    setup.extend((now, RECEIVED, bytes([octet])) for octet in b"535 " + b"x" * 300 + b" secret\r\n")
    assert text(setup=tuple(setup)) == ["< (left out)"]


def test_notes_are_printable() -> None:
    assert text((NOTE, "it said \x1b[2J\r\n\u202e"), (NOTE, ""), (NOTE, "")) == [
        "# it said \ufffd[2J\ufffd\ufffd\ufffd", "# ", "# ",
    ]  # fmt: skip


def test_a_line_that_comes_octet_by_octet_is_one_line() -> None:
    dripped = [(RECEIVED, bytes([octet])) for octet in b"250-a\r\n250 b\r\n45"]
    assert text((SENT, b"EHLO x\r\n"), *dripped) == [
        "> EHLO x",
        "< 250-a",
        "< 250 b",
        "# after that, without an end of line: 45",
    ]


def test_a_long_dialogue_keeps_its_start_and_its_end() -> None:
    said = [(SENT, b"EHLO x\r\n")]
    said += [(RECEIVED, f"250 {'ü' * 3000} {n}\r\n".encode()) for n in range(200)]
    now = time.monotonic()
    whole = transcript(((), [(now, *each) for each in [*said, (RECEIVED, b"550 no\r\n")]]))
    assert MAX_TRANSCRIPT_OCTETS - 1100 < len(whole.encode()) <= MAX_TRANSCRIPT_OCTETS
    lines = whole.splitlines()
    assert lines[1].endswith("> EHLO x")
    assert lines[-1].endswith("< 550 no")
    assert any(re.fullmatch(r"# \d+ lines are left out", line) for line in lines)


def test_one_connection_that_failed_has_no_transcript() -> None:
    now = time.monotonic()
    said: list[Entry] = [(now, NOTE, "connect to hop at 192.0.2.1:25"), (now, NOTE, "timeout")]
    assert transcript((said, ())) == ""
    assert "timeout" in transcript((said, said))
    assert text((CONTENT, 12)) == ["> content: 12 octets"]


def transaction(hop: RawHop, mail: Envelope) -> list[Result]:
    """The results of the second transaction of a session."""

    async def main() -> list[Result]:
        async with serving(hop):
            session = await connect(hop, QUICK)
            await session.open("client.example")
            session.facts.connect_seconds = 7.0
            first = await session.send(envelope())
            assert [(r.reply.code, r.facts and r.facts.connect_seconds) for r in first] == [
                (250, 7)
            ]
            results = await session.send(mail)
            session.close()
            return results

    return run(main())


def said(result: Result) -> list[str]:
    assert result.said
    return [TIME.sub("", line) for line in transcript(result.said).splitlines()[1:]]


SETUP = ["# connect to hop:25 at hop",
         "< 220 hop.example ESMTP", "> EHLO client.example", "< 250-hop.example",
         "< 250-SIZE 100000000", "< 250 PIPELINING"]  # fmt: skip
MAIL = f"> MAIL FROM:<s@a.example> SIZE={len(BODY) + len('X-Trace: y' + chr(13) + chr(10))}"


def test_a_transaction_has_its_dialogue_and_that_of_the_set_up() -> None:
    second = iter([b"250 2.1.5 Ok\r\n", b"550 5.1.1 unknown\r\n"])
    results = transaction(RawHop({"RCPT": lambda _: next(second)}), envelope())
    assert said(results[0]) == [
        *SETUP,
        MAIL,
        "> RCPT TO:<r0@b.example>",
        "> DATA",
        "< 250 2.1.0 Ok",
        "< 550 5.1.1 unknown",
        "< 354 Go on",
        "> .",
        "< 250 2.0.0 Ok",
    ]
    facts = results[0].facts
    assert facts
    assert facts.connect_seconds == 0
    assert 0 < results[0].seconds < 10


def test_recipients_of_a_transaction_share_its_dialogue() -> None:
    hop = RawHop({"dot": lambda _: b"451 4.3.0 later\r\n" if hop.messages[1:] else None})
    results = transaction(hop, envelope(recipients=2))
    assert said(results[0])[-2:] == ["> content: 35 octets", "< 451 4.3.0 later"]
    assert results[0].said is results[1].said


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (HANG, ["# timeout, no reply to MAIL"]),
        (b"250 Ok\r\n" + DROP, ["# connection closed by peer"]),
        (b"what\r\n", ["< what", "# not an SMTP reply: 'what'"]),
    ],
)
def test_the_end_of_a_connection_is_in_the_transcript(words: bytes, end: list[str]) -> None:
    hop = RawHop({"MAIL": lambda _: words if hop.messages else None}, ehlo=LOCK_STEP)
    lines = said(transaction(hop, envelope())[0])
    assert lines[-len(end) :] == end


def test_content_that_broke_off_is_counted() -> None:
    hop = RawHop({"content": lambda _: b"" if not hop.messages else DROP})
    lines = said(transaction(hop, large())[0])
    octets = [re.fullmatch(r"> content: (\d+) octets", line) for line in lines]
    (match,) = [each for each in octets if each]
    assert len(LARGE) * 1000 < int(match[1])


def test_a_peer_that_drips_costs_little_memory() -> None:
    async def main() -> None:
        protocol = ClientProtocol(QUICK.timeouts)
        for _ in range(10_000):
            protocol.data_received(b" ")
        assert len(protocol.said) == 256

    run(main())


def test_all_hosts_that_were_tried_are_in_the_transcript_and_the_last_in_the_facts() -> None:
    refusing = RawHop({"greeting": b"421 4.3.2 busy\r\n"})

    async def main() -> DeliveryError:
        async with serving(refusing):
            hops = Hop("127.0.0.1", 1), Hop("127.0.0.1", refusing.port, fallback=True)
            smtp = SmtpTransport("me.example", Delivery())
            with pytest.raises(DeliveryError) as error:
                await smtp.open(Destination("smtp", SmtpParameters(hops)))
            await let_others_run()
            return error.value

    result = Result.from_error(run(main()), "")
    name = f"127.0.0.1:{refusing.port}"
    assert result.facts
    assert (result.host, result.facts.address) == (name, "127.0.0.1")
    assert result.facts.connect_seconds > 0
    assert said(result) == [
        "# connect to 127.0.0.1:1 at 127.0.0.1",
        "# 4.4.1 connect to 127.0.0.1:1: Connection refused",
        f"# connect to {name} at 127.0.0.1",
        "< 421 4.3.2 busy",
        "> QUIT",
    ]
