"""The checks of `queuectl dkim test`: the record in DNS, and a signature that it verifies."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pgmta.errors import DeliveryError
from queued.cli.dkim_keys import ShownKey
from queued.config import QueuedConfig
from queued.delivery.canonical import BodyHash, split_header
from queued.delivery.dns import Questions
from queued.delivery.questions import texts
from queued.delivery.sign import SignedHeader, sign
from queued.delivery.signing_key import KeyProblem, SigningKey, check_record, verified

_OVERSIGN = frozenset((b"from", b"subject", b"date"))
_SIGNATURE = re.compile(rb"\tb=([^;]*)\r\n\Z")
_BLANK = re.compile(rb"\s+")
_AT_ONCE = 20  # questions to the name servers


@dataclass(slots=True)
class KeyCheck:
    """The result for a key; without an error all is well."""

    error: str = ""
    remarks: list[str] = field(default_factory=list)


async def check_keys(config: QueuedConfig, keys: Sequence[ShownKey]) -> list[KeyCheck]:
    """Check the keys with the name servers of the configuration."""
    questions = Questions(config.delivery.dns)
    slots = asyncio.Semaphore(_AT_ONCE)

    async def check(key: ShownKey) -> KeyCheck:
        async with slots:
            return await _check(questions, key)

    return await asyncio.gather(*map(check, keys))


async def _check(questions: Questions, shown: ShownKey) -> KeyCheck:
    key, result = shown.key, KeyCheck()
    if key.problem:
        result.error = key.problem
        return result
    try:
        answer = await questions.ask(key.owner, "TXT")
        found = texts(answer.records)
        if not found:
            raise KeyProblem(f"{key.owner} has no TXT record; `queuectl dkim dns` prints it")
        if len(found) > 1:  # RFC 6376, section 3.6.2.2: the result is undefined
            raise KeyProblem(f"{key.owner} has {len(found)} TXT records, and may have one")
        result.remarks += check_record(found[0], key.type, shown.public)
        if not key.pem:
            result.remarks.append("no sample signed: only pgmta_queued reads the private part")
        elif not _sample(key, shown.public):
            raise KeyProblem("a sample that it signed does not verify")
    except (KeyProblem, DeliveryError) as error:
        result.error = str(error)
    return result


def _sample(key: SigningKey, public: str) -> bool:
    """Sign a message, and verify the signature by the published part (RFC 6376, section 6.1.3)."""
    content = (
        f"From: postmaster@{key.domain}\r\nSubject: a  sample\r\n\r\nSome \t text \r\n\r\n"
    ).encode()
    header, start = split_header(content)
    body = BodyHash()
    body.feed(content[start:])
    signed_header = SignedHeader(header, _OVERSIGN)
    signed = sign(key, signed_header, body.digest(), now=time.time())
    match = _SIGNATURE.search(signed)
    if not match:
        return False
    signature = base64.b64decode(_BLANK.sub(b"", match[1]))
    unsigned = signed[: match.start(1)].partition(b":")[2]
    canonical = b"dkim-signature:" + b" ".join(unsigned.split())
    return verified(key.type, public, signed_header.cover()[1] + canonical, signature)
