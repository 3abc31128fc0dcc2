"""Questions to a real name server on a loopback port: shared, kept, validated, bounded."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import pytest
import structlog.testing
from dns.nameserver import Nameserver
from dns.rdtypes.ANY.TLSA import TLSA

from pgmta.errors import DeliveryError
from queued.config import Dns
from queued.delivery.dns import resolver as questions_module
from queued.delivery.dns.name_servers import NameServers
from queued.delivery.dns.query_slots import QuerySlots
from queued.delivery.dns.resolver import Questions
from tests.support.name_server import NameServer, Says, Zone, serving_names
from tests.support.waiting import eventually, let_others_run

ZONE: Zone = {
    "a.example": {"A": ["192.0.2.1"], "MX": ["1 a.example."]},
    "slow.example": {"A": Says(["192.0.2.2"], delay=0.2)},
    "short.example": {"A": Says(["192.0.2.3"], ttl=0), "MX": Says(["1 a.example."], ttl=2)},
    "large.example": {"MX": Says([f"{n} mx{n}.large.example." for n in range(200)])},
    "cut.example": {"A": Says(["192.0.2.4"], truncated=True)},
    "signed.example": {"A": Says(["192.0.2.5"], ad=True), "TLSA": Says(["3 1 1 AB"], ad=True)},
    "alias.example": {"CNAME": ["Signed.example."]},
    "broken.example": {"A": dns.rcode.SERVFAIL},
    "silent.example": {"A": None},
    ".": {"NS": Says(["a.example."], ad=True)},
    "old.example": {"NS": ["a.example."]},
}


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    with serving_names(ZONE) as server:
        yield server


def asking(server: NameServer, **options: object) -> Questions:
    return Questions(Dns.model_validate({"servers": [server.where], **options}))


async def fails(questions: Questions, name: str, kind: str = "A") -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        await questions.ask(name, kind)
    return caught.value


async def test_one_question_serves_all_who_ask_it(name_server: NameServer) -> None:
    questions = asking(name_server)
    many = [asyncio.create_task(questions.ask("slow.example", "A")) for _ in range(50)]
    await let_others_run()
    many[0].cancel()  # who goes away takes the answer from no other
    answers = await asyncio.gather(*many[1:])
    assert {answer.records[0].to_text() for answer in answers} == {"192.0.2.2"}
    await questions.ask("SLOW.example", "A")
    assert name_server.asked == {"slow.example A": 1}


async def test_answers_are_kept_by_their_ttl(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, now = asking(name_server), time.monotonic()
    monkeypatch.setattr("queued.delivery.dns.resolver.time.monotonic", lambda: now)
    for name, kind, seconds in [
        ("a.example", "A", 60),
        ("short.example", "A", 1),
        ("short.example", "MX", 2),
        ("none.example", "A", 120),
    ]:
        question = f"{name} {kind}"
        for _ in range(2):
            answer = await questions.ask(name, kind)
        assert answer.until - now == pytest.approx(seconds)
        assert answer.exists == ("none" not in name)
        assert name_server.asked[question] == 1
        now += seconds + 0.01
        await questions.ask(name, kind)
        assert name_server.asked[question] == 2
    name_server.soa = ""  # such an answer is not to be kept (RFC 2308, section 5)
    assert (await questions.ask("none2.example", "A")).until - now == pytest.approx(5)


async def test_failures_are_kept_for_seconds(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, now = asking(name_server), time.monotonic()
    hasty = asking(name_server, timeout="300ms")
    for asked, name, text in [
        (questions, "broken", "SERVFAIL from 127.0.0.1"),
        (hasty, "silent", "no answer in 0.3 s"),
    ]:
        for _ in range(2):
            error = await fails(asked, f"{name}.example")
            assert (text in error.line, error.permanent, error.code) == (True, False, 0)
    assert name_server.asked == {"broken.example A": 1, "silent.example A": 1}
    name_server.zone["broken.example"]["A"] = ["192.0.2.6"]
    monkeypatch.setattr("queued.delivery.dns.resolver.time.monotonic", lambda: now + 6)
    assert (await questions.ask("broken.example", "A")).records


async def test_number_and_octets_of_kept_answers_are_bounded(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions_module, "_MAX_OCTETS", 10_000)
    questions = asking(name_server)
    for n in range(5):
        name_server.zone[f"{n}.example"] = dict(ZONE["large.example"])
        assert len((await questions.ask(f"{n}.example", "MX")).records) == 200
    assert sum(octets for _, octets in questions._kept.values()) == questions._octets <= 10_000
    monkeypatch.setattr(questions_module, "_MAX_ANSWERS", 3)
    for n in range(9):
        await questions.ask(f"none{n}.example", "A")
    assert len(questions._kept) == 3
    assert questions._octets == sum(octets for _, octets in questions._kept.values())


async def test_truncated_and_large_answers_come_over_tcp(name_server: NameServer) -> None:
    questions = asking(name_server)
    assert (await questions.ask("cut.example", "A")).records[0].to_text() == "192.0.2.4"
    assert name_server.tcp == 1
    assert {query.payload for query in name_server.queries} == {1232}


async def test_answers_that_would_stop_others_are_not_read(name_server: NameServer) -> None:
    records = [f"192.0.{n >> 8}.{n & 255}" for n in range(3000)]
    name_server.zone["bomb.example"] = {"A": Says(records, truncated=True)}
    error = await fails(asking(name_server), "bomb.example")
    assert re.search(r"answer of \d{5} octets, over 16384 from 127\.0\.0\.1", error.line)
    assert name_server.tcp == 1


async def test_trusted_name_servers_alone_make_an_answer_secure(name_server: NameServer) -> None:
    loopback = asking(name_server)
    answer = await loopback.ask("alias.example", "A")
    assert (answer.secure, answer.name) == (True, "signed.example")
    assert not (await loopback.ask("a.example", "A")).secure
    (record,) = (await loopback.ask("signed.example", "TLSA")).records
    assert isinstance(record, TLSA)
    query = name_server.queries[0]
    assert query.flags & dns.flags.AD
    assert query.ednsflags & dns.flags.DO
    for servers, options, trusted in [
        (["127.0.0.1", "[::1]:53"], {}, True),
        (["127.0.0.1", "192.0.2.53"], {}, False),
        (["192.0.2.53"], {"trust_ad": True}, True),
    ]:
        config = Dns.model_validate({"servers": servers, **options})
        assert NameServers(config).trusted is trusted
    far = asking(name_server)
    far._servers.trusted = False
    assert not (await far.ask("signed.example", "A")).secure


async def test_name_servers_that_do_not_validate_are_told_once(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, now = asking(name_server, probe="old.example"), time.monotonic()
    monkeypatch.setattr("queued.delivery.dns.resolver.time.monotonic", lambda: now)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert not await questions.validating()
            now += 100
        name_server.zone["old.example"]["NS"] = dns.rcode.SERVFAIL
        assert not await questions.validating()
    assert [line["event"] for line in logs] == ["no DANE: the name servers do not validate"]
    name_server.zone["old.example"]["NS"] = Says(["a.example."], ad=True)
    now += 100
    assert await questions.validating()
    name_server.zone["old.example"]["NS"] = dns.rcode.SERVFAIL
    now += 4000
    assert await questions.validating(), "else who drops one answer ends DANE for all"
    name_server.zone["old.example"]["NS"] = ["a.example."]
    now += 100
    assert not await questions.validating()
    assert await asking(name_server).validating(), "the root is signed"
    with structlog.testing.capture_logs() as logs:
        config = Dns.model_validate({"servers": ["192.0.2.53"]})
        assert not await Questions(config).validating(), "asks nothing"
    assert len(logs) == 1


async def test_other_name_servers_after_a_change(name_server: NameServer) -> None:
    questions = asking(name_server)
    await questions.ask("a.example", "A")
    late = asyncio.create_task(questions.ask("slow.example", "A"))
    await eventually(lambda: name_server.asked["slow.example A"])
    with serving_names({"a.example": {"A": ["192.0.2.99"]}}) as other:
        questions.configure(Dns.model_validate({"servers": [other.where]}))
        (record,) = (await questions.ask("a.example", "A")).records
        assert record.to_text() == "192.0.2.99"
        assert (await late).exists
        assert not (await questions.ask("slow.example", "A")).exists


async def test_other_name_servers_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may come after the start, and changes with the network."""
    file = tmp_path / "resolv.conf"
    monkeypatch.setattr("queued.delivery.dns.name_servers._RESOLV_CONF", str(file))
    questions = Questions(Dns.model_validate({"timeout": "100ms"}))
    assert "no name server" in (await fails(questions, "a.example")).line
    for servers in (["192.0.2.1", "192.0.2.2"], ["127.0.0.1"]):
        file.write_text("".join(f"nameserver {server}\n" for server in servers))
        before = questions._servers
        await fails(questions, f"{servers[0]}.a.example")
        assert questions._servers is before, "not for each question"
        monkeypatch.setattr("queued.delivery.dns.name_servers._FILE_LOOK_INTERVAL_S", 0.0)
        await fails(questions, f"{servers[0]}.b.example")
        asked = questions._servers.resolver.nameservers
        assert [cast(Nameserver, each).answer_nameserver() for each in asked] == servers
        assert questions._servers.trusted is (servers == ["127.0.0.1"])
        monkeypatch.setattr("queued.delivery.dns.name_servers._FILE_LOOK_INTERVAL_S", 5.0)


async def test_dead_name_servers_do_not_stop_others(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand dead domains fill the places twenty times; each has its time, and no more."""
    questions = asking(name_server, timeout="60s")
    questions._slots = QuerySlots(most=50, patience=0.02)
    for n in range(1000):
        name_server.zone[f"dead{n}.example"] = {"A": None}
    dead = [asyncio.create_task(questions.ask(f"dead{n}.example", "A")) for n in range(1000)]
    await let_others_run()
    begun = time.monotonic()
    assert (await questions.ask("a.example", "A")).records
    took = time.monotonic() - begun
    assert took < 20, "a thousand questions in twenty rounds, not in minutes each"
    assert sum(task.done() for task in dead) >= 900
    await asyncio.gather(*dead, return_exceptions=True)
    # with free places a question has its whole time
    name_server.zone["patient.example"] = {"A": None}
    patient = asyncio.create_task(questions.ask("patient.example", "A"))
    await questions.ask("slow.example", "A")  # which takes ten times its patience
    assert not patient.done()
    patient.cancel()


async def test_answers_of_lying_name_servers_harm_nothing(name_server: NameServer) -> None:
    """A chain of names without end, records of another name, a reply to another question."""
    questions = asking(name_server, timeout="500ms")
    for n in range(30):
        name_server.zone[f"c{n}.example"] = {"CNAME": [f"c{n + 1}.example."]}
    name_server.zone["c30.example"] = {"A": ["192.0.2.7"]}
    error = await fails(questions, "c0.example")
    assert not error.permanent
