"""DSNs are read by programs of others: each names every failed address."""

from __future__ import annotations

import subprocess
from email.message import Message
from pathlib import Path

import pytest
from flufl.bounce import all_failures, scan_message

from queued.reports.text.dsn import Dsn, Original, Report
from tests.queued.reports.text.dsn_parts import octets, parts
from tests.queued.reports.text.test_compose import HEADER, NOW, asking, composed, recipient, report
from tests.support.packages import program

LARGE = HEADER + b"\r\n" + b"0123456789" * 7 + b"\r\n"
_PARSER = r"""
use Mail::DeliveryStatus::BounceParser;
binmode STDIN; local $/;
my $bounce = Mail::DeliveryStatus::BounceParser->new(<STDIN>);
print $bounce->is_bounce ? "bounce\n" : "none\n";
print "$_\n" for $bounce->addresses;
"""
REPLIES = [
    ("550 5.1.1 No such user", "unknown_user"),
    ('552 5.2.2 <bob@b.example>: mailbox full, as "carol@c.example" said', "mailbox_full"),
    ("554 5.7.1 Message rejected; see https://b.example/?q=" + "x" * 400, "spam"),
    ("450 4.2.0 greylisted", "expired"),
    ("connection refused", "no_connection"),
    ("550 нет такого", "unknown_user"),
    ("", ""),
]
# flufl.bounce cuts addresses at an equals sign
ADDRESSES = [
    "bob@b.example", "user+tag@b.example", "o'neil@c.example", "A.B-c_d@d.example", "1@2.example"
]  # fmt: skip


def reports() -> dict[str, Report]:
    """Reports of many kinds, each with failed recipients of ASCII addresses."""
    found = {}
    for language in ("en", "de", "fr", "es"):
        for number, (reply, answer_class) in enumerate(REPLIES):
            failed = [
                recipient(recipient=address, reply=reply, answer_class=answer_class)
                for address in ADDRESSES
            ]
            found[f"{language} {number}"] = report(*failed, original=asking(language))
    one, two = recipient(orcpt="rfc822;bob+40b.example"), recipient(recipient="carol@c.example")
    found["ORCPT"] = report(one, two, envid="x")
    found["HDRS"] = report(one, two, ret="HDRS")
    found["eight bit"] = report(one, original=Original(b"X: \xfc\r\n", 8, b"X: \xfc\r\n\r\n\xfc"))
    found["odd header"] = report(one, original=Original(b"\x00\r\n: \r\n", 8, None))
    found["a report inside"] = report(
        one, original=Original(HEADER, 9, octets(composed(report(two))))
    )
    found["many"] = report(*(recipient(recipient=f"user{n}@b.example") for n in range(200)))
    return found


def by_email(message: Message) -> set[str]:
    """The failed addresses, as Python's email reads them."""
    status = message.get_payload(1)
    assert isinstance(status, Message)
    assert status.get_content_type() == "message/delivery-status"
    blocks = status.get_payload()
    assert isinstance(blocks, list)
    return {
        str(block["Final-Recipient"]).partition(";")[2].strip()
        for block in blocks
        if isinstance(block, Message) and block["Action"] == "failed"
    }


def by_perl(dsn: Dsn, folder: Path) -> set[str]:
    """The failed addresses, as Mail::DeliveryStatus::BounceParser reads them."""
    script = folder / "parse.pl"
    script.write_text(_PARSER)
    command = [program("perl") or "perl", str(script)]
    stored = octets(dsn).replace(b"\r\n", b"\n")  # as in a mailbox, for which it is made
    done = subprocess.run(command, input=stored, capture_output=True, check=True, timeout=60)
    kind, *addresses = done.stdout.decode().splitlines()
    assert kind == "bounce", done
    return set(addresses)


def failed(what: Report) -> set[str]:
    return {each.recipient for each in what.recipients if each.kind == "failed"}


@pytest.mark.parametrize("name", reports())
def test_python(name: str) -> None:
    what = reports()[name]
    message = parts(composed(what)).message
    assert not any(part.defects for part in message.walk())
    assert by_email(message) == failed(what)
    inner = {"carol@c.example"} if name == "a report inside" else set()  # it reads that, too
    assert {address.decode() for address in all_failures(message)[1]} == failed(what) | inner
    assert {address.decode() for address in scan_message(message)} == failed(what) | inner


@pytest.mark.needs("libmail-deliverystatus-bounceparser-perl")
@pytest.mark.parametrize("name", reports())
def test_perl(name: str, tmp_path: Path) -> None:
    what = reports()[name]
    assert by_perl(composed(what), tmp_path) == failed(what)


@pytest.mark.parametrize("kind", ["delayed", "relayed", "delivered"])
def test_no_reader_takes_a_notice_for_a_failure(kind: str) -> None:
    notice = recipient(report_kind=kind, reply="250 2.1.5 Ok")
    message = parts(composed(report(notice, kind=kind, until=NOW))).message
    assert not all_failures(message)[1]
    assert by_email(message) == set()
