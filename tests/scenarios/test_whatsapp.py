"""WhatsApp by the files of docs/mail/whatsapp.md, with a provider in the shape of Meta's Cloud API.

Requests, answers and callbacks have the forms of pywa 4.5.0 on PyPI, and of the stored pages of
Meta's documentation that the descriptions name.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

import pgmta
from queued.cli.queuectl import main
from tests.features.callbacks.test_callbacks import nothing
from tests.features.campaigns.campaigns import books
from tests.features.providers.scripted_server import CUT, said
from tests.support.certificates import Certificate
from tests.support.daemons import ROOT, Daemon
from tests.support.name_server import serving_names
from tests.support.provider import Provider
from tests.support.system import System
from tests.support.waiting import until
from tests.web.web import Answer, Web, serving

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "mail" / "whatsapp.md").read_text(encoding="utf-8")
SHAPING, WEB = (
    yaml.safe_load(re.findall(rf"```yaml\n# /etc/pgmta/{name}.yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    for name in ("shaping", "web")
)
(TEMPLATE,) = re.findall(r"```text mails/order_shipped.txt\n(.*?)```", PAGE, re.DOTALL)
TEMPLATE_CALL, TEXT_CALL = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
RATE = 20  # of the page's texts, and of the campaign
PATH = "/v25.0/106540352242922/messages"
HOST = "graph.facebook.com"
TOKEN, APP_SECRET, VERIFY_TOKEN = "EAAJB-4711", "app secret of the test", "verify token of the test"
ANN = "+491701234567"


class CloudApi:
    """Meta's interface: it checks a request, and answers as the real one does.

    `open` are numbers that have written within 24 hours. `next` are answers that come first.
    """

    def __init__(self, folder: Path) -> None:
        authority = Certificate.root()
        self.ca = str(authority.files(folder)[0])
        self.parameters = {("order_shipped", "en_US"): 2}
        self.open: set[str] = set()
        self.next: list[list[bytes]] = []
        self.taken: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.provider = Provider(self._answer, authority.issue(HOST).server(folder))
        self.place = f"{HOST}:{self.provider.url.split('/')[2].rpartition(':')[2]}"

    def _answer(self, document: Any) -> list[bytes]:
        self.times.append(time.monotonic())
        got = self.provider.got[-1]
        assert got.line == f"POST {PATH} HTTP/1.1"
        assert got.fields["authorization"] == f"Bearer {TOKEN}"
        assert (document["messaging_product"], document["recipient_type"]) == (
            "whatsapp", "individual",
        )  # fmt: skip
        if self.next:
            return self.next.pop()
        if document["type"] == "text":
            if document["to"] not in self.open:
                return fault(131047, "Re-engagement message", "more than 24 hours have passed")
        else:
            template = document["template"]
            name = template["name"], template["language"]["code"]
            if name not in self.parameters:
                return fault(132001, "Template name does not exist in the translation",
                             f"template name ({name[0]}) does not exist in {name[1]}",
                             "404 Not Found")  # fmt: skip
            (body,) = template["components"]
            if len(body["parameters"]) != self.parameters[name]:
                return fault(132000, "Number of parameters does not match")
        self.taken.append(document)
        number = document["to"]
        answer = {
            "messaging_product": "whatsapp",
            "contacts": [{"input": number, "wa_id": number.lstrip("+")}],
            "messages": [{"id": f"wamid.{len(self.taken)}", "message_status": "accepted"}],
        }
        return said("200 OK", json.dumps(answer).encode(), "Content-Type: application/json")

    def key(self, number: str) -> str:
        """Return the key of the last message for a number that came, whatever its answer."""
        return next(
            str(each["biz_opaque_callback_data"])
            for each in reversed(self.provider.documents)
            if each["to"] == number
        )


def fault(
    code: int, title: str, details: str | None = None, status: str = "400 Bad Request"
) -> list[bytes]:
    """Return an error of the Graph API."""
    error: dict[str, Any] = {
        "message": f"(#{code}) {title}",
        "type": "OAuthException",
        "code": code,
        "fbtrace_id": "Az8or2yhqkZfEZ-_4Qn_Bam",
    }
    if details:
        error["error_data"] = {"messaging_product": "whatsapp", "details": details}
    return said(status, json.dumps({"error": error}).encode(), "Content-Type: application/json")


def status(key: str, word: str, code: int = 0) -> dict[str, Any]:
    """Return a status as a callback has it."""
    made: dict[str, Any] = {
        "id": "wamid.7",
        "status": word,
        "timestamp": str(int(time.time())),
        "recipient_id": "491701234567",
        "biz_opaque_callback_data": key,
    }
    if code:
        made["errors"] = [{"code": code, "title": "Message undeliverable", "message": "Grüße",
                           "error_data": {"details": "as the test says"}}]  # fmt: skip
    return made


def notify(web: Web, *entries: list[dict[str, Any]], secret: str = APP_SECRET) -> Answer:
    """Send a callback with an entry for each list of changes, signed as Meta does."""
    document = {
        "object": "whatsapp_business_account",
        "entry": [
            {"id": str(n), "changes": [{"field": "messages", "value": value} for value in values]}
            for n, values in enumerate(entries)
        ],
    }
    body = json.dumps(document).encode()  # ASCII with \u00fc, which is what Meta signs
    digest = hmac.digest(secret.encode(), body, hashlib.sha256).hex()
    return web.ask(
        "POST", "/callbacks/whatsapp", body, Content_Type="application/json",
        X_Hub_Signature_256=f"sha256={digest}",
    )  # fmt: skip


def value(**more: Any) -> dict[str, Any]:
    metadata = {"display_phone_number": "15550783881", "phone_number_id": "106540352242922"}
    return {"messaging_product": "whatsapp", "metadata": metadata, **more}


def secret_file(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.touch(0o600)
    file.write_text(f"{text}\n")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[CloudApi]:
    made = CloudApi(tmp_path)
    with made.provider:
        yield made


@pytest.fixture
def daemon(system: System, api: CloudApi, tmp_path: Path) -> Iterator[Daemon]:
    """queued with the page's file, whose routes ask the provider of the test at another port."""
    secret_file(tmp_path, "whatsapp.token", TOKEN)
    config = json.loads(json.dumps(SHAPING))
    for route in config["routes"]:
        route["parameters"] |= {"url": f"https://{api.place}{PATH}", "private": True}
    shaping = tmp_path / "shaping.yaml"
    shaping.write_text(yaml.safe_dump(config))
    with serving_names({HOST: {"A": ["127.0.0.1"], "AAAA": []}}) as names:
        daemon = system.queued(
            shaping=str(shaping), retry={"intervals": ["100ms"]},
            delivery={"tls": {"ca": api.ca}, "dns": {"servers": [names.where]}},
        )  # fmt: skip
        put(daemon, tmp_path, "order_shipped", TEMPLATE)
        yield daemon
        system.stop()


def queuectl(daemon: Daemon, *words: str, name: int = 2) -> str:
    done = CliRunner().invoke(main, [*words[:name], "-c", str(daemon.path), *words[name:]])
    assert done.exit_code == 0, done.output
    return done.stdout


def put(daemon: Daemon, folder: Path, name: str, text: str) -> None:
    file = folder / f"{name}.txt"
    file.write_text(text)
    queuectl(daemon, "template", "put", str(file))


def web_config(api: CloudApi, folder: Path) -> dict[str, Any]:
    secret_file(folder, "whatsapp.app_secret", APP_SECRET)
    secret_file(folder, "whatsapp.verify_token", VERIFY_TOKEN)
    hook = {**WEB["callbacks"]["whatsapp"], "hosts": [api.place]}
    return {"callbacks": {"whatsapp": hook}, "tokens": nothing()}


def kept(times: list[float], rate: int) -> bool:
    """Whether no second, less the jitter of this program, had more requests than the rate."""
    pairs = zip(times, times[rate:], strict=False)
    return len(times) > rate and all(after - before > 0.95 for before, after in pairs)


def last(system: System, number: str) -> tuple[str, str | None]:
    """Return event and class of the last attempt for a number."""
    attempt = system.attempts(number)[-1]
    return attempt["event"], attempt["class"]


def test_templates_texts_and_answers(system: System, api: CloudApi, daemon: Daemon,
                                     tmp_path: Path) -> None:  # fmt: skip
    system.ask(TEMPLATE_CALL)
    params = {"number": "4712", "name": "Bob & Eve"}
    with pgmta.SyncClient(system.uri) as client:
        client.send(pgmta.TemplateMail(template="order_shipped", recipient="+49 170 1234568",
                                       params=params))  # fmt: skip
    queuectl(daemon, "send", "--template", "order_shipped", "--to", "+491701234569",
             "--param", "name=Zoë", "--param", "number=4713", name=1)  # fmt: skip
    system.wait_empty()
    assert {each["to"]: [item["text"] for item in each["template"]["components"][0]["parameters"]]
            for each in api.taken} == {
        ANN: ["Ann", "4711"], "+491701234568": ["Bob & Eve", "4712"],
        "+491701234569": ["Zoë", "4713"],
    }  # fmt: skip

    system.ask(TEXT_CALL)
    until(lambda: last(system, ANN) == ("failed", "policy"))
    (row,) = system.ask(
        "SELECT state, reply FROM message_status WHERE message_id ="
        " (SELECT max(message_id) FROM attempts WHERE recipient = %s)",
        ANN,
    )
    assert row["state"] == "failed"
    assert "error=131047 error_text=more than 24 hours have passed" in row["reply"]
    assert system.ask("SELECT address FROM suppressions") == []
    system.ask(TEMPLATE_CALL)
    until(lambda: last(system, ANN) == ("delivered", None))
    api.open.add(ANN)
    api.times.clear()
    for _ in range(30):
        system.ask(TEXT_CALL)
    system.wait_empty()
    texts = [each["text"] for each in api.taken if each["type"] == "text"]
    assert texts == [{"body": "It is in the blue box."}] * 30
    assert kept(api.times, RATE)

    put(daemon, tmp_path, "lost", TEMPLATE.replace("order_shipped", "lost"))
    put(daemon, tmp_path, "short", TEMPLATE.replace("order {{number}}", "order"))
    for n, (template, first, expected) in enumerate(
        [
            ("order_shipped", fault(131056, "Pair rate limit hit"), ["rate_limited", None]),
            ("order_shipped", fault(190, "Session has expired", status="401 Unauthorized"),
             ["authentication", None]),
            ("order_shipped", fault(130497, "Restricted", status="403 Forbidden"), ["policy"]),
            ("lost", None, ["content"]),
            ("short", None, ["content"]),
        ]
    ):  # fmt: skip
        to, words = f"+49170999000{n}", {"name": "Ann", "number": 1}
        if template == "short":
            del words["number"]
        api.next = [first] if first else []
        system.ask("SELECT submit_template(%s, %s, %s, wake => true)", template, to,
                   json.dumps(words))  # fmt: skip
        system.wait_empty()
        assert [each["class"] for each in system.attempts(to)] == expected


def test_callbacks(system: System, api: CloudApi, daemon: Daemon, database: str,
                   db: psycopg.Connection, tmp_path: Path) -> None:  # fmt: skip
    """A campaign at a rate, then many statuses in one callback: later, repeated and forged."""
    numbers = [f"+4917000000{n:02}" for n in range(60)]
    cut, late, closed = numbers[7], numbers[8], numbers[9]

    api.parameters["order_shipped", "de"] = 2
    put(daemon, tmp_path, "shipped", TEMPLATE.replace("en_US", '"{{language}}"'))
    (tmp_path / "list.csv").write_text(
        "recipient,name,number,language\n"
        + "".join(f"{number},Ann,{n},{'de' if n % 2 else 'en_US'}\n"
                  for n, number in enumerate(numbers))
    )  # fmt: skip
    answer = api.provider.answering
    api.provider.answering = lambda sent: [CUT] if sent["to"] == cut else answer(sent)
    queuectl(daemon, "campaign", "create", "shipped", "--template", "shipped",
             "--credential", "whatsapp")  # fmt: skip
    queuectl(daemon, "campaign", "import", "shipped", str(tmp_path / "list.csv"))
    queuectl(daemon, "campaign", "start", "shipped", "--rate", f"{RATE}/s")
    until(lambda: books(db, 1) == {"sent": 59, "unknown": 1}, 60)
    assert kept(api.times, RATE)
    for each in api.taken:
        n, template = numbers.index(each["to"]), each["template"]
        assert template["language"] == {"code": "de" if n % 2 else "en_US"}
        parameters = [{"type": "text", "text": text} for text in ("Ann", str(n))]
        assert template["components"] == [{"type": "body", "parameters": parameters}]

    for_web = make_conninfo(database, options="-c role=pgmta_web")
    with serving(tmp_path, for_web, **web_config(api, tmp_path)) as web:
        asked = "/callbacks/whatsapp?hub.mode=subscribe&hub.challenge=1158201444"
        tried = web.ask("GET", f"{asked}&hub.verify_token={VERIFY_TOKEN.replace(' ', '%20')}")
        assert (tried.status, tried.body) == (200, b"1158201444")
        assert tried.headers["content-type"].startswith("text/plain")
        assert web.ask("GET", f"{asked}&hub.verify_token=other").status == 403
        assert web.ask("GET", asked).status == 403

        statuses = [
            [value(statuses=[status(api.key(cut), "sent"), status(api.key(cut), "delivered")]),
             value(statuses=[status(api.key(late), "failed", 131026)])],
            [value(messages=[{"from": "491701234567", "id": "wamid.9", "type": "text",
                              "text": {"body": "STOP"}}]),
             value(statuses=[status(api.key(closed), "failed", 131047)])],
            [value(statuses=[status(api.key(numbers[0]), "read"), status("other", "read")])],
        ]  # fmt: skip
        assert notify(web, *statuses, secret="another app secret").status == 403
        assert books(db, 1) == {"sent": 59, "unknown": 1}
        for _ in range(2):
            assert notify(web, *statuses).status == 200
        line, again = web.wait_log("callback", 2), web.events("callback")[1]
        assert line
        assert (again["new"], again["known"], again["foreign"]) == (0, 4, 1)
        assert notify(web, [{"event": "APPROVED"}]).status == 200
        assert web.ask("POST", "/callbacks/whatsapp", b"{}").status == 403
    assert books(db, 1) == {"sent": 58, "errored": 2}
    rows = db.execute(
        "SELECT recipient, error_code, bounced FROM campaign_recipients WHERE state = 'failed'"
    ).fetchall()
    assert {row[0]: row[1:] for row in rows} == {
        late: ("131026", False), closed: ("131047", False),
    }  # fmt: skip
    (failures,) = [row for row in system.ask("SELECT class, code FROM campaign_failures")
                   if row["code"] == "131047"]  # fmt: skip
    assert failures["class"] == "policy"
    assert system.ask("SELECT address FROM suppressions") == []
    assert (last(system, late)[1], last(system, closed)[1]) == ("other", "policy")
    shown = queuectl(daemon, "explain", api.key(closed).split("-")[1], name=1)
    assert "131047 as the test says" in shown
