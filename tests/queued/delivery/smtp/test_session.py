"""The SMTP client against next hops that break the protocol."""

from __future__ import annotations

import asyncio
import socket
import time
import unicodedata
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgmta.errors import DeliveryError, Stage
from pgmta.mail.answer_class import AnswerClass
from pgmta.model import Outcome
from pgmta.states import Event
from queued.config import Delivery, Retry, Timeouts
from queued.config.answer_index import Answer
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.connection import ClientProtocol
from queued.delivery.smtp.final_dot import send_content
from queued.delivery.transport.envelope import Envelope
from queued.worker.verdict import judge
from tests.queued.delivery.sending import CONTENT, NOW, attempt, envelope
from tests.support.rawhop import DROP, LOCK_STEP, PIPED, USUAL, RawHop, run

LARGE = b"x" * 98 + b"\r\n"  # one of many lines
LINES = 60_000
QUICK = Delivery(timeouts=Timeouts(command=0.3, final=0.3, greeting=0.3))
both = pytest.mark.parametrize("ehlo", [PIPED, LOCK_STEP], ids=["piped", "lock-step"])


class Parts:
    """A content that comes in parts."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(LINES // 1000):
            yield LARGE * 1000


def large() -> Envelope:
    return envelope(content=Parts(), size=LINES * len(LARGE))


def outcomes(hop: RawHop, mail: Envelope, delivery: Delivery = QUICK) -> list[Outcome]:
    """Return what becomes of each recipient."""
    results = run(attempt(hop, mail, delivery))
    return [
        judge(item, result, Answer(AnswerClass.OTHER), Retry(), started=NOW, now=NOW, chance=0)
        for item, result in zip(mail.items, results, strict=True)
    ]


STRAY = {
    "354 and 250": {"DATA": b"354 Go on\r\n250 2.0.0 Ok\r\n" + DROP},
    "354 and half a line": {"DATA": b"354 Go on\r\n250 2.0." + DROP},
    "354 and a refusal": {"DATA": b"354 Go on\r\n552 5.3.4 Large\r\n"},
    "250 too much after MAIL": {"MAIL": b"250 2.1.0 Ok\r\n250 2.0.0 Ok\r\n"},
    "a refusal too much after MAIL": {"MAIL": b"250 2.1.0 Ok\r\n550 5.7.1 No\r\n"},
    "a refusal too much before": {"MAIL": b"550 5.7.1 No\r\n250 2.1.0 Ok\r\n"},
    "two refusals too much": {"MAIL": b"550 5.7.1 No\r\n" * 2 + b"250 2.1.0 Ok\r\n"},
    "all refused twice": {"MAIL": b"550 5.7.1 No\r\n" * 2, "RCPT": b"550 5.1.1 No\r\n"},
    "354 to MAIL": {"MAIL": b"354 Go on\r\n"},
    "354 to RCPT": {"RCPT": b"354 Go on\r\n"},
    "250 to DATA": {"DATA": b"250 2.0.0 Ok\r\n", "RCPT 2": b"550 5.1.1 No\r\n"},
    "no digit of SMTP": {"RCPT": b"150 Well\r\n"},
    "two codes": {"RCPT": b"250-2.1.5 Ok\r\n550 5.1.1 No\r\n"},
}


@both
@pytest.mark.parametrize("says", STRAY.values(), ids=STRAY.keys())
def test_replies_out_of_step_decide_nothing(says: dict[str, bytes], ehlo: bytes) -> None:
    hop = RawHop({**says}, ehlo)
    found = outcomes(hop, envelope(recipients=2))
    assert [outcome.event for outcome in found] == [Event.DEFER] * 2
    assert hop.messages == []


@both
@pytest.mark.parametrize("reply", ["250 2.0.0 Ok", "452 4.3.1 Full", "552 5.3.4 Large"])
def test_reply_in_the_middle_of_content_is_no_answer_to_it(reply: str, ehlo: bytes) -> None:
    """The hop has read one line of 6 MB."""
    hop = RawHop({"content": f"{reply}\r\n".encode() + DROP}, ehlo)
    (outcome,) = outcomes(hop, large())
    assert outcome.event is Event.DEFER
    assert outcome.reply.text == f"reply without a command: {reply}"
    assert outcome.stage is Stage.DATA
    assert hop.messages == []


def test_reply_that_the_final_dot_can_not_have_reached_leaves_the_outcome_open() -> None:
    """Content of a few MB and its dot are written; the hop's host has no room for it."""
    content = LARGE * LINES
    mail = envelope(content=content, size=len(content))
    hop = RawHop({"content": b"250 2.0.0 Ok\r\n" + DROP})
    (outcome,) = outcomes(hop, mail)
    assert outcome.event is Event.UNKNOWN
    assert hop.messages == []


def test_reply_that_waits_unread_before_the_final_dot_ends_the_transaction() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        session = ClientSession(ClientProtocol(QUICK.timeouts), Host("hop", 25))
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: session.connection, sock=ours)
        with theirs:
            theirs.send(b"220 hop.example\r\n")
            await session.connection.reply(Stage.GREETING, 1)
            theirs.send(b"250 2.0.0 Ok\r\n")
            with pytest.raises(DeliveryError, match="reply without a command: 250"):
                await send_content(session.connection, envelope())
            assert session.connection.violated
            assert await loop.sock_recv(theirs, 1000) == b""

    run(main())


@pytest.mark.parametrize(
    ("reply", "fits"),
    [
        (b"250-\r\n" * 255 + b"250 Ok\r\n", True),
        (b"250-\r\n" * 256 + b"250 Ok\r\n", False),
        (b"250-" + b"x" * 4090 + b"\r\n250 Ok\r\n", True),
        (b"250-" + b"x" * 4092 + b"\r\n250 Ok\r\n", False),
        ((b"250-" + b"x" * 4000 + b"\r\n") * 8 + b"250 Ok\r\n", True),
        ((b"250-" + b"x" * 4000 + b"\r\n") * 9 + b"250 Ok\r\n", False),
    ],
)
def test_replies_are_bounded(reply: bytes, fits: bool) -> None:
    (outcome,) = outcomes(RawHop({"MAIL": reply}), envelope())
    assert outcome.event is (Event.DELIVERED if fits else Event.DEFER)
    assert fits or outcome.reply.text == "reply is too long"


@pytest.mark.parametrize("mail", [b"550 5.7.1 No\r\n", b"450 4.7.1 Later\r\n"])
def test_nobody_gets_an_empty_message(mail: bytes) -> None:
    """The hop refuses the sender and goes on as if it had not."""
    hop = RawHop({"MAIL": mail})
    found = outcomes(hop, envelope(recipients=2))
    assert {outcome.reply.code for outcome in found} == {int(mail[:3])}
    assert {outcome.stage for outcome in found} == {Stage.MAIL}
    assert hop.messages == []


@both
def test_what_is_no_reply_to_the_final_dot_leaves_its_outcome_open(ehlo: bytes) -> None:
    """Recipients that were refused before it are not concerned."""
    for words in (b"354 More\r\n", b"what?\r\n", b"250 Ok\r\n550 No\r\n", DROP):
        hop = RawHop({"RCPT 2": b"550 5.1.1 No such user\r\n", "dot": words}, ehlo)
        found = outcomes(hop, envelope(recipients=2))
        assert [outcome.event for outcome in found] == [Event.UNKNOWN, Event.FAIL], words
        assert found[0].stage is Stage.END_OF_DATA
    assert found[1].reply.text == "5.1.1 No such user"


@pytest.mark.parametrize(
    ("says", "delivered"),
    [
        (b"250 2.0.0 Ok\r\n421 4.4.2 Bye\r\n", True),
        (b"250 2.0.0 Ok\r\n\r\n", True),
        (b"250-2.0.0 Ok\r\n250 and more\r\n", True),
        (b"250-2.0.0 Ok\r\n" + DROP, False),
    ],
)
def test_hop_that_closes_after_its_reply(says: bytes, delivered: bool) -> None:
    (outcome,) = outcomes(RawHop({"dot": says}), envelope())
    assert outcome.event is (Event.DELIVERED if delivered else Event.UNKNOWN)


@pytest.mark.parametrize(
    "size", ["²", "9" * 5000, "", " ", "-1", "0", "1e3", "٣", "9" * 21, "100000000"]
)
def test_odd_sizes_limit_nothing(size: str) -> None:
    hop = RawHop(ehlo=f"250-hop.example\r\n250-SIZE {size}\r\n250 PIPELINING\r\n".encode())
    if len(size) > 4000:
        hop.ehlo = f"250-hop.example\r\n250-SIZE {size[:4000]}\r\n250 PIPELINING\r\n".encode()
    (outcome,) = outcomes(hop, envelope())
    assert outcome.event is Event.DELIVERED


FLOODS = {  # what is repeated
    "empty continuation lines": b"250-\r\n",
    "a line without end": b"x",
    "octets": b"250-" + b"x" * 4000 + b"\r\n",
    "replies": b"250 2.0.0 Ok\r\n",
}


@pytest.mark.parametrize("point", ["MAIL", "content"])
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_floods_of_replies_are_not_read(flood: bytes, point: str) -> None:
    """Of 25 MB, a reply is looked at."""
    octets = b"250-" * (flood == b"x") + flood * (25_000_000 // len(flood))
    connection = ClientProtocol(Timeouts())
    aborted: list[bool] = []

    class Wire(asyncio.Transport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            pass

        def abort(self) -> None:
            aborted.append(True)

    async def receive() -> float:
        connection.connection_made(Wire())
        connection.data_received(b"220 hop.example\r\n")
        if point == "MAIL":
            connection.write(b"MAIL FROM:<>\r\n", 1)
        started = time.process_time()
        for start in range(0, len(octets), 1 << 16):
            connection.data_received(octets[start : start + (1 << 16)])
        return time.process_time() - started

    seconds = run(receive())
    assert aborted
    assert connection.closed
    assert connection.violated
    assert seconds < 0.2


def test_stored_replies_are_short_and_printable() -> None:
    evil = "550-5.1.1 \x1b[2J\x9b31m \u202e\u2028\u2066\0 \r\n".encode() * 40
    said = evil + b"550 5.1.1 " + "é".encode() * 1900 + b"\r\n"
    for hop, events in (
        (RawHop({"RCPT": said}), [Event.FAIL]),
        (RawHop({"RCPT": said[:600] + b"\r\n"}, LOCK_STEP), [Event.DEFER]),
        (RawHop({"content": said}), [Event.DEFER]),
        (RawHop({"dot": said[:600] + DROP}), [Event.UNKNOWN]),
        (RawHop({"RCPT": b"\x1b]0;evil\x07\xe2\x80\xae\r\n"}), [Event.DEFER]),
    ):
        found = outcomes(hop, large() if "content" in hop.says else envelope())
        assert [outcome.event for outcome in found] == events
        text = found[0].reply.text
        assert 10 < len(text.encode()) <= 1020
        assert not {unicodedata.category(c) for c in text} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


REPLIES = [
    b"250 2.0.0 Ok\r\n", b"354 Go on\r\n", b"550 5.0.0 No\r\n", b"450 4.0.0 Later\r\n",
    b"421 4.3.2 Bye\r\n", b"250-2.0.0 More\r\n", b"hello\r\n", b"\r\n", b"25", b"999 x\r\n",
]  # fmt: skip
strays = st.tuples(
    st.booleans(),  # after the usual reply
    st.lists(st.sampled_from(REPLIES), min_size=1, max_size=3),
    st.sampled_from([b"", DROP]),
)
points = ["greeting", "EHLO", "MAIL", "RCPT", "DATA", "dot", "RSET"]


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(points), strays, min_size=1, max_size=3),
    st.sampled_from([PIPED, LOCK_STEP]),
    st.integers(1, 3),
)
def test_only_the_hop_s_word_after_the_whole_message_ends_its_row(
    said: dict[str, tuple[bool, list[bytes], bytes]], ehlo: bytes, number: int
) -> None:
    """Whatever it says at the wrong moment."""
    usual = {**USUAL, "EHLO": ehlo}
    says = {
        point: (usual[point] if too else b"") + b"".join(replies) + end
        for point, (too, replies, end) in said.items()
    }
    mail = envelope(recipients=number)
    hop = RawHop({**says}, ehlo)
    impatient = Delivery(timeouts=Timeouts(command=0.05, final=0.05, greeting=0.05))
    found = outcomes(hop, mail, impatient)
    for accepted, content in hop.messages:
        assert content == b"X-Trace: y\r\n" + CONTENT or not accepted
    for outcome in found:
        taken = hop.taken[outcome.item.recipient]
        if outcome.event is Event.DELIVERED:
            assert taken == 1
        if taken:
            assert outcome.event in (Event.DELIVERED, Event.UNKNOWN)
