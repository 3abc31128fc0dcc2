"""Libraries that send mail: over STARTTLS and TLS from the first octet, with a password."""

from __future__ import annotations

import asyncio
import json
import os
import smtplib
import ssl
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import aiosmtplib
import pytest

from tests.clients.site import DOMAIN, HOST, PASSWORD, USER, Site

TO = f"alice@{DOMAIN}"
SCRIPTS = Path(__file__).parent / "scripts"
Library = Callable[[Site, int, bool], None]


def message() -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = USER, TO, "hello"
    made.set_content("from a library\n.\n..two dots\nend\n")
    return made


def smtplib_(site: Site, port: int, implicit: bool) -> None:
    context = ssl.create_default_context(cafile=site.ca)
    client: smtplib.SMTP
    if implicit:
        client = smtplib.SMTP_SSL(HOST, port, context=context)
    else:
        client = smtplib.SMTP(HOST, port)
        client.starttls(context=context)
    with client:
        client.login(USER, PASSWORD)
        client.send_message(message())


def aiosmtplib_(site: Site, port: int, implicit: bool) -> None:
    context = ssl.create_default_context(cafile=site.ca)
    sent = aiosmtplib.send(
        message(),
        hostname=HOST,
        port=port,
        use_tls=implicit,
        start_tls=not implicit,
        tls_context=context,
        username=USER,
        password=PASSWORD,
    )
    asyncio.run(sent)


def _script(site: Site, command: list[str], port: int, implicit: bool, **variables: str) -> None:
    settings = {
        "host": HOST, "port": port, "implicit": implicit, "ca": site.ca.read_text(),
        "ca_file": str(site.ca), "user": USER, "password": PASSWORD, "to": TO,
        "text": message().get_content(),
    }  # fmt: skip
    site.run(command, json.dumps(settings), within=180, **variables)


def nodemailer(site: Site, port: int, implicit: bool) -> None:
    script = ["node", str(SCRIPTS / "nodemailer.js")]
    _script(site, script, port, implicit, NODE_PATH="/usr/share/nodejs")


def phpmailer(site: Site, port: int, implicit: bool) -> None:
    _script(site, ["php", str(SCRIPTS / "phpmailer.php")], port, implicit)


def go(site: Site, port: int, implicit: bool) -> None:
    """Go's net/smtp, whose compiler keeps its results in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "go-build"
    _script(
        site, ["go", "run", str(SCRIPTS / "netsmtp.go")], port, implicit,
        GOCACHE=str(cache), GO111MODULE="off", CGO_ENABLED="0", GOFLAGS="-p=2",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("implicit", [False, True], ids=["starttls", "implicit"])
@pytest.mark.parametrize(
    "library",
    [
        smtplib_,
        aiosmtplib_,
        pytest.param(nodemailer, marks=pytest.mark.needs("nodejs", "node-nodemailer")),
        pytest.param(phpmailer, marks=pytest.mark.needs("php-cli", "libphp-phpmailer")),
        pytest.param(go, marks=pytest.mark.needs("golang-go")),
    ],
)
def test_library(site: Site, library: Library, implicit: bool) -> None:
    library(site, site.implicit if implicit else site.submission, implicit)
    row = site.submitted("from a library")
    assert b"\r\n.\r\n..two dots\r\nend\r\n" in row["body"]
