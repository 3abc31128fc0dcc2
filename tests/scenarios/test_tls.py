"""TLS with next hops of the running daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from tests.support.certificates import Certificate
from tests.support.nexthop import EXTENSIONS, at
from tests.support.system import System
from tests.support.waiting import until

ROOT = Certificate.root()
GOOD, OTHER = ROOT.issue("localhost"), ROOT.issue("mx.b.example")
LATER = {"intervals": ["1h"], "jitter": 0.0}


def ca(folder: Path) -> dict[str, str]:
    return {"ca": str(ROOT.files(folder)[0])}


def test_mail_goes_only_to_a_host_that_is_verified(system: System, tmp_path: Path) -> None:
    good, other = system.hop(tls=GOOD.server(tmp_path)), system.hop(tls=OTHER.server(tmp_path))
    routes = {f"{name}.example": f"localhost:{hop.port}" for name, hop in
              (("good", good), ("other", other))}  # fmt: skip
    tls = {"mode": "verify", **ca(tmp_path)}
    system.queued(routes=routes, retry=LATER, delivery={"tls": tls})
    system.enqueue("x@good.example", "x@other.example")
    assert good.wait_kept(1)
    (row,) = system.wait_queue(lambda rows: [r["status"] for r in rows] == ["DEFERRED"])
    assert "4.7.5 TLS with localhost: " in row["last_reply"]
    (attempt,) = system.attempts("x@other.example")
    assert attempt["command"] == "STARTTLS"
    assert not other.transactions


def test_plain_text_after_broken_tls_is_known_to_all_workers(
    system: System, tmp_path: Path
) -> None:
    hop = system.hop(at("STAR", drop=True), tls=GOOD.server(tmp_path))
    hop.extensions = ()
    config: dict[str, Any] = {"routes": {"*": f"localhost:{hop.port}"}, "delivery": {"idle": 0}}
    first = system.queued(**config)
    for number, name in enumerate("xy", 1):
        assert not system.ask("SELECT FROM broken_tls"), "one failure may have any cause"
        system.enqueue(f"{name}@b.example")
        hop.wait_kept(number)
    (host,) = until(lambda: system.ask("SELECT host FROM broken_tls"))
    assert host == {"host": f"localhost:{hop.port}"}
    queued = system.queued(**config)
    for number in range(3, 8):
        system.enqueue(f"{number}@b.example")
        hop.wait_kept(number)
    assert hop.commands.count("STARTTLS") == 2
    config["delivery"]["tls"] = {"minimum": "TLSv1.3"}
    queued.reload(config)
    first.stop()
    system.enqueue("z@b.example")
    hop.wait_kept(8)
    assert hop.commands.count("STARTTLS") == 3, "it failed under other settings"


def test_requiretls_is_asked_of_the_host(system: System, tmp_path: Path) -> None:
    able = system.hop(extensions=(*EXTENSIONS, "REQUIRETLS"), tls=GOOD.server(tmp_path))
    unable = system.hop(tls=GOOD.server(tmp_path))
    plain = system.hop()
    routes = {f"{name}.example": f"localhost:{hop.port}" for name, hop in
              (("able", able), ("unable", unable), ("plain", plain))}  # fmt: skip
    for name in routes:
        system.enqueue(f"x@{name}")
    system.enqueue("usual@able.example")
    with psycopg.connect(system.uri) as db:
        db.execute(
            "UPDATE messages SET requiretls = true WHERE id IN"
            " (SELECT message_id FROM queue WHERE recipient LIKE 'x@%')"
        )
    system.queued(routes=routes, retry=LATER, delivery={"tls": ca(tmp_path)})
    able.wait_kept(2)
    mails = {each.recipients[0]: each.mail for each in able.kept}
    assert mails["x@able.example"].endswith(" REQUIRETLS")
    assert "REQUIRETLS" not in mails["usual@able.example"]
    connections = {each.connection for each in able.kept}
    assert len(connections) == 2  # not in a session of other mail
    rows = {
        row["recipient"]: row
        for row in system.wait_queue(
            lambda rows: sorted(r["status"] for r in rows) == ["DEFERRED", "HOLD"]
        )
    }
    assert rows["x@unable.example"]["last_reply"].startswith("5.7.30 ")
    assert rows["x@plain.example"]["last_reply"].startswith("4.7.4 ")


def test_bounces_of_requiretls_are_headers_that_ask_for_it(system: System, tmp_path: Path) -> None:
    """RFC 8689, section 5: the null reverse-path goes to hosts that do not know it, too."""
    able = system.hop(extensions=(*EXTENSIONS, "REQUIRETLS"), tls=GOOD.server(tmp_path))
    unaware = system.hop(tls=GOOD.server(tmp_path))
    refusing = system.hop(
        at("RCPT", "550 5.1.1 No such user"), (*EXTENSIONS, "REQUIRETLS"), GOOD.server(tmp_path)
    )
    plain = system.hop(extensions=(*EXTENSIONS, "REQUIRETLS"))  # announced in plain text
    hops = {"able": able, "unaware": unaware, "plain": plain, "refusing": refusing}
    for sender in ("able", "unaware", "plain"):
        system.enqueue(
            f"{sender}@refusing.example", sender=f"ann@{sender}.example", on_failed="bounce"
        )
    system.enqueue("relayed@unaware.example", sender="")
    with psycopg.connect(system.uri) as db:
        db.execute("UPDATE messages SET requiretls = true, ret = 'FULL'")
    routes = {f"{name}.example": f"localhost:{hop.port}" for name, hop in hops.items()}
    system.queued(routes=routes, retry=LATER, delivery={"tls": ca(tmp_path)})
    (to_able,), (to_plain,) = able.wait_kept(1), plain.wait_kept(1)
    to_unaware = unaware.wait_kept(2)
    assert to_able.mail.startswith("MAIL FROM:<> ")
    assert to_able.mail.endswith(" REQUIRETLS")
    assert not [each for each in (to_plain, *to_unaware) if "REQUIRETLS" in each.mail]
    contents = [each.content or b"" for each in (to_able, to_plain, *to_unaware)]
    bounces = [each for each in contents if b"Action: failed" in each]
    assert len(bounces) == 3
    for bounce in bounces:
        assert b"text/rfc822-headers" in bounce
        assert b"message/rfc822" not in bounce
    system.wait_empty()
