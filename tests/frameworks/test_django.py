"""Mail of Django goes into the queue in the transaction of the view."""

from __future__ import annotations

import email.policy
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from typing import Any

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.mail import EmailMessage, EmailMultiAlternatives, InvalidMailer
from django.db import ProgrammingError, connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from pgmta import SubmissionError
from pgmta.django import EmailBackend
from tests.frameworks.django_settings import django_on
from tests.support.rows import column, fetch
from tests.support.shop_login import shop_login


@pytest.fixture(autouse=True)
def _django(database: str) -> Iterator[None]:
    with shop_login(database) as uri, django_on(uri):
        yield


def message(to: str = "ann@example.com", subject: str = "Hello", **options: Any) -> Any:
    made = EmailMessage(subject, "Text.\n", to=[to])
    if options:
        made.pgmta = options
    return made


def backend(**options: Any) -> Any:
    return EmailBackend(alias="test", **options)


def legible(content: bytes) -> list[bytes]:
    """Return the lines without the random texts between the parts."""
    return [line for line in content.split(b"\n") if b"===" not in line]


def queued(db: psycopg.Connection) -> list[str]:
    return column(db, "SELECT recipient FROM queue ORDER BY recipient")


def test_mail_belongs_to_the_transaction(db: psycopg.Connection) -> None:
    message("now@example.com").send()
    assert queued(db) == ["now@example.com"]
    with transaction.atomic():
        message("outer@example.com").send()
        try:
            with transaction.atomic():
                message("savepoint@example.com").send()
                raise LookupError
        except LookupError:
            pass
        assert queued(db) == ["now@example.com"]
    assert queued(db) == ["now@example.com", "outer@example.com"]
    with transaction.atomic():
        message("never@example.com").send()
        transaction.set_rollback(True)
    assert len(queued(db)) == 2


def test_the_message_is_that_of_djangos_smtp_backend(db: psycopg.Connection) -> None:
    sent = EmailMultiAlternatives(
        "Bücher", "Für Sie.\n", "Büro <büro@bücher.example>".replace("büro@", "buero@"),
        ["Ann <ann@example.com>"], cc=["bob@bücher.example"], bcc=["carol@example.com"],
        headers={"Message-ID": "<1@example.org>", "Date": "Mon, 01 Jan 2029 00:00:00 +0000"},
    )  # fmt: skip
    sent.attach_alternative("<p>Für Sie.</p>", "text/html")
    sent.attach("a.pdf", b"%PDF-1.4\n\r\x00", "application/pdf")
    assert sent.send() == 1
    assert column(db, "SELECT DISTINCT sender FROM queue") == ["buero@xn--bcher-kva.example"]
    assert queued(db) == ["ann@example.com", "bob@xn--bcher-kva.example", "carol@example.com"]
    number, body, named = fetch(db, "SELECT id, body, message_id_header FROM messages")
    assert (number, named) == (sent.pgmta_id, "<1@example.org>")
    assert b"carol" not in body
    assert body.count(b"\n") == body.count(b"\r\n") == body.count(b"\r")
    wanted = sent.message(policy=email.policy.SMTP).as_bytes()
    assert legible(body) == legible(wanted)


def test_options_of_a_message(db: psycopg.Connection) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    options: dict[str, Any] = {
        "key": "1",
        "tenant": "shop",
        "send_at": later,
        "priority": 2,
        "once": True,
    }
    first, second = (message(**options, metadata={"a": [1]}, on_failed="bounce") for _ in range(2))
    for each in (first, second):  # the second one is a repetition, so its octets are the same
        each.attach("a.txt", "Text.", "text/plain")
        assert each.send() == 1
    assert first.pgmta_id == second.pgmta_id
    assert fetch(
        db,
        "SELECT status, m.tenant, send_at, priority, q.once, metadata, on_failed"
        " FROM queue AS q JOIN messages AS m ON m.id = q.message_id",
    ) == ("SCHEDULED", "shop", later, 2, True, {"a": [1]}, "bounce")
    (body,) = fetch(db, "SELECT body FROM messages")
    stored = message_from_bytes(body)
    assert [part.get_content_type() for part in stored.walk()] == [
        "multipart/mixed", "text/plain", "text/plain",
    ]  # fmt: skip
    assert len(stored.get_all("Date", [])) == len(stored.get_all("Message-ID", [])) == 1
    with pytest.raises(SubmissionError, match="used for another message"):
        message(subject="Another", **options).send()
    with pytest.raises(SubmissionError, match="^tennant: message.pgmta .*; did you mean 'tenant'"):
        message(tennant="shop").send()
    with pytest.raises(SubmissionError, match="^x: .* There are send_at, deadline, .*unsubscribe$"):
        message(x=1).send()
    wrong = message()
    wrong.pgmta = ["tenant"]
    with pytest.raises(TypeError, match="a dictionary of options"):
        wrong.send()


def test_one_bad_message_refuses_all(db: psycopg.Connection) -> None:
    def group() -> list[Any]:
        return [message(), message("b@example.com", "Second", priority=10), message("c@x.example")]

    with transaction.atomic():
        message("before@example.com").send()
        refused = group()
        with pytest.raises(SubmissionError, match="^priority: ") as caught:
            backend().send_messages(refused)
        assert [each.pgmta_id for each in refused] == [None] * 3
        assert caught.value.__notes__ == ["subject: Second"]
        with pytest.raises(SubmissionError, match="^priority: "):
            message(priority=10).send()
        message("after@example.com").send()
    assert queued(db) == ["after@example.com", "before@example.com"]
    given = group()
    assert backend(fail_silently=True).send_messages(iter(given)) == 2
    assert [each.pgmta_id is None for each in given] == [False, True, False]
    assert len(queued(db)) == 4


@pytest.mark.parametrize("bad", ["b@[x", "b=@[1.2..3.4\\]", "\0@[\t", "(" * 2000 + "b@b.example"])
def test_a_text_that_pythons_parser_stumbles_over(db: psycopg.Connection, bad: str) -> None:
    with pytest.raises(ValueError, match="^Invalid address"):
        message(bad).send()
    assert queued(db) == []


@pytest.mark.parametrize("name", ["X-A: b\r\nX-B", "X-A\r\n\r\nText", "X A", "X-\u00e9", ""])
def test_a_header_field_has_a_name(db: psycopg.Connection, name: str) -> None:
    made = message()
    made.extra_headers = {name: "c"}
    with pytest.raises(ValueError, match="name of a header field"):
        made.send()
    assert queued(db) == []


def test_errors_of_the_database(db: psycopg.Connection) -> None:
    message("ann@example.com").send()
    db.execute("REVOKE EXECUTE ON FUNCTION pgmta.submit_mails FROM pgmta_submit")
    with pytest.raises(ProgrammingError, match="permission denied"):
        message().send()
    with transaction.atomic():
        assert backend(fail_silently=True).send_messages([message()]) == 0
        with pytest.raises(ValueError, match="Invalid address 'a b'"):
            backend(fail_silently=True).send_messages([message("a b")])
    assert len(queued(db)) == 1


def test_many_messages_go_in_few_calls(
    db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgmta.django._MAILS_PER_CALL", 20)
    with CaptureQueriesContext(connection) as captured:
        assert backend().send_messages([message(f"c{n}@example.com") for n in range(50)]) == 50
    assert len(captured) == 5  # BEGIN, three calls, COMMIT
    with CaptureQueriesContext(connection) as captured:
        assert backend().send_messages([message()]) == 1
    assert len(captured) == 1
    assert len(queued(db)) == 51
    assert backend().send_messages([message(""), message("")]) == 0


def test_mistakes_in_the_settings() -> None:
    with pytest.raises(ImproperlyConfigured, match="'defualt'; did you mean 'default'"):
        backend(using="defualt")
    with pytest.raises(ImproperlyConfigured, match="'other' is sqlite, and the queue is in Postgr"):
        backend(using="other")
    with pytest.raises(InvalidMailer, match="Unknown options 'usin'"):
        backend(usin="default")
    with override_settings(PGMTA_DATABASE="other"):
        with pytest.raises(ImproperlyConfigured, match="PGMTA_DATABASE: the database 'other'"):
            backend()
        assert backend(using="default").using == "default"
    with (
        override_settings(PGMTA_DATBASE="default"),
        pytest.raises(ImproperlyConfigured, match="PGMTA_DATBASE: pgmta has no such setting"),
    ):
        backend()
