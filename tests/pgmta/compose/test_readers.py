"""Readers of others read composed mail back as it was given: postal-mime of Node, and Dovecot."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given

from tests.pgmta.compose.test_mime import composed
from tests.support.composing import Attachment, Read, expected, files, params
from tests.support.packages import folder

SCRIPT = Path(__file__).with_name("read_mail.js")


@pytest.fixture(scope="module")
def node() -> Iterator[Callable[[bytes], dict[str, Any]]]:
    with subprocess.Popen(
        ["node", SCRIPT],
        env={"NODE_PATH": str(folder() / "node_modules"), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:

        def read(content: bytes) -> dict[str, Any]:
            assert process.stdin
            assert process.stdout
            process.stdin.write(b64encode(content) + b"\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        yield read
        process.terminate()


@pytest.mark.needs("nodejs", "postal-mime")
@given(given=params(), attachments=files(inline=True))
def test_postal_mime(
    node: Callable[[bytes], dict[str, Any]], given: dict[str, Any], attachments: list[Attachment]
) -> None:
    if given.get("html") is None:
        attachments = [each for each in attachments if not each.content_id]
    assume("\\ufeff" not in repr((given, attachments)))  # Node drops it where a text begins
    wanted = expected(given, attachments)
    answer = node(composed(given, attachments))
    names = {name.lower() for name, _ in wanted.headers}
    read = Read(
        {key: list(map(tuple, answer[key])) for key in wanted.mailboxes},
        answer["subject"],
        [(n, v) for n, v in answer["headers"] if n.lower() in names],
        answer.get("text", "") if wanted.body is not None else None,
        answer.get("html", "") if wanted.html is not None else None,
        [(n, t, b64decode(c), i) for n, t, c, i in answer["attachments"]],
    )
    assert _plain(read) == _plain(wanted)


def _plain(read: Read) -> Read:
    """Return it as postal-mime has it: without some quotes of addresses, and other line ends."""
    return read._replace(
        mailboxes={
            key: [(name, address.replace('"', "")) for name, address in found]
            for key, found in read.mailboxes.items()
        },
        body=read.body and read.body.replace("\r\n", "\n").rstrip("\n"),
        html=read.html and read.html.replace("\r\n", "\n").rstrip("\n"),
    )
