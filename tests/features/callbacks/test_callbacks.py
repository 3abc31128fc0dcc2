"""Callbacks over HTTP: forged, repeated, in any order, malformed, large, and while things fail."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from queued.daemon.queued import main
from tests.features.callbacks.provided import EVENTS, SECRET, Provided, call, secret_file, signed
from tests.support.rows import message, row
from tests.support.waiting import take_time, until
from tests.web.web import Web, serving

NOWHERE = "postgresql://x@127.0.0.1:1/x"
LATER = "other-secret-of-them"


@pytest.fixture
def web(for_web: str, tmp_path: Path) -> Iterator[Web]:
    """A server that takes callbacks, and no tokens."""
    with serving(tmp_path, for_web, tokens=nothing(), callbacks={"hook": signed(tmp_path)}) as web:
        yield web


def nothing() -> dict[str, list[Any]]:
    """Return the section `tokens` without keys."""
    return {"activate": [], "recover": [], "confirm": [], "unsubscribe": []}


@pytest.mark.slow
def test_a_large_callback_may_come_in_any_pieces(web: Web) -> None:
    """The length of its body may be in a later segment than its first line."""
    body = json.dumps([{"key": "0", "event": "ok", "text": "x" * 700_000}]).encode()
    when = str(int(time.time()))
    mac = hmac.digest(SECRET.encode(), when.encode() + b"." + body, hashlib.sha256)
    request = (
        f"POST /callbacks/hook HTTP/1.1\r\nHost: a\r\nX-Time: {when}\r\nConnection: close\r\n"
        f"X-Sign: {base64.b64encode(mac).decode()}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    for cut in (0, 3, 30, request.index(b"Length"), len(request) - 2):
        with socket.create_connection(("127.0.0.1", web.port), 20) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(request[:cut])
            take_time(0.1)  # a segment of its own
            client.sendall(request[cut:] + body)
            answer = client.recv(100)
        assert answer.startswith(b"HTTP/1.1 200 "), cut


def test_late_failures_out_of_order_repeated_and_forged(web: Web, provided: Provided) -> None:
    numbers = [provided.take() for _ in range(4)]
    fine, late, gone, spam = map(provided.key, numbers)
    ok = [{"key": key, "event": "ok", "at": time.time()} for key in (fine, late, gone, spam)]
    bad = [
        {"key": late, "event": "bad", "code": 552, "sub": "5.2.2", "text": "full\r\n"},
        {"key": gone, "event": "bad", "type": "gone"},
        {"key": spam, "event": "spam"},
    ]
    forged = call(web, bad, secret="x" * 16)
    assert (forged.status, provided.books()) == (403, {"sent": 4})
    for answer in (
        call(web, bad, at=time.time() - 90_000), web.ask("POST", "/callbacks/hook", b"[]"),
        web.ask("POST", "/callbacks/hook/x", b"[]"), call(web, b"{", secret="x" * 16),
    ):  # fmt: skip
        assert (answer.status, answer.body) == (403, forged.body)
    for events in (bad, ok, bad, [*ok, *bad], ok):
        assert call(web, events).status == 200
    assert provided.books() == {"sent": 2, "failed": 2, "bounced": 1, "complained": 1}
    assert provided.campaign.reasons() == ["r3@b.example bounced", "r4@b.example complained"]
    assert [provided.log(number) for number in numbers] == [
        (None, True, False), ("other", True, False), ("unknown_user", True, False),
        (None, True, True),
    ]  # fmt: skip
    web.wait_log("callback", 5)
    first, second, *_ = web.events("callback")
    assert (first["new"], first["known"], second["new"]) == (3, 0, 4)
    assert SECRET not in web.story()
    assert "b.example" not in web.story()
    shown = web.ask("GET", "/callbacks/hook")
    assert (shown.status, shown.headers["allow"]) == (405, "POST")
    assert web.ask("POST", "/callbacks/none", b"[]").status == 404


def test_what_is_ignored_and_what_is_malformed(web: Web, provided: Provided) -> None:
    number = provided.take()
    key = provided.key(number)
    odd: list[Any] = [
        {"key": key, "event": "opened"}, {"event": "ok"}, "text", None, 7, [], {"key": key},
        {"key": "pgmta-99999999999999999999-1", "event": "ok"}, {"key": {"a": key}, "event": "ok"},
        {"key": f"x{key}", "event": "ok"}, {"key": "pgmta-123-456", "event": "ok"},
        {"key": [f"tag {key}"], "event": ["ok"]}, {"key": key, "event": "bad", "type": "new",
         "text": "a\x00b\ud800" + "x" * 5000, "at": "1e999", "code": 1e400, "sub": True},
    ]  # fmt: skip
    assert call(web, odd).status == 200
    line = web.wait_log("callback")
    assert (line["new"], line["unknown"], line["foreign"], line["strange"]) == (1, 1, 4, 7)
    assert provided.log(number)[0] == "other"
    for bad in (b"", b"{", b'"text"', b"7", b"[" * 100_000, b"\xff", b"9" * 10_000):
        assert call(web, bad).status == 400
    assert call(web, {"key": key, "event": "ok"}).status == 200  # one alone


def test_bodies_are_bounded(web: Web, provided: Provided) -> None:
    key = provided.key(provided.take())
    events = [{"key": key, "event": "ok", "text": "x" * 500}] * 1000
    assert call(web, events).status == 200
    assert call(web, [*events, events[0]]).status == 413  # more than 1,000
    assert call(web, [*events, {"text": "x" * 600_000}]).status == 413
    with socket.create_connection(("127.0.0.1", web.port), 20) as client:
        head = b"POST /callbacks/hook HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]"
        try:
            client.sendall(head + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
            client.settimeout(5)
            while client.recv(1 << 16):
                pass
        except ConnectionError:
            pass  # what waits behind a callback has the usual bound
    assert web.ask("GET", "/healthy").status == 200
    slow = b"POST /callbacks/hook HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", web.port), 20) as client:
        client.sendall(slow[:20])
        client.sendall(slow[20:])
        client.sendall(b"x" * 900_000)  # a header in two parts
        assert client.recv(100).startswith(b"HTTP/1.1 403 ")


def test_what_strangers_announce_keeps_no_callback_out(web: Web, provided: Provided) -> None:
    key = provided.key(provided.take())
    head = b"POST /callbacks/hook HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n"
    with ExitStack() as strangers:
        for _ in range(70):
            connection = socket.create_connection(("127.0.0.1", web.port), 20)
            strangers.enter_context(connection).sendall(head + b"x")
        assert call(web, {"key": key, "event": "ok"}).status == 200
    many = [{"event": "ok"}] * 10_001
    assert call(web, many).status == 413  # of others
    assert call(web, many[:10_000]).status == 200


def test_a_row_in_flight_is_repeated_and_then_noted(
    web: Web, provided: Provided, db: psycopg.Connection
) -> None:
    other = provided.take()
    queued = row(db, message(db, 50), status="SENDING", lease=60)
    db.execute("UPDATE queue SET id = 150 WHERE id = %s", (queued,))
    events = [{"key": provided.key(n), "event": "ok"} for n in (50, other)]
    answer = call(web, events)
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert provided.log(other)[1]  # the others are noted
    db.execute("DELETE FROM queue")
    assert call(web, events).status == 200


def test_nothing_is_lost_while_the_database_is_away(tmp_path: Path) -> None:
    callbacks = {"hook": signed(tmp_path)}
    with serving(tmp_path, NOWHERE, tokens=nothing(), callbacks=callbacks) as web:
        event = {"key": "pgmta-1-101", "event": "ok"}
        assert call(web, event).status == 503
        assert call(web, event, secret="x" * 16).status == 403
        assert web.ask("GET", "/ready").status == 503


def test_one_event_that_postgresql_refuses(
    web: Web, provided: Provided, db: psycopg.Connection
) -> None:
    numbers = [provided.take() for _ in range(3)]
    db.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'check_violation'; END $$"
    )
    db.execute("CREATE TRIGGER no BEFORE UPDATE ON attempts FOR EACH ROW"
               " WHEN (NEW.message_id = 2) EXECUTE FUNCTION no()")  # fmt: skip
    assert call(web, [{"key": provided.key(n), "event": "ok"} for n in numbers]).status == 200
    assert [provided.log(n)[1] for n in numbers] == [True, False, True]
    assert web.wait_log("callback")["refused"] == 1


@pytest.mark.slow
def test_ready_without_tokens(web: Web, for_web: str, db: psycopg.Connection) -> None:
    assert web.ask("GET", "/ready").status == 200
    db.execute("UPDATE rights SET role = 'pgmta_queued' WHERE object = 'FUNCTION callbacks_note'")
    db.execute("SELECT grants()")
    until(lambda: web.ask("GET", "/ready").status == 503)
    db.execute("UPDATE rights SET role = 'pgmta_web' WHERE object = 'FUNCTION callbacks_note'")
    db.execute("SELECT grants()")
    until(lambda: web.ask("GET", "/ready").status == 200)


def test_keys_are_read_again(for_web: str, provided: Provided, tmp_path: Path) -> None:
    event = {"key": provided.key(provided.take()), "event": "ok"}
    hook = signed(tmp_path)
    with serving(tmp_path, for_web, tokens=nothing(), callbacks={"hook": hook}) as web:
        assert [call(web, event, secret=each).status for each in (SECRET, LATER)] == [200, 403]
        secret_file(tmp_path, "hook.key", LATER)
        web.signal(signal.SIGHUP)
        web.wait_log("configuration read again")
        assert [call(web, event, secret=each).status for each in (SECRET, LATER)] == [403, 200]


def test_mistakes_name_line_and_word(tmp_path: Path) -> None:
    secret_file(tmp_path, "open.key")
    (tmp_path / "open.key").chmod(0o644)
    secret_file(tmp_path, "short.key", "x")
    secret_file(tmp_path, "good.key", SECRET)
    file = tmp_path / "web.yaml"
    file.write_text(
        "callbacks:\n"
        "  a:\n"
        "    interface: sendgird\n"
        "  b:\n"
        "    interface: mailgun\n"
        "    proof: {keys: open.key}\n"
        "  c:\n"
        "    interface: mailgun\n"
        "    proof:\n"
        "      keys: [short.key]\n"
        "      singature: header.X\n"
        "  d:\n"
        "    interface: twilio\n"
        "    proof: {keys: good.key, message: '{{urll}}'}\n"
        "    events:\n"
        "      kinds: {read: delivred}\n"
        "      text: 'a b'\n"
        "  e:\n"
        "    interface: postmark\n"
        "    proof: {keys: good.key}\n"
        "  f:\n"
        "    hosts: [x.example]\n"
        "    proof: {by: hmac, keys: good.key}\n"
        "    events: {kind: a, kinds: {b: failed}}\n"
        "  g/h: {interface: mailgun, proof: {keys: good.key}}\n"
    )
    result = CliRunner().invoke(main, ["web", "-c", str(file), "--check"])
    assert result.exit_code == 2
    found = result.stderr.replace(f"{tmp_path}/", "").replace("error: ", "").splitlines()
    assert found == [
        "web.yaml:2: callbacks.a: no interface 'sendgird'; did you mean 'sendgrid'?",
        "web.yaml:6: callbacks.b.proof.keys: open.key has the mode 0644: run `chmod 0640` or "
        "`chmod 0600`",
        "web.yaml:10: callbacks.c.proof.keys: short.key has no line of at least 16 octets",
        "web.yaml:11: callbacks.c.proof.singature: unknown key; did you mean 'signature'?",
        "web.yaml:14: callbacks.d.proof.message: no word 'urll'; did you mean 'url'?",
        "web.yaml:16: callbacks.d.events.kinds.read: should be 'delivered', 'bounced', 'failed' or "
        "'complained'; did you mean 'delivered'?",
        "web.yaml:17: callbacks.d.events.text[0]: 'a b' is no path; write for example "
        "messages[0].status",
        "web.yaml:20: callbacks.e.proof.keys: good.key has no USER:PASSWORD",
        "web.yaml:23: callbacks.f.proof: hmac needs message",
        "web.yaml:24: callbacks.f.events: either key or query has to name the place of {{key}}",
        "web.yaml:25: callbacks.g/h: should match pattern '^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$'",
    ]
    assert SECRET not in result.stderr


def test_a_secret_url_and_a_form(for_web: str, provided: Provided, tmp_path: Path) -> None:
    number = provided.take()
    form = {
        "hosts": ["api.example.com"],
        "proof": {"by": "secret_url", "keys": secret_file(tmp_path, "url.key", "abcdefghijklmnop")},
        "events": {"body": "form", "query": "k"} | {
            name: EVENTS[name] for name in ("kind", "kinds", "code")
        },
        "challenge": {
            "key": secret_file(tmp_path, "trial.key", LATER), "token": "t", "answer": "a",
        },
    }  # fmt: skip
    with serving(tmp_path, for_web, tokens=nothing(), callbacks={"form": form}) as web:
        path, asked = "/callbacks/form/abcdefghijklmnop", f"?k={provided.key(number)}"
        assert web.ask("POST", path[:-1] + asked, b"event=bad&code=30003").status == 403
        assert web.ask("POST", path + asked, b"event=bad&code=30003").status == 200
        assert provided.log(number)[0] == "other"
        assert web.ask("POST", path + asked, b"\xff").status == 400
        trial = f"?t={LATER}&a=7"
        assert web.ask("GET", path + trial).status == 200
        for bad in (path + "?t=x&a=7", path[:-1] + trial, "/callbacks/form" + trial):
            assert web.ask("GET", bad).status == 403
        assert {line["callback"] for line in web.events("a callback is not proven")} == {"form"}
        assert "abcdefghijklmno" not in web.story()
