"""Signatures of odd messages, as OpenDKIM, Mail::DKIM and dkimpy verify them."""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import dkim
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queued.signing.canonical import BodyHash, relaxed_fields, split_header
from queued.signing.sign import SignedHeader, sign
from queued.signing.signing_key import SigningKey
from tests.support.dkim import DOMAIN, Keys
from tests.support.key_server import serving_keys
from tests.support.odd_messages import changed, odd_messages, on_the_wire

MESSAGES = 500
DOUBLED = 50
"""Further messages, with fields that may be there once only."""
OTHERS = 100
"""Messages whose Ed25519 signature OpenDKIM verifies."""
TRACE = b"Received: from client.example\r\n\tby relay.example;\r\n\tnow\r\n"
OVERSIGN = frozenset((b"from", b"subject", b"date"))
SCRIPT = Path(__file__).parents[2] / "support" / "verify.pl"
PLACE = f"127.54.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
_LOOP = 'for file; do opendkim-testmsg <"$file" >"$file.log" 2>&1; echo "$? $file"; done'

OPENDKIM = ["xargs", "-P", "2", "-n", "50", "sh", "-c", _LOOP, "sh"]


def relaxed(body: bytes) -> bytes:
    """RFC 6376, section 3.4.4, word by word."""
    if body and not body.endswith(b"\r\n"):
        body += b"\r\n"
    lines = [re.sub(rb"[ \t]+", b" ", line).rstrip(b" ") for line in body.split(b"\r\n")[:-1]]
    while lines and not lines[-1]:
        lines.pop()
    return b"".join(line + b"\r\n" for line in lines)


octets = st.lists(st.sampled_from([b"\r\n", b" ", b"\t", b"a", b"\r", b"\n", b"  "])).map(b"".join)


@given(octets, st.lists(st.integers(0, 30)))
def test_body_in_parts_has_the_hash_of_its_canonical_form(body: bytes, cuts: list[int]) -> None:
    hashed = BodyHash()
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, end in pairwise(places):
        hashed.feed(body[start:end])
    assert hashed.digest() == hashlib.sha256(relaxed(body)).digest()


@given(st.lists(st.sampled_from([b" ", b"\t", b"a", b"\v", b"\f", b"\r", b"b"])).map(b"".join))
def test_field_in_canonical_form(value: bytes) -> None:
    usual = re.sub(rb"[ \t]+", b" ", value).strip(b" ")
    assert relaxed_fields([(b"to", value)]) == b"to:" + usual + b"\r\n"


@pytest.mark.parametrize("octets", [b"\r\n", b" ", b"a  b", b"\n\r", b"\t x\r\n", b"\r\n "])
def test_no_content_makes_the_hash_slow(octets: bytes) -> None:
    content = octets * ((8 << 20) // len(octets))
    began, hashed = time.process_time(), BodyHash()
    for start in range(0, len(content), 500_000):
        hashed.feed(content[start : start + 500_000])
    hashed.digest()
    assert time.process_time() - began < 10


def signed(key: SigningKey, content: bytes, source: random.Random) -> bytes:
    """The message with a signature, made of content in parts of any size."""
    header, start = split_header(content)
    body = BodyHash()
    while start < len(content):
        end = start + source.choice([1, 100, 100_000, 1 << 25])
        body.feed(content[start:end])
        start = end
    covered = SignedHeader(TRACE + header, OVERSIGN)
    field = sign(key, covered, body.digest(), now=time.time())
    return field + on_the_wire(TRACE + content)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    keys = Keys(tmp_path)
    keys.make("r", "rsa")
    keys.make("e")
    return keys


def key_of(keys: Keys, selector: str) -> SigningKey:
    private = keys.private[f"{DOMAIN}/{selector}"]
    kind = {"r": "rsa", "e": "ed25519"}[selector]
    return SigningKey(DOMAIN, selector, kind, 0.0, "test", private=private)


def verifies(keys: Keys, message: bytes) -> bool:
    try:
        return bool(dkim.DKIM(message).verify(0, keys.lookup))
    except dkim.ValidationError:
        return False


def written(keys: Keys, folder: Path, source: random.Random) -> Iterator[tuple[Path, bytes, bytes]]:
    """Write messages and changed ones; yield path and octets, and those with an Ed25519 key."""
    rsa, other = key_of(keys, "r"), key_of(keys, "e")
    for doubled, number in ((False, MESSAGES), (True, DOUBLED)):
        for place, content in enumerate(odd_messages(number, 15, doubled=doubled)):
            good, second = signed(rsa, content, source), signed(other, content, source)
            start = good.index(TRACE)
            bad = good[:start] + changed(good[start:], source)
            kind = "doubled" if doubled else "usual"
            for word, message in (("good", good), ("bad", bad)):
                path = folder / f"{kind}-{place:04}-{word}"
                path.write_bytes(message)
                yield path, message, second if word == "good" else b""
            if not doubled and place < OTHERS:
                (folder / f"ed25519-{place:04}-good").write_bytes(second)


@pytest.mark.needs("opendkim-tools", "libmail-dkim-perl", "root")
@pytest.mark.timeout(600)
def test_others_verify_what_we_sign_and_no_octet_of_it_changed(keys: Keys, tmp_path: Path) -> None:
    folder = tmp_path / "messages"
    folder.mkdir()
    source = random.Random(15)
    wrong: list[str] = []
    messages = list(written(keys, folder, source))
    files = sorted(folder.iterdir())
    with serving_keys(tmp_path, PLACE, keys.records) as asking:
        names = {"perl": "ed25519", "opendkim": "doubled"}  # the files that each leaves out
        running = []
        for name, command in (("perl", ["perl", str(SCRIPT)]), ("opendkim", OPENDKIM)):
            given = tmp_path / f"{name}.in"
            given.write_text("".join(f"{f}\n" for f in files if names[name] not in f.name))
            with given.open() as stdin, (tmp_path / f"{name}.out").open("w") as stdout:
                running.append(subprocess.Popen([*asking, *command], stdin=stdin, stdout=stdout))
        for path, message, second in messages:
            if verifies(keys, message) is not (path.name.endswith("good")):
                wrong.append(f"dkimpy: {path.name}")
            if second and not verifies(keys, second):
                wrong.append(f"dkimpy, Ed25519: {path.name}")
        assert [process.wait() for process in running] == [0, 0]
        by_mail_dkim = dict(
            line.split(" ", 1) for line in (tmp_path / "perl.out").read_text().splitlines()
        )
        codes = dict(
            line.split(" ", 1)[::-1]
            for line in (tmp_path / "opendkim.out").read_text().splitlines()
        )
    assert len(by_mail_dkim) == 2 * (MESSAGES + DOUBLED)
    assert len(codes) == 2 * MESSAGES + OTHERS
    for name, result in by_mail_dkim.items():
        if result != ("r=pass" if name.endswith("good") else "r=fail"):
            wrong.append(f"Mail::DKIM: {name}: {result}")
    for name, code in codes.items():
        if (code == "0") is not name.endswith("good"):
            wrong.append(f"OpenDKIM: {name}: {Path(f'{name}.log').read_text()}")
    assert wrong == []


def test_field_that_is_added_on_the_way_breaks_the_signature(keys: Keys) -> None:
    content = b"From: ann@a.example\r\nTo: b@b.example\r\n\r\ntext\r\n"
    message = signed(key_of(keys, "e"), content, random.Random(1))
    assert verifies(keys, message)
    assert verifies(keys, b"X-Other: x\r\n" + message)
    for field in (b"From: eve@e.example", b"Subject: other", b"Date: today"):
        assert not verifies(keys, field + b"\r\n" + message)
        added = message.replace(b"To: b@", field + b"\r\nTo: b@")
        assert not verifies(keys, added)
