"""Mail of no campaign from which its recipients unsubscribe: its links, and whom they name."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg.types.json import Jsonb

from pgmta import Client
from pgmta.compose.submitted_mail import Mail, RawMail, TemplateMail
from pgmta.compose.template import TemplateSource, compile_template
from pgmta.compose.token import LinkNumbers
from pgmta.errors import PgmtaError, SubmissionError
from pgmta.postgres.operator import connected
from pgmta.store.changes.templates import NamedTemplate, TemplateTable
from tests.features.suppressions.campaign import SOURCE, UNSUBSCRIBE, sections
from tests.features.suppressions.test_unsubscribing import FORM, ONE_CLICK, click, multipart
from tests.support.dkim import Keys
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.web.web import RINGS, Web

RAW = b"From: a@a.example\r\nSubject: raw\r\n\r\nHello\r\n"
WORDS = {"name": "Ann"}


@pytest.fixture
def news(db: psycopg.Connection) -> psycopg.Connection:
    """A database that knows the scopes news and offers."""
    for scope in ("news", "offers"):
        db.execute("SELECT suppression_scope(%s)", (scope,))
    return db


async def put(database: str, source: TemplateSource, name: str = "news") -> int:
    """Store a template as `queuectl template put` does; return its version."""
    async with connected(database) as db:
        given = NamedTemplate("", name, source, compile_template(source))
        [(version, _)] = await TemplateTable(db, "test").put([given])
    return version


def reasons(db: psycopg.Connection) -> list[str]:
    return column(
        db,
        "SELECT concat_ws(' ', address, tenant || '/' || scope, reason, source) FROM suppressions"
        " WHERE released_at IS NULL ORDER BY address, scope",
    )


@pytest.mark.slow
async def test_from_each_way_in_to_one_click(
    database: str, news: psycopg.Connection, system: System, web: Web, tmp_path: Path
) -> None:
    """Each recipient has a link of its own, in fields that the signature covers."""
    keys, hop = Keys(tmp_path), system.hop()
    system.queued(hop, **sections(tmp_path, web.url), signing={"keys": [keys.entry("e")]})
    own = {"List-Unsubscribe": "<https://a.example/own>", "X-Own": "1"}
    await put(database, replace(SOURCE, headers=own, unsubscribe="news"))
    large = "x" * 980 + "\n"
    mails = [
        RawMail("a@a.example", ["raw1@b.example", "raw2@b.example"], RAW, unsubscribe="news"),
        RawMail("a@a.example", ["big1@b.example", "big2@b.example"],
                RAW + large.encode().replace(b"\n", b"\r\n") * 600, unsubscribe="news"),
        Mail(sender="a@a.example", to=["ann1@b.example"], cc=["ann2@b.example"], body="x",
             headers=own, unsubscribe="offers"),
        Mail(sender="a@a.example", to=["eve1@b.example", "eve2@b.example"], body=large * 600,
             unsubscribe="news"),
        TemplateMail(template="news", recipient="joe@b.example", params=WORDS),
        TemplateMail(template="news", recipient="bob@b.example", params=WORDS, tenant="",
                     unsubscribe="offers"),
        Mail(sender="a@a.example", to=["nobody@b.example"], body="x", metadata={"x": "_scope"}),
        RawMail("a@a.example", ["none@b.example"], RAW, metadata={"x": "_scope"}),
    ]  # fmt: skip
    async with Client(system.uri) as client:
        for mail in mails:
            await client.send(mail)
    kept = {each.recipients[0]: each for each in hop.wait_kept(12)}
    assert len(kept) == 12
    links = {}
    for recipient, each in kept.items():
        content = each.content or b""
        mail_read = message_from_bytes(content, policy=default)
        assert keys.signers(content) == ["a.example/e"]
        if recipient in ("nobody@b.example", "none@b.example"):
            assert "List-Unsubscribe" not in mail_read
            continue
        assert mail_read.get_all("List-Unsubscribe-Post") == [ONE_CLICK]
        [field] = mail_read.get_all("List-Unsubscribe") or []
        [links[recipient]] = re.findall(r"^<(.*)>$", str(field))
        (signed,) = re.findall(r"\bh=([^;]*);", str(mail_read["DKIM-Signature"]))
        names = {name.strip().lower() for name in signed.split(":")}
        assert {"list-unsubscribe", "list-unsubscribe-post"} <= names
    assert len(set(links.values())) == 10
    text = message_from_bytes(kept["joe@b.example"].content or b"", policy=default)
    for kind in ("plain", "html"):
        part = text.get_body((kind,))
        assert part
        assert links["joe@b.example"] in part.get_content()

    shapes = [(ONE_CLICK, FORM), multipart(("List-Unsubscribe", "One-Click"))]
    for place, link in enumerate(links.values()):
        parts = urlsplit(link)
        for _ in range(2):
            body, kind = shapes[place % 2]
            answer = web.ask("POST", f"{parts.path}?{parts.query}", body, Content_Type=kind)
            assert (answer.status, "location" in answer.headers) == (200, False)
            assert "set-cookie" not in answer.headers
    scopes = {address: "offers" if address[:3] in ("ann", "bob") else "news" for address in links}
    assert [each.rpartition(" unsubscribe link of message ")[0] for each in reasons(news)] == [
        f"{address} /{scopes[address]} unsubscribed" for address in sorted(links)
    ]
    to_joe = TemplateMail(template="news", recipient="joe@b.example", params=WORDS)
    receipt = Mail(sender="a@a.example", to=["joe@b.example"], body="x")
    async with Client(system.uri) as client:
        ids = [await client.send(each) for each in (
            to_joe, replace(to_joe, unsubscribe="offers"), receipt)]  # fmt: skip
        found = await client.wait(ids, 60)
    assert [found[each][0].state for each in ids] == ["suppressed", "delivered", "delivered"]
    assert "unsubscribed (unsubscribe link of message" in str(found[ids[0]][0].reply)


def submitted(db: psycopg.Connection, recipient: str = "ann@b.example") -> LinkNumbers:
    """Submit mail with a link, and return what its link names."""
    (message,) = fetch(
        db, "SELECT submit_template('news', %s, %s, unsubscribe => 'news')",
        recipient, Jsonb(WORDS),
    )  # fmt: skip
    row, since = fetch(db, "SELECT id, ts FROM queue WHERE message_id = %s", message)
    return LinkNumbers.of_row(message, row, since)


def token(numbers: LinkNumbers) -> str:
    return RINGS[UNSUBSCRIBE].sign(numbers.octets)


async def test_a_link_works_as_long_as_the_log_has_its_mail(
    database: str, news: psycopg.Connection, web: Web
) -> None:
    await put(database, SOURCE)
    waiting, gone = submitted(news, "ann@b.example"), submitted(news, "bob@b.example")
    news.execute(
        "SELECT rows_log(ARRAY(SELECT id FROM queue WHERE recipient ~ 'bob'), 'deleted');"
        " DELETE FROM queue WHERE recipient ~ 'bob'"
    )
    other = TemplateSource(sender="", from_="x@a.example", subject="other", body="without it")
    await put(database, other)
    for numbers in (waiting, gone):
        assert click(web, token(numbers)).status == 200
    assert reasons(news) == [
        f"ann@b.example /news unsubscribed unsubscribe link of message {-waiting.list}",
        f"bob@b.example /news unsubscribed unsubscribe link of message {-gone.list}",
    ]

    news.execute("SELECT suppression_release('bob@b.example')")
    news.execute("SELECT forget('bob@b.example', part) FROM forget_parts() AS part")
    assert click(web, token(gone)).status == 200, "as the first time"
    assert [each.split()[-1] for each in reasons(news)[1:]] == ["forgotten"]

    news.execute("DELETE FROM queue")
    before = datetime.now(UTC) - timedelta(days=2)
    old = LinkNumbers.of_row(-waiting.list, waiting.number, before)
    assert click(web, token(old)).status == 422, "the log does not go back so far"
    signed = token(waiting)
    assert click(web, signed[:-2] + ("A" if signed[-2] != "A" else "B") + signed[-1]).status == 422
    foreign = LinkNumbers(waiting.number, -waiting.list, waiting.day)
    assert click(web, token(foreign)).status == 422


async def test_a_complaint_by_a_link_stops_all_scopes(
    database: str, news: psycopg.Connection
) -> None:
    await put(database, SOURCE)
    numbers = submitted(news)
    assert fetch(news, "SELECT link_complaint(%s, %s, %s)", *numbers[:2], numbers.date) == (True,)
    assert reasons(news) == [f"ann@b.example / complained message {-numbers.list}"]


async def test_the_argument(database: str, news: psycopg.Connection, system: System) -> None:
    """It makes another mail of a key, and its errors say what to do."""
    scoped = TemplateSource(
        sender="a@a.example", from_="a@a.example", subject="x", body="{{unsubscribe}}",
        unsubscribe="news",
    )  # fmt: skip
    assert await put(database, scoped) == 1
    assert await put(database, scoped) == 1
    with pytest.raises(PgmtaError, match="template news: unsubscribe: .* Did you mean offers"):
        await put(database, replace(scoped, unsubscribe="offer"))

    raw = "SELECT submit('a@a.example', '{b@b.example}', %s, key => 'k', unsubscribe => %s)"
    mail = (
        "SELECT submit_mail('a@a.example', '{b@b.example}', body => 'x', key => 'm',"
        " unsubscribe => %s)"
    )
    for statement, arguments in ((raw, (RAW,)), (mail, ())):
        first = fetch(news, statement, *arguments, "news")
        assert fetch(news, statement, *arguments, "news") == first
        for other in ("offers", None):
            with pytest.raises(pg_errors.UniqueViolation, match="key: it was used for another"):
                fetch(news, statement, *arguments, other)
    again = "SELECT submit_template('news', 'b@b.example', key => 't')"
    first = fetch(news, again)
    await put(database, replace(scoped, unsubscribe="offers"))
    assert fetch(news, again) == first, "a new version makes no other mail of a repetition"
    assert column(news, "SELECT metadata::text FROM queue") == ['{"_scope": "news"}'] * 3

    async with Client(system.uri) as client:
        results = await client.send_many([
            RawMail("a@a.example", ["b@b.example"], RAW, unsubscribe="newss"),
            RawMail("a@a.example", ["b@b.example"], RAW, unsubscribe=""),
            RawMail("a@a.example", ["b@b.example"], b"List-unsubscribe: <x:y>\r\n" + RAW,
                    unsubscribe="news"),
            RawMail("a@a.example", ["b@b.example"], RAW, metadata={"_scope": "news"}),
            TemplateMail(template="news", recipient="b@b.example",
                         params={"unsubscribe": "https://a.example"}),
            RawMail("a@a.example", ["b@b.example"], RAW, unsubscribe=7),  # type: ignore[arg-type]
        ])  # fmt: skip
    texts = [str(each.error) for each in results]
    assert re.match("unsubscribe: there is no such scope.* Did you mean news", texts[0])
    assert texts[1].startswith("unsubscribe: it is empty")
    assert texts[2].startswith("content: it has List-Unsubscribe")
    assert texts[3].startswith("metadata: a key begins with _")
    assert texts[4].startswith("params: the template has no such word")
    assert texts[5] == "unsubscribe: it has to be a text, and not int"
    assert all(isinstance(each.error, SubmissionError) for each in results[:5])
    await put(database, SOURCE)
    with pytest.raises(pg_errors.InvalidParameterValue, match="a word is missing") as caught:
        fetch(news, "SELECT submit_template('news', 'b@b.example', '{\"name\": \"x\"}')")
    assert caught.value.diag.message_hint == "Give the argument unsubscribe a scope."
