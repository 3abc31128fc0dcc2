"""The grammar of SCRAM, with messages that no library would send (RFC 5802, section 7)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.database import fresh_database
from tests.support.serving import Client, serving
from tests.support.users import add_user, scram_by_hand

GOOD, WRONG = "235 2.7.0", "535 5.7.8"
ANN, FINAL = "n=ann@a.example,r=abc", "c={binding},r={nonce}"
SCRAM = [
    (f"n,,{ANN}", f"{FINAL},p={{proof}}", GOOD),
    (f"y,,{ANN}", f"{FINAL},p={{proof}}", GOOD),
    (f"n,a=ann@a.example,{ANN}", f"{FINAL},p={{proof}}", GOOD),
    (f"n,a=ANN@A.example,{ANN}", f"{FINAL},p={{proof}}", GOOD),
    (f"n,a=off,{ANN}", f"{FINAL},p={{proof}}", WRONG),
    # extensions stand behind the nonce, and are ignored; those of `m` are not known
    (f"n,,{ANN},x=1,y=a=b,N=z", f"{FINAL},z=1,p={{proof}}", GOOD),
    *((first, f"{FINAL},p={{proof}}", "501 5.5.2") for first in (
        f"n,,m=1,{ANN}", f"n,,{ANN},m=1", f"n,,x=1,{ANN}", f"n,,{ANN},x=", f"n,,{ANN},x",
        f"n,,{ANN},xy=1", f"n,,{ANN},1=1", f"n,,{ANN},x=1,x=2", f"n,,{ANN},r=abc",
        f"n,,{ANN},i=4096", f"n,,{ANN},n=off", f"n,,{ANN},", f"n,,{ANN},x=\0",
        "n,,r=abc,n=ann@a.example",
        "n,,n=ann=40a.example,r=abc", "n,,n=,r=abc", "n,,n=ann@a.example,r=", f"n,,{ANN} ",
        f"n,a=,{ANN}", f"n,ann@a.example,{ANN}", f"n,,a=ann@a.example,{ANN}",
        f"p=tls-unique,,{ANN}",
        f"x,,{ANN}", f"n=1,,{ANN}", f"N,,{ANN}", "n,,n=ann@a.example,r=\u00fc",
    )),
    *((f"n,,{ANN}", final, "501 5.5.2") for final in (
        f"m=1,{FINAL},p={{proof}}", f"{FINAL},m=1,p={{proof}}", f"x=1,{FINAL},p={{proof}}",
        f"{FINAL},p={{proof}},x=1", f"{FINAL},x=1,x=2,p={{proof}}", f"{FINAL},s=1,p={{proof}}",
        "r={nonce},c={binding},p={proof}", f"{FINAL},r=1,p={{proof}}",
        "c={binding},r=abc,p={proof}",
        "c=eSws,r={nonce},p={proof}", "c=,r={nonce},p={proof}", f"{FINAL},p=!", FINAL,
        f"{FINAL},p=",
        f"{FINAL},p={{proof}},p={{proof}}", "",
    )),
    (f"n,,{ANN}", f"{FINAL},p=YQ==", WRONG),
]  # fmt: skip


@pytest.fixture(scope="module")
def port(server: str, template: str) -> Iterator[int]:
    listen = [{"name": "here", "auth": "offered", "auth_without_tls": True}]
    limits = {"failures": {"address": 500}}
    with fresh_database(server, template) as uri:
        add_user(uri, "ann@a.example", "Geheim, 42")
        with serving(uri, listen=listen, auth=limits) as port:
            yield port


@pytest.mark.parametrize(("first", "final", "expected"), SCRAM)
def test_the_grammar_of_scram(port: int, first: str, final: str, expected: str) -> None:
    with Client(port) as client:
        client.reply()
        client.say("EHLO c")
        assert scram_by_hand(client, first, "Geheim, 42", final).startswith(expected)
