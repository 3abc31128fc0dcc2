"""`queuectl doctor` looks at DNS, DKIM records and port 25 within ten seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psycopg
import pytest
import yaml

from pgmta.postgres.operator import connected
from pgmta.store.admin.examination import TIME_LIMITS, Examination
from queued.cli.doctor.diagnosis import Diagnosis
from queued.cli.doctor.internet_checks import InternetChecks
from queued.config import read_config
from queued.signing.signing_key import new_private, pem_of
from tests.queued.cli.doctor.conftest import Doctor
from tests.support.name_server import Says, Zone
from tests.support.rows import attempt, message, row


def outside(patient: Doctor) -> dict[str, list[Diagnosis]]:
    """The results of these checks alone."""
    config = patient.folder / "queued.yaml"
    config.write_text(yaml.safe_dump(patient.settings))

    async def look() -> dict[str, list[Diagnosis]]:
        async with connected(patient.uri, TIME_LIMITS) as db:
            read = read_config(config)
            checks = InternetChecks(config, read, Examination(db), "big.example").all()
            return {name: [each async for each in check()] for name, check in checks.items()}

    return asyncio.run(look())


def test_faults_that_others_see(
    patient: Doctor, zone: Callable[[Zone], None], db: psycopg.Connection
) -> None:
    patient.settings["environment"]["hostname"] = "mx.example"
    patient.settings["signing"] = {"table": True}
    zone(
        {
            "big.example": {"MX": ["10 mx.big.example."]},
            "mx.big.example": {"A": ["127.0.0.9"]},
            "mx.example": {"A": ["8.8.8.8"], "AAAA": []},
            "8.8.8.8.in-addr.arpa": {"PTR": ["other.example."]},
        }
    )
    assert outside(patient)["port 25"][0].severity == "unknown"
    patient.settings["delivery"]["allowed"] = ["127.0.0.0/8"]
    found = patient.wrong("--probe", "big.example")
    assert "leads to other.example" in found["reverse name"][0]["finding"]
    wanted = "8.8.8.8 for the record `8.8.8.8.in-addr.arpa. IN PTR mx.example.`"
    assert wanted in found["reverse name"][0]["remedy"]
    assert (
        "mx.big.example" in found["port 25"][0]["finding"]
        or "127.0.0.9" in found["port 25"][0]["finding"]
    )
    assert "587" in found["port 25"][0]["remedy"]
    assert "there is no key" in found["DKIM"][0]["finding"]
    patient.settings["delivery"]["dns"] = {"servers": ["127.0.0.1:1"], "timeout": "500ms"}
    (silent,) = outside(patient)["DNS"]
    assert "do not answer (127.0.0.1:1)" in silent.finding
    assert "`dig -p 1 @127.0.0.1 MX big.example`" in silent.remedy
    row(db, message(db, 1))
    attempt(db, code=250, event="delivered", host="mx.big.example:25", connect_seconds=0.1)
    assert not outside(patient)["port 25"]
    patient.settings["routes"] = {"*": "relay.example:587"}
    assert not outside(patient).keys() & {"DNS", "port 25", "reverse name"}


SLOW = Says(["10 mx.big.example."], delay=1.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("records", "said"),
    [
        ({}, {"DNS": "do not answer", "DKIM": "no answer", "port 25": "was tried"}),
        (
            {
                "big.example": {"MX": SLOW},
                "*": {"A": Says(delay=8.0), "AAAA": None, "TXT": None, "PTR": None, "NS": None},
            },
            {"port 25": "was tried", "DKIM": "no answer", "reverse name": "no answer"},
        ),
    ],
    ids=["dead", "hostile"],
)
def test_name_servers_that_answer_late_or_never_take_ten_seconds(
    records: Zone, said: dict[str, str], patient: Doctor, zone: Callable[[Zone], None]
) -> None:
    keys = patient.folder / "key.pem"
    keys.write_text(pem_of(new_private("ed25519", 0)))
    keys.chmod(0o600)
    zone({"*": dict.fromkeys(("A", "AAAA", "MX", "TXT", "PTR", "NS"))} | dict(records))
    patient.settings["environment"]["hostname"] = "mx.example"
    entries = [{"domain": f"d{n}.example", "selector": "s", "file": str(keys)} for n in range(100)]
    patient.settings["signing"] = {"keys": entries}
    began = time.monotonic()
    found = outside(patient)
    assert time.monotonic() - began < 12.0
    for name, words in said.items():
        assert words in found[name][0].finding
    assert len(found["DKIM"]) == 100
    assert {each.severity for each in found["DKIM"]} == {"unknown"}


def test_the_remedy_of_a_key_is_its_record(patient: Doctor, zone: Callable[[Zone], None]) -> None:
    keys = patient.folder / "key.pem"
    keys.write_text(pem_of(new_private("ed25519", 0)))
    keys.chmod(0o600)
    zone({})
    patient.settings["routes"] = {"*": "relay.example:587"}
    entry = {"domain": "a.example", "selector": "s2027", "file": str(keys)}
    patient.settings["signing"] = {"keys": [entry]}
    (found,) = outside(patient)["DKIM"]
    assert 'publish s2027._domainkey.a.example. IN TXT ( "v=DKIM1; k=ed25519; p=' in found.remedy
    assert "`queuectl dkim test a.example s2027`" in found.remedy
