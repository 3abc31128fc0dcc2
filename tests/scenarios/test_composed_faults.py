"""Composed and scheduled mail beside hostile next hops, rows by hand and crashes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.database import PrivateServer
from tests.support.nexthop import EXTENSIONS, at
from tests.support.system import System
from tests.support.waiting import until

AGAIN = {"intervals": ["0.2s"], "jitter": 0.0}
SIMPLE = tuple(e for e in EXTENSIONS if e not in ("SMTPUTF8", "8BITMIME"))
POINTS = ("connect", "EHLO", "MAIL", "RCPT", "DATA", "content", "end of data")


def submit(system: System, name: str, more: str = "") -> int:
    (found,) = system.ask(
        "SELECT pgmta.submit_mail('s@a.example', ARRAY[%s], 'Grüße', repeat('Grüße ', 20000),"
        f" '<p>x</p>', bcc => ARRAY['bcc-' || %s]{more}) AS id",
        f"{name}@hop.example", f"{name}@hop.example",
    )  # fmt: skip
    return int(found["id"])


@pytest.mark.slow
@pytest.mark.parametrize("inline", ["1B", "8MB"])
def test_each_attempt_has_the_same_octets(system: System, inline: str) -> None:
    """Whichever point the connection ended at, and after an outcome that is unknown."""
    hops = {point: system.hop(at(point, drop=True, times=2)) for point in POINTS}
    hops["later"] = system.hop(at("end of data", "451 4.0.0 later", times=2))
    routes = {f"p{n}.example": hop.target for n, hop in enumerate(hops.values())}
    for domain in routes:
        system.ask(
            "SELECT pgmta.submit_mail('s@a.example', ARRAY[%s], 'Grüße', repeat('Grüße ', 20000),"
            " attachments => ARRAY[('a', 'a/b', convert_to(repeat('x', 20000), 'UTF8'), NULL)"
            "::pgmta.submit_attachment])", f"Ännchen <x@{domain}>",
        )  # fmt: skip
    system.queued(routes=routes, retry=AGAIN, delivery={"inline": inline})
    system.wait_empty()
    for hop in hops.values():
        contents = [t.content for t in hop.transactions if t.content]
        assert len(set(contents)) == 1
        assert (contents[0] or b"").isascii()


@pytest.mark.parametrize("inline", ["1B", "8MB"])
def test_a_host_without_extensions_gets_ascii_or_nothing(system: System, inline: str) -> None:
    hop = system.hop(extensions=SIMPLE)
    system.queued(hop, delivery={"inline": inline}, retry={"intervals": ["1h"]})
    submit(system, "plain")
    submit(system, "from", ", \"from\" => 'ä@a.example'")
    submit(system, "reply", ", reply_to => 'ä@a.example'")
    system.wait_empty()
    assert hop.deliveries() == {"plain@hop.example": 1, "bcc-plain@hop.example": 1}
    failed = [row["reply"] for row in system.attempts() if row["event"] == "failed"]
    assert failed == ["5.6.7 the next hop does not know SMTPUTF8"] * 4


BROKEN: dict[str, Any] = {
    "template": {"template_id": 999},
    "null": {"params": Jsonb(None)}, "list": {"params": Jsonb([])},
    "deep": {"params": f'{{"from": ["", "a@b.example"], "body": {"[" * 3000}{"]" * 3000}}}'},
    "text": {"params": Jsonb("x")}, "from": {"params": Jsonb({"from": ["x\r\ny", "a@b.example"]})},
    "address": {"params": Jsonb({"from": ["", "a@b.example>\r\nX: y"]})},
    "id": {"message_id_header": "<x>\r\nBcc: y"}, "noid": {"message_id_header": None},
    "tail": {"params": Jsonb({"from": ["", "a@b.example"], "tail": {"a": 1}})},
    "header": {"params": Jsonb({"from": ["", "a@b.example"], "headers": {"X-A": "x\ny"}})},
}  # fmt: skip
ODD: dict[str, Any] = {
    "number": {"params": '{"from": ["", "a@b.example"], "body": 1e9999}'},
    "size": {"size": -1},
    "large": {"size": 2**62},
    "none": {"size": 0},
}


@pytest.mark.parametrize("inline", ["1B", "8MB"])
def test_rows_that_were_changed_by_hand_stop_nobody(system: System, inline: str) -> None:
    """They are on hold, also with on_failed => 'remove'."""
    for name, changes in (BROKEN | ODD).items():
        number = submit(system, name, ", on_failed => 'remove'")
        for column, value in changes.items():
            system.ask(f"UPDATE messages SET {column} = %s WHERE id = %s", value, number)
    submit(system, "good")
    hop = system.hop()
    system.queued(hop, delivery={"inline": inline})
    rows = system.wait_queue(lambda rows: {r["status"] for r in rows} == {"HOLD"})
    held = {row["recipient"].partition("@")[0]: row["last_reply"] for row in rows}
    assert set(BROKEN) <= held.keys()
    assert all("5.6.0 it can't be composed" in held[name] for name in BROKEN)
    assert "good@hop.example" in hop.deliveries()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "crash", "read only"])
def test_due_mail_survives_a_fault(
    private_system: System, private_server: PrivateServer, fault: str
) -> None:
    """None is lost or early. None comes twice, unless the next hop could not say that it has it."""
    system = private_system
    with psycopg.connect(system.uri) as db:
        db.execute("CREATE TABLE public.claims (send_at timestamptz, at timestamptz)")
        db.execute(
            "CREATE FUNCTION public.seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO public.claims VALUES (NEW.send_at, clock_timestamp());"
            " RETURN NULL; END $$"
        )
        db.execute(
            "CREATE TRIGGER seen AFTER UPDATE ON pgmta.queue FOR EACH ROW WHEN (NEW.status ="
            " 'SENDING' AND OLD.status <> 'SENDING') EXECUTE FUNCTION public.seen()"
        )
    hop = system.hop()
    queued = system.queued(hop, retry=AGAIN, process={"lease": "3s", "poll": "100ms"})
    once, remove = ", once => true", ", on_failed => 'remove'"
    policies = ("", once, remove, once + remove)
    for n in range(40):
        ahead = 1.5 + n / 10
        submit(system, f"r{n}", f", send_at => now() + interval '{ahead} s'{policies[n % 4]}")
    hop.wait_kept(10)
    if fault == "kill":
        queued.kill()
        system.queued(hop, retry=AGAIN, process={"lease": "3s", "poll": "100ms"})
    elif fault == "crash":
        system.expected |= {"outcome is kept until the database takes it"}
        private_server.crash()
        private_server.start()
    else:
        private_server.read_only(True)
        overdue = "SELECT 1 FROM queue WHERE status = 'SCHEDULED' AND send_at < now()"
        until(lambda: system.ask(overdue))
        private_server.read_only(False)
    system.wait_queue(lambda rows: {r["status"] for r in rows} <= {"HOLD"})
    assert system.ask("SELECT * FROM public.claims WHERE at < send_at") == []
    counts = hop.deliveries()
    held = {r["recipient"] for r in system.queue()}
    gone = {a["recipient"] for a in system.attempts() if a["event"] == "unknown"}
    for n in range(40):
        for name in (f"r{n}@hop.example", f"bcc-r{n}@hop.example"):
            assert counts.get(name, 0) or name in held | gone, name
            if n % 2:
                assert counts.get(name, 0) <= 1, name
