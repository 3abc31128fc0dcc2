"""Postfix and Exim as next hops take DSNs without a warning, and pass them on as they are."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bench.peer.cells import Cell
from bench.peer.postfix import Postfix, Relay
from bench.peer.system import Running
from queued.reports.text.dsn import Original, Report
from tests.peers.collector import Collector
from tests.peers.exim import CONFIG, Exim
from tests.queued.reports.text.dsn_parts import octets
from tests.queued.reports.text.test_compose import composed, recipient, report
from tests.queued.reports.text.test_dsn_readers import reports
from tests.support.packages import folder
from tests.support.system import System
from tests.support.waiting import until

pytestmark = pytest.mark.needs("root")
CELL = Cell("e2e", 1, sessions=20)
# encodings of parts as RFC 2046 has them, or the message is refused
STRICT = {
    "strict_mime_encoding_domain": "yes",
    "receive_override_options": "no_address_mappings, no_milters",
}
SYNTAX = "keep_environment =\n" + CONFIG.replace(
    "acl_smtp_data = accept_all", "acl_smtp_data = check_header"
).replace(
    "begin acl\n", "begin acl\ncheck_header:\n  require verify = header_syntax\n  accept\n"
)  # fmt: skip
BAD = re.compile(r"warning|error|fatal|panic|reject|refuse|malformed|syntax", re.IGNORECASE)


def dsns() -> dict[str, bytes]:
    """DSNs by their recipients."""
    kinds = dict(reports())
    header = "From: grün@a.example\r\nSubject: grüße\r\n".encode()
    whole = header + "\r\nSchöne Grüße\r\n".encode()
    original = Original(header, len(whole), whole)
    kinds["utf8"] = report(recipient(recipient="grün@b.example"), utf8=True, original=original)
    kinds["utf8 header"] = report(
        *kinds["utf8"].recipients, utf8=True, original=original, ret="HDRS"
    )
    for kind in ("delayed", "relayed", "delivered"):
        kinds[kind] = report(recipient(report_kind=kind), kind=kind)
    kinds["hostile"] = report(
        recipient(recipient="a\r\nBcc: e@e.example", reply="550 \x00\r\n\r\n.\r\nx" + "y" * 3000),
        message_id="<a>\r\nX: y",
        envid="+0D+0AX:",
    )
    found = {}
    for number, what in enumerate(kinds.values()):
        _address(what, f"user{number}@peer.test")
        found[what.sent_to] = octets(composed(what, message_id_header=f"<{number}@relay.example>"))
    return found


def _address(what: Report, address: str) -> None:
    what.sent_to = what.sender = address


def _through(
    system: System, hop: Collector, peer: AbstractContextManager[Running | Relay], logs: list[Path]
) -> None:
    sent = dsns()
    with peer as running:
        for address, content in sent.items():
            system.enqueue(address, sender="", content=content)
        system.queued(routes={"*": f"127.0.0.1:{running.port}"}, delivery={"tls": {"mode": "none"}})
        until(lambda: len(hop.arrived) == len(sent), 90, "everything at the collector")
        system.wait_empty()
    for address, content in sent.items():
        [found] = hop.arrived[address]
        assert found.endswith(b"Received: by test\r\n" + content), address
    log = "".join(path.read_text(errors="replace") for path in logs if path.exists())
    assert log
    assert not [line for line in log.splitlines() if BAD.search(line)]


@pytest.mark.needs("postfix")
def test_postfix(system: System, place: Path, hop: Collector) -> None:
    server = Postfix(folder(), STRICT)
    _through(system, hop, server.start(CELL, place, hop.port), [place / "log" / "maillog"])


@pytest.mark.needs("exim4-daemon-light")
def test_exim(system: System, place: Path, hop: Collector) -> None:
    logs = [place / "log" / f"{name}log" for name in ("main", "reject", "panic")]
    server = Exim(folder(), SYNTAX)
    _through(system, hop, server.start(CELL, place, hop.port), logs)
