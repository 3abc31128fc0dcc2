"""RCPT at a listener that refuses suppressed recipients."""

from __future__ import annotations

import psycopg
import pytest

from pgmta_features.suppressions import recipient_look
from smtpd.config.listener_settings import Listener
from smtpd.recipients.recipient_verdict import Verdict
from tests.support.serving import Client, serving
from tests.support.users import add_user, log_in
from tests.support.waiting import until

GOOD, SUPPRESSED = "250 2.1.5", "550 5.7.1 This address is suppressed for your mail"
STRANGER = "127.0.0.5"
RELAY = {"networks": ["127.0.0.1"], "domains": ["b.example"]}


def answers(client: Client, *addresses: str) -> list[str]:
    """Replies to these recipients, in one write."""
    client.send("".join(f"RCPT TO:<{address}>\r\n" for address in addresses).encode())
    return [
        reply if reply[0] == "5" else reply[:9] for reply in (client.reply() for _ in addresses)
    ]


def test_only_clients_that_may_send_anywhere_are_told(
    database: str, db: psycopg.Connection
) -> None:
    db.autocommit = True
    db.execute(
        "SELECT suppression_scope('news'); SELECT suppress('ann@b.example'),"
        " suppress('joe@b.example', 't'), suppress('bob@b.example', '', 'news')"
    )
    add_user(database, "u@a.example", "secret", tenant="t", any_sender=True)
    people = ["Ann@B.example", "joe@b.example", "bob@b.example"]
    listen = [{"suppressed": "refuse", "auth": "offered", "auth_without_tls": True}]
    with serving(database, relay=RELAY, listen=listen) as port:
        for source, user, expected in (
            ("127.0.0.1", "", [SUPPRESSED, GOOD, GOOD]),
            (STRANGER, "u@a.example", [GOOD, SUPPRESSED, GOOD]),
            (STRANGER, "", [GOOD, GOOD, GOOD]),
        ):
            with Client(port, source).hello() as client:
                if user:
                    assert log_in(client, user, "secret")[:3] == "235"
                assert client.say("MAIL FROM:<a@a.example>")[:3] == "250"
                assert answers(client, *people) == expected
        with Client(port).hello() as client:
            assert client.say("MAIL FROM:<a@a.example> SMTPUTF8")[:3] == "250"
            db.execute("SELECT suppress('joe@xn--bcher-kva.example')")
            assert answers(client, "joe@Bücher.example") == [SUPPRESSED]
            db.execute("SELECT suppression_release('ann@b.example')")
            until(lambda: answers(client, "ann@b.example") == [GOOD])
            # what can't be asked is taken: its row is asked about before its attempt
            db.execute("REVOKE EXECUTE ON FUNCTION suppressed_because(text[], text[], text[])"
                       " FROM pgmta_smtpd, PUBLIC")  # fmt: skip
            db.execute("ALTER FUNCTION suppressed_because(text[], text[], text[]) RENAME TO away")
            assert answers(client, "other@b.example") == [GOOD]


def test_nothing_is_refused_without_the_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smtpd.config.listener_settings.import_paths", lambda _: [])
    Listener.model_validate({"suppressed": "accept"})
    with pytest.raises(ValueError, match="needs the feature suppressions"):
        Listener.model_validate({"suppressed": "refuse"})


def test_a_recipient_is_looked_up_once_in_the_list_and_in_the_directory(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory may take longer than the answer of the list counts."""
    db.execute("SELECT suppress('ann@b.example'); INSERT INTO recipients VALUES ('joe@b.example')")
    monkeypatch.setattr(
        recipient_look, "_SECONDS", dict.fromkeys(Verdict, 1.0) | {Verdict.KNOWN: 0.0}
    )
    relay = {**RELAY, "recipients": [{"table": True}]}
    listen = [{"suppressed": "refuse"}]
    with serving(database, relay=relay, listen=listen) as port, Client(port).hello() as client:
        assert client.say("MAIL FROM:<a@a.example>")[:3] == "250"
        joe, eve, ann = answers(client, "joe@b.example", "eve@b.example", "ann@b.example")
        assert (joe, eve[:3], ann) == (GOOD, "550", SUPPRESSED)
        db.execute("SELECT suppress('joe@b.example')")
        assert answers(client, "joe@b.example") == [SUPPRESSED], "the next RCPT asks again"
