"""Spans of OpenTelemetry over all processes, from an application to the next hop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import ROOT
from tests.support.nexthop import Do, Transaction, at
from tests.support.submit import post
from tests.support.system import System
from tests.support.waiting import PATIENCE, free_port

_CUSTOM = """
import os, sys
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

class Broken(Sampler):
    def should_sample(self, *arguments, **named):
        raise RuntimeError("broken sampler")
    def get_description(self):
        return "broken"

program = next((name for name in ("smtpd", "queued") if name in sys.orig_argv), "program")
out = open(f"{os.environ['SPANS']}/{os.getpid()}.jsonl", "a", buffering=1)
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider = TracerProvider(
    sampler=Broken() if os.environ.get("BROKEN") else ParentBased(ALWAYS_ON),
    resource=Resource({"service.name": program}),
)
# nothing is written before the end of the process
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
"""


@dataclass(frozen=True)
class SpanRecord:
    """A span as its exporter has written it."""

    name: str
    program: str
    pid: str
    trace: str
    id: str
    parent: str
    """The id of its parent, '' without one."""
    links: frozenset[tuple[str, str]]
    """Trace and id of each."""
    kind: str
    failed: bool
    values: dict[str, Any]

    @property
    def context(self) -> tuple[str, str]:
        """Trace and id."""
        return self.trace, self.id


class SpanLog:
    """A folder with a `sitecustomize.py` that sets the SDK up, and with the spans."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_CUSTOM)
        self._folder = folder
        self.environment = {
            "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
            "SPANS": str(folder),
        }
        """Variables of a process that writes its spans."""

    def run(self, program: str, *arguments: str) -> str:
        """Run a Python program to its end; return what it prints."""
        environment = os.environ | self.environment
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def text(self) -> str:
        """All that the exporters have written."""
        return "".join(path.read_text() for path in sorted(self._folder.glob("*.jsonl")))

    def spans(self, name: str = "") -> list[SpanRecord]:
        """The spans, or those of one name, of processes that have ended."""
        return [span for span in self._read() if not name or span.name == name]

    def _read(self) -> Iterator[SpanRecord]:
        for path in sorted(self._folder.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                span = json.loads(line)
                yield SpanRecord(
                    span["name"],
                    span["resource"]["attributes"]["service.name"],
                    path.stem,
                    span["context"]["trace_id"],
                    span["context"]["span_id"],
                    span["parent_id"] or "",
                    frozenset(
                        (link["context"]["trace_id"], link["context"]["span_id"])
                        for link in span["links"]
                    ),
                    span["kind"].partition(".")[2],
                    span["status"]["status_code"] == "ERROR",
                    span["attributes"],
                )


pytestmark = pytest.mark.slow

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"
UNRECORDED = f"00-{TRACE}-{SPAN}-00"
SECRET = "Confidential"
BODY = f"Subject: {SECRET}\r\n\r\n{SECRET}\r\n"
BAD = ["", "00", 7, None, [GIVEN], f"01-{TRACE}-{SPAN}-01", f"{GIVEN} ", GIVEN.upper(),
       f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-1",
       UNRECORDED, "\u0660" * 55, "x" * 1000]  # fmt: skip

SMTP_APPLICATION = """
import smtplib, sys
from opentelemetry import propagate, trace
with trace.get_tracer("shop").start_as_current_span("order"):
    fields = {}
    propagate.inject(fields)
    with smtplib.SMTP("127.0.0.1", int(sys.argv[1])) as session:
        head = "".join(f"{name.title()}: {value}\\r\\n" for name, value in fields.items())
        session.sendmail(sys.argv[3], sys.argv[4:], head + sys.argv[2])
"""

CLIENT_APPLICATION = """
import asyncio, sys
import psycopg
from opentelemetry import trace
import pgmta
tracer, uri = trace.get_tracer("shop"), sys.argv[1]

def mail(name, **options):
    return pgmta.Mail(sender="s@shop.example", to=[f"{name}@a.example"], subject="Confidential",
                      body="Confidential", **options)

async def main():
    async with pgmta.Client(uri) as client:
        with tracer.start_as_current_span("send"):
            await client.send(mail("anna"))
        with tracer.start_as_current_span("own"):
            await client.send(mail("bert", metadata={"_trace": sys.argv[2], "x": 1}))
        with tracer.start_as_current_span("many"):
            await client.send_many(mail(n) for n in ("carl", "", "dora"))
        with tracer.start_as_current_span("refused"):
            try:
                await client.send(mail("\\0"))
            except pgmta.SubmissionError:
                pass
        with trace.use_span(trace.NonRecordingSpan(trace.INVALID_SPAN_CONTEXT)):
            await client.send(mail("emil"))
        unrecorded = trace.SpanContext(1, 1, False)
        with trace.use_span(trace.NonRecordingSpan(unrecorded)):
            await client.send(mail("fred"))
    async with await psycopg.AsyncConnection.connect(uri) as connection:
        with tracer.start_as_current_span("later"):
            await pgmta.enqueue(connection, mail("gina"))

asyncio.run(main())
with pgmta.SyncClient(uri) as client, tracer.start_as_current_span("sync"):
    client.send(mail("hans"))
    client.send_many([mail("ines"), mail("jana")])
with psycopg.connect(uri) as connection, tracer.start_as_current_span("enqueue"):
    pgmta.enqueue(connection, mail("kurt"))
"""


@pytest.fixture
def log(tmp_path: Path) -> SpanLog:
    """The spans of programs that are started with its environment."""
    return SpanLog(tmp_path / "spans")


def messaging(span: SpanRecord) -> tuple[str, str, str]:
    """System, operation and its type, by the semantic conventions."""
    names = ("system", "operation.name", "operation.type")
    return tuple(span.values[f"messaging.{name}"] for name in names)


def check_batches(log: SpanLog, mails: set[tuple[str, str]]) -> None:
    """Each claim and settle begins a trace, and their links lead to the mails and deliveries."""
    claims, settles, delivers = (log.spans(name) for name in ("claim", "settle", "deliver"))
    assert not any(span.parent for span in (*claims, *settles))
    assert {link for span in claims for link in span.links} == mails
    assert {link for span in settles for link in span.links} == {d.context for d in delivers}
    claimed = {span.context for span in claims}
    assert all(len(span.links) == 1 and span.links <= claimed for span in delivers)
    assert {messaging(span) for span in claims} == {("pgmta", "claim", "receive")}
    assert {messaging(span) for span in settles} == {("pgmta", "settle", "settle")}
    assert {span.kind for span in (*claims, *settles)} == {"CLIENT"}
    workers = {span.values["messaging.consumer.group.name"] for span in (*claims, *settles)}
    assert workers == {"deliver"}
    assert all(span.values["messaging.batch.message_count"] >= 1 for span in (*claims, *settles))
    assert not any(span.failed for span in (*claims, *settles))


class Greylisting:
    """A next hop that refuses one recipient, and defers another one once for each sender."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point == "RCPT" and "unknown@" in line:
            return Do(line="550 5.7.1 not wanted unknown@b.example")
        late = point == "RCPT" and "late@" in line
        if late and transaction and transaction.sender not in self._seen:
            self._seen.add(transaction.sender)
            return Do(line="450 4.7.1 late@c.example: later")
        return None


def test_an_application_by_smtp(system: System, log: SpanLog) -> None:
    system.environment = log.environment
    hop = system.hop(Greylisting())
    port = free_port()
    listen = [{"port": port, "role": "internal", "trust_traceparent": True, "on_failed": "remove"}]
    system.smtpd(processes=2, listen=listen)
    queued = [system.queued(hop) for _ in range(2)]
    recipients = ["anna@a.example", "unknown@b.example", "late@c.example"]
    for sender in ("first@shop.example", "second@shop.example"):
        log.run(SMTP_APPLICATION, str(port), BODY, sender, *recipients)
    system.wait_empty()
    system.stop()

    orders, accepts, delivers = (log.spans(name) for name in ("order", "accept", "deliver"))
    assert {s.parent for s in accepts} == {order.id for order in orders}
    assert {s.trace for s in accepts} == {order.trace for order in orders}
    assert len(accepts) == 2
    for accept in accepts:
        assert accept.program == "smtpd"
        assert (accept.kind, accept.failed) == ("SERVER", False)
        assert messaging(accept) == ("pgmta", "accept", "send")
        assert accept.values["pgmta.recipients"] == 3
        own = [s for s in delivers if s.parent == accept.id]
        assert {s.trace for s in own} == {accept.trace}
        found = {
            (s.values["messaging.destination.name"], s.values["pgmta.attempt"]): s for s in own
        }
        assert len(own) == 4
        assert {key: (s.values["pgmta.outcome"], s.failed) for key, s in found.items()} == {
            ("a.example", 1): ("delivered", False),
            ("b.example", 1): ("failed", True),
            ("c.example", 1): ("deferred", True),
            ("c.example", 2): ("delivered", False),
        }
        for span in own:
            assert messaging(span) == ("pgmta", "deliver", "process")
            assert (span.kind, span.program) == ("CONSUMER", "queued")
            for name in ("messaging.message.id", "messaging.message.body.size"):
                assert span.values[name] == accept.values[name]
            assert (span.values["server.address"], span.values["server.port"]) == (
                "127.0.0.1",
                hop.port,
            )
        refused = found["b.example", 1].values
        assert (refused["pgmta.reply.code"], refused["pgmta.reply.enhanced"]) == (550, "5.7.1")
        assert refused["pgmta.answer.class"] == refused["error.type"] == "policy"
    assert len(delivers) == 8
    check_batches(log, {accept.context for accept in accepts})
    assert {s.pid for s in delivers} <= {str(each.pid) for each in queued}
    for secret in ("@", "anna", "unknown@", "late@", "first", SECRET, "shop.example", "not wanted"):
        assert secret not in log.text


def test_an_application_with_the_client(system: System, log: SpanLog) -> None:
    log.run(CLIENT_APPLICATION, system.uri, GIVEN)
    stored = {row["recipient"][:4]: row["metadata"] for row in system.queue()}
    assert stored.pop("bert") == {"_trace": GIVEN, "x": 1}
    assert stored.pop("fred") == {}
    assert all(len(metadata) == 1 for metadata in stored.values())
    system.environment = log.environment
    system.queued(system.hop())
    system.wait_empty()
    system.stop()

    submits = log.spans("submit")
    assert {messaging(span) for span in submits} == {("pgmta", "submit", "send")}
    assert {(span.kind, span.program) for span in submits} == {("PRODUCER", "program")}
    outer = {s.id: s.name for s in log.spans() if s.program == "program" and s.name != "submit"}
    delivered = Counter(span.parent for span in log.spans("deliver"))
    count = "messaging.batch.message_count"
    found = [
        (outer.get(s.parent, ""), s.values.get(count), s.failed, delivered[s.id]) for s in submits
    ]
    assert sorted(found, key=str) == sorted(
        [
            ("send", None, False, 1),
            ("own", None, False, 0),
            ("many", 3, True, 2),
            ("refused", None, True, 0),
            ("", None, False, 1),
            ("later", None, False, 1),
            ("sync", None, False, 1),
            ("sync", 2, False, 2),
            ("enqueue", None, False, 1),
        ],
        key=str,
    )
    assert {s.values["error.type"] for s in submits if s.failed} == {"SubmissionError"}
    assert [s.values.get("pgmta.refused") for s in submits if s.values.get(count) == 3] == [1]
    ids = {s.values["messaging.message.id"] for s in log.spans("deliver")}
    single = {
        s.values["messaging.message.id"] for s in submits if not s.failed and count not in s.values
    }
    assert single <= ids
    assert delivered[f"0x{SPAN}"] == 1
    assert all(s.trace == f"0x{TRACE}" for s in log.spans("deliver") if s.parent == f"0x{SPAN}")
    for secret in ("@", "anna", SECRET):
        assert secret not in log.text


def test_who_is_trusted(system: System, log: SpanLog) -> None:
    """A listener trusts the field Traceparent if its option says so, also after SIGHUP."""
    system.environment = log.environment
    hop = system.hop()
    smtpd = system.smtpd()
    system.queued(hop)

    def post_with(*values: object) -> str:
        fields = "".join(f"Traceparent: {value}\r\n" for value in values)
        content = f"{fields}Subject: x\r\n\r\n".encode()
        return str(post(smtpd.port, "a@a.example", ["b@b.example"], content))

    strangers = {post_with(GIVEN), post_with(UNRECORDED)}
    smtpd.config["listen"][0]["trust_traceparent"] = True
    smtpd.write(smtpd.config)
    smtpd.signal(1)
    smtpd.wait_log("serving", 2)
    known, folded = post_with(f"{GIVEN} "), post_with(f"\r\n {GIVEN}")
    unrecorded = post_with(UNRECORDED)
    without = {post_with(), post_with(GIVEN, GIVEN), post_with(GIVEN[:-1]), post_with(f"1{GIVEN}")}
    system.wait_empty()
    system.stop()

    accepts = {span.values["messaging.message.id"]: span for span in log.spans("accept")}
    roots = strangers | without
    assert accepts.keys() == roots | {known, folded}
    assert {name for name, span in accepts.items() if not span.parent} == roots
    assert len({accepts[name].trace for name in roots}) == len(roots)
    for name in (known, folded):
        assert (accepts[name].trace, accepts[name].parent) == (f"0x{TRACE}", f"0x{SPAN}")
    delivers = {span.values["messaging.message.id"]: span for span in log.spans("deliver")}
    assert {name: span.parent for name, span in delivers.items()} == {
        name: span.id for name, span in accepts.items()
    }
    assert unrecorded not in accepts
    fields = [t.content.count(b"Traceparent:") for t in hop.transactions if t.content]
    assert sorted(fields) == [0, 1, 1, 1, 1, 1, 1, 1, 2]  # content stays as it is


def test_smtpd_without_sdk_hands_on_a_trusted_field(system: System, log: SpanLog) -> None:
    hop = system.hop()
    smtpd = system.smtpd(listen=[{"port": free_port(), "trust_traceparent": True}])
    for value in (GIVEN, UNRECORDED, "x"):
        content = f"Traceparent: {value}\r\n\r\n".encode()
        post(smtpd.port, "a@a.example", ["b@b.example"], content)
    assert [row["metadata"] for row in system.queue()] == [{"_trace": GIVEN}, {}, {}]
    system.environment = log.environment
    system.queued(hop)
    system.wait_empty()
    system.stop()
    assert [(s.name, s.trace, s.parent) for s in log.spans("deliver")] == [
        ("deliver", f"0x{TRACE}", f"0x{SPAN}")
    ]


def test_metadata_by_hand(system: System, log: SpanLog) -> None:
    """A bad `_trace` in a row costs its spans and nothing else; so does that of a DSN."""
    hop = system.hop(at("RCPT", "550 5.1.1 unknown", times=1))
    good = system.enqueue(
        "unknown@b.example",
        metadata=json.dumps({"_trace": GIVEN, "a": {"b": 1}}),
        sender="s@b.example",
        on_failed="bounce",
    )
    for value in BAD:
        system.enqueue("r@b.example", metadata=json.dumps({"_trace": value}), priority=6)
    system.enqueue("r@b.example", metadata=json.dumps({"x": '"_trace"'}), priority=6)
    system.environment = log.environment
    system.queued(hop, bounces={"gather": "0s"})
    system.wait_empty()
    system.stop()
    (deliver,) = log.spans("deliver")
    assert (deliver.trace, deliver.parent) == (f"0x{TRACE}", f"0x{SPAN}")
    assert deliver.values["messaging.message.id"] == str(good)
    assert sum(1 for t in hop.transactions if t.content) == len(BAD) + 2  # with the DSN
    check_batches(log, {(f"0x{TRACE}", f"0x{SPAN}")})


def test_sql_gives_a_trace_context(system: System, log: SpanLog) -> None:
    system.environment = log.environment
    system.ask(
        "SELECT submit_mail('a@a.example', ARRAY['b@b.example', 'c@b.example'], 'x', 'x',"
        " metadata => jsonb_build_object('_trace', %s::text), wake => true)",
        GIVEN,
    )
    system.queued(system.hop())
    system.wait_empty()
    system.stop()
    assert [s.parent for s in log.spans("deliver")] == [f"0x{SPAN}"] * 2


def test_a_broken_sampler_costs_no_mail(system: System, log: SpanLog) -> None:
    system.environment = log.environment | {"BROKEN": "1"}
    hop = system.hop()
    listen = [{"port": free_port(), "role": "internal", "trust_traceparent": True}]
    smtpd = system.smtpd(listen=listen)
    system.enqueue("r@b.example", metadata=json.dumps({"_trace": GIVEN}))
    queued = system.queued(hop)
    post(smtpd.port, "a@a.example", ["b@b.example"], b"Subject: x\r\n\r\nx\r\n")
    system.wait_empty()
    system.stop()
    assert sum(1 for t in hop.transactions if t.kept) == 2
    assert log.spans() == []
    for daemon in (smtpd, queued):
        assert any("broken sampler" in str(entry) for entry in daemon.log)
    system.expected |= {entry["event"] for daemon in (smtpd, queued) for entry in daemon.faults()}


def test_without_a_provider_daemons_import_nothing_of_it(system: System) -> None:
    """Although the API is installed."""
    system.environment = {"PYTHONPROFILEIMPORTTIME": "1"}
    hop = system.hop()
    smtpd = system.smtpd()
    queued = system.queued(hop)
    post(smtpd.port, "a@a.example", ["b@b.example"], b"Subject: x\r\n\r\nx\r\n")
    system.wait_empty()
    system.stop()
    for daemon in (smtpd, queued):
        lines = [entry["event"] for entry in daemon.log if entry.get("level") == "raw"]
        assert any(line.endswith("| pgmta.tracing") or "pgmta.tracing" in line for line in lines)
        assert not any("opentelemetry" in line for line in lines)
        system.expected.update(lines)
