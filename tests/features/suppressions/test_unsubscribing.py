"""From the mail at the next hop to `queued web` and back: one click, scanners, forged tokens."""

from __future__ import annotations

import re
import subprocess
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from pgmta.compose.token import KeyRing, LinkNumbers, Purpose, TokenKey
from pgmta.features import folder
from pgmta.postgres.embedded.programs import tool
from queued.web.pages import page_texts
from tests.features.suppressions.campaign import UNSUBSCRIBE, Campaign, sections, token
from tests.support.dkim import Keys
from tests.support.nexthop import Do, Transaction, as_usual, holding_at
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import until
from tests.web.web import RINGS, Answer, Web

FORM = "application/x-www-form-urlencoded"
ONE_CLICK = "List-Unsubscribe=One-Click"
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{67,86}")


def click(web: Web, text: str, body: str = ONE_CLICK, kind: str = FORM) -> Answer:
    """Send what a provider sends, whose reader pressed its button."""
    return web.ask("POST", f"/unsubscribe?token={text}", body, Content_Type=kind)


def multipart(*fields: tuple[str, str]) -> tuple[str, str]:
    """A form in parts, and its type."""
    parts = [
        f'--xYz\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields
    ]
    return "".join(parts) + "--xYz--\r\n", "multipart/form-data; boundary=xYz"


def refuses_bob(point: str, line: str, transaction: Transaction | None) -> Do | None:
    if point == "end of data" and transaction and "bob@b.example" in transaction.recipients:
        return Do(line="554 5.7.1 no")
    return None


def test_from_the_mail_to_the_suppression(
    database: str, system: System, web: Web, campaign: Campaign, tmp_path: Path
) -> None:
    keys, hop = Keys(tmp_path), system.hop(refuses_bob)
    daemon = system.queued(hop, **sections(tmp_path, web.url), signing={"keys": [keys.entry("e")]})
    campaign.add("ann@b.example", "bob@b.example", "eve@b.example")
    campaign.start()
    hop.wait_kept(2)
    until(lambda: fetch(campaign.db, "SELECT count(*) FROM queue") == (0,))
    links = {}
    for kept in hop.kept:
        content = kept.content or b""
        mail = message_from_bytes(content, policy=default)
        assert mail["List-Unsubscribe-Post"] == ONE_CLICK
        (link,) = re.findall("<(.*)>", str(mail["List-Unsubscribe"]))
        for kind in ("plain", "html"):
            part = mail.get_body((kind,))
            assert part
            assert link in part.get_content()
        assert link.startswith(f"{web.url}/unsubscribe?token=")
        (signer,) = keys.signers(content)
        assert signer == "a.example/e"
        (signed,) = re.findall(r"\bh=([^;]*);", str(mail["DKIM-Signature"]))
        names = {name.strip().lower() for name in signed.split(":")}
        assert {"list-unsubscribe", "list-unsubscribe-post"} <= names
        links[kept.recipients[0]] = link
    assert len(set(links.values())) == 2
    until(lambda: fetch(campaign.db, "SELECT count(*) FROM transcripts") == (1,))

    parts = urlsplit(links["ann@b.example"])
    answer = web.ask("POST", f"{parts.path}?{parts.query}", ONE_CLICK, Content_Type=FORM)
    assert (answer.status, "location" in answer.headers) == (200, False)
    assert campaign.reasons() == ["ann@b.example news unsubscribed"]
    again = web.ask("POST", f"{parts.path}?{parts.query}", ONE_CLICK, Content_Type=FORM)
    assert again.status == 200

    dump = subprocess.run([tool("pg_dump"), database], capture_output=True, check=True).stdout
    assert b"ann@b.example" in dump
    for text in (dump, daemon.story().encode(), web.story().encode()):
        for found in _TOKEN.findall(text):
            assert RINGS[UNSUBSCRIBE].verify(found.decode()) is None


def test_scanners_change_nothing_and_one_click_in_parts_does(web: Web, campaign: Campaign) -> None:
    campaign.add("ann@b.example")
    link = f"/unsubscribe?token={token(campaign.id, 1)}"
    for method in ("GET", "HEAD"):
        for more in ({}, {"Purpose": "prefetch"}, {"Sec_Purpose": "prefetch;prerender"}):
            answer = web.ask(method, link, Accept="text/html", **more)
            assert answer.status == 200
            assert answer.headers["cache-control"] == "no-store"
    assert b"<script" not in answer.body
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert web.ask(method, link, ONE_CLICK, Content_Type=FORM).status == 405
    other = [("", FORM), ("x=y", FORM), (ONE_CLICK, "text/plain"), ("{}", "application/json"),
             multipart(("List-Unsubscribe", "Two-Clicks")), ("junk", "multipart/form-data"),
             ("--x", "multipart/form-data; boundary*00=x; boundary*=x"),
             ("List-Unsubscribe=", FORM)]  # fmt: skip
    for body, kind in other:
        assert click(web, token(campaign.id, 1), body, kind).status in (400, 415)
    assert campaign.reasons() == []
    # RFC 8058, section 3.1: multipart/form-data is what senders should expect too
    body, kind = multipart(("List-Unsubscribe", "One-Click"))
    assert click(web, token(campaign.id, 1), body, kind).status == 200
    assert campaign.suppressed("ann@b.example") == [True]


def test_the_button_of_the_page(web: Web, campaign: Campaign) -> None:
    campaign.add("ann@b.example")
    assert web.ask("GET", "/ready").status == 200, "web.yaml has no keys of the schema lifecycle"
    text = token(campaign.id, 1)
    for language, words in page_texts([folder("suppressions")]).items():
        page = web.ask("GET", f"/unsubscribe?token={text}", Accept_Language=language)
        assert page.headers["content-language"] == language
        assert words["unsubscribe_button"] in page.body.decode()
        assert page.body.count(b"<button") == 1
    answer = web.post("/unsubscribe", text)
    assert (answer.status, answer.headers["location"]) == (303, f"{web.url}/unsubscribed")
    assert b"unsubscribed" in web.ask("GET", "/unsubscribed").body
    assert campaign.suppressed("ann@b.example") == [True]


def test_forged_and_swapped_tokens_have_equal_answers(web: Web, campaign: Campaign) -> None:
    campaign.add("ann@b.example", "bob@b.example")
    good, other = token(campaign.id, 1), token(campaign.id, 2)
    key = bytes.fromhex("c" * 64)
    bad = {
        "another key": KeyRing(UNSUBSCRIBE, [TokenKey("x", b"x" * 32)]).sign(
            LinkNumbers(campaign.id, 1).octets
        ),
        # the numbers of one, and the signature of another
        "swapped": good[:24] + other[24:],
        "no such recipient": token(campaign.id, 3),
        "no such campaign": token(campaign.id + 1, 1),
        "largest": RINGS[UNSUBSCRIBE].sign(b"\x7f" + b"\xff" * 17),
        "smallest": RINGS[UNSUBSCRIBE].sign(b"\x80" + b"\0" * 17),
        "mail before the log": RINGS[UNSUBSCRIBE].sign(LinkNumbers(-1, 1, 1).octets),
        "another purpose": KeyRing(Purpose.ACTIVATE, [TokenKey("k1", key)]).sign(b"1" * 32),
        "cut": good[:-1],
        "longer": good + "A",
        "another spelling": good[:-1] + chr(ord(good[-1]) + 1),
        "empty": "",
        "not ASCII": "%C3%BC" * 20,
    }
    assert LinkNumbers(campaign.id, 1).octets == RINGS[UNSUBSCRIBE].verify(good)
    answers = [click(web, text) for text in bad.values()]
    for answer in answers:
        answer.headers.pop("date")
    assert {answer.status for answer in answers} == {422}
    assert all(answer == answers[0] for answer in answers), list(bad)
    assert campaign.reasons() == []
    assert click(web, good).status == 200, "successes are not limited"


def test_refusals_are_limited(web: Web, campaign: Campaign) -> None:
    campaign.add("ann@b.example")
    statuses = [click(web, "A" * 67).status for _ in range(21)]
    assert statuses == [422] * 20 + [429]
    assert click(web, token(campaign.id, 1)).status == 429
    assert campaign.reasons() == []


def test_forgotten_recipient_and_test_message(
    web: Web, db: psycopg.Connection, campaign: Campaign
) -> None:
    campaign.add("ann@b.example")
    db.execute("SELECT forget('ann@b.example', part) FROM forget_parts() AS part")
    assert click(web, token(campaign.id, 1)).status == 200
    assert click(web, token(campaign.id, 0)).status == 200
    (reason,) = campaign.reasons()
    assert reason.endswith(" forgotten")


def test_rights_of_the_role(db: psycopg.Connection) -> None:
    db.execute("SET ROLE pgmta_web")
    may = column(
        db,
        "SELECT p.proname::text FROM pg_proc AS p, aclexplode(p.proacl) AS a"
        " WHERE a.grantee = 'pgmta_web'::regrole ORDER BY 1",
    )
    assert may == ["callbacks_note", "unsubscribe"]
    assert fetch(db, "SELECT pgmta.unsubscribe(1, 1, '2026-01-01')") == (False,)


def test_mail_waits_without_a_url(system: System, campaign: Campaign, tmp_path: Path) -> None:
    hop = system.hop()
    worker = system.queued(hop, retry={"intervals": ["100ms"]})
    campaign.add("ann@b.example")
    campaign.start()
    worker.wait_log("waits for a key")
    assert hop.kept == []
    changed = sections(tmp_path, "https://mail.example")
    worker.reload(worker.config | changed)
    hop.wait_kept(1)
    assert b"https://mail.example/unsubscribe?token=" in (hop.kept[0].content or b"")


@pytest.mark.slow
def test_suppressed_while_it_waits_for_a_connection(
    system: System, web: Web, campaign: Campaign, tmp_path: Path
) -> None:
    """A worker has the rows, and no transaction has begun: as one that waits for its slot."""
    hop = system.hop(holding_at("connect"))
    system.queued(hop, **sections(tmp_path, web.url))
    campaign.add("ann@b.example", "bob@b.example")
    campaign.start()
    hop.wait(lambda: hop.connections)
    system.wait_queue(lambda rows: [row["status"] for row in rows] == ["SENDING"] * 2)
    assert click(web, token(campaign.id, 1)).status == 200
    hop.script = as_usual
    hop.release()
    hop.wait_kept(1)
    until(lambda: campaign.states() == {"ann@b.example": "invalid", "bob@b.example": "sent"})
    assert [kept.recipients for kept in hop.kept] == [["bob@b.example"]]
    system.wait_empty()
