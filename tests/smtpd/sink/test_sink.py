"""The development sink keeps what it gets, octet for octet."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.smtpd.sink.sink import SMTPD, Sink
from tests.support.serving import Client
from tests.support.waiting import PATIENCE, free_port


def test_the_sink_keeps_what_it_gets(sink: Sink, said: Path) -> None:
    content = b"Subject: \xc3\xbc \xff\r\n\r\n.\r\n..x\ny\rz\r\n" + b"long" * 100_000 + b"\r\n"
    folder = sink.folder
    with Client(sink.port) as client:
        assert client.reply() == "220 sink.localhost ESMTP pgmta development sink"
        words = client.say("EHLO c").split("\n")
        assert {"250-PIPELINING", "250-8BITMIME", "250-SMTPUTF8", "250-ENHANCEDSTATUSCODES"} < set(
            words
        )
        assert f"250-SIZE {100 << 20}" in words
        assert client.say("MAIL FROM:<> SIZE=10 SMTPUTF8 BODY=8BITMIME") == "250 2.1.0 Ok"
        recipients = ['"a b@c"@d.example', "ü@é.example", "x@[IPv6:::1]", "a+b=c@EXAMPLE.org"]
        for recipient in recipients:
            assert client.say(f"RCPT TO:<{recipient}>") == "250 2.1.5 Ok"
        assert client.say("DATA")[:3] == "354"
        client.send(b"\r\n".join(b"." + x if x[:1] == b"." else x for x in content.split(b"\r\n")))
        name = client.say(".").removeprefix("250 2.0.0 kept as ")
        client.send(b"MAIL FROM:<s@a.example>\r\nRCPT TO:<r@b.example>\r\nDATA\r\n")
        assert [client.reply()[:3] for _ in range(3)] == ["250", "250", "354"]
        other = client.say(".").removeprefix("250 2.0.0 kept as ")
        client.send(b'MAIL FROM:<"s\x1b[2J"@a.example>\r\n')
        client.send(b'RCPT TO:<"r\rX: y\x9b\xc2\x9b"@b.example>\r\n')
        assert [client.reply()[:3] for _ in range(2)] == ["250", "250"]
        assert client.say("DATA")[:3] == "354"
        client.send(b"Subject: =?utf-8?b?R3LDvMOfZQ==?=\r\n =?utf-8?q?_=0A=1B?=\r\n")
        odd = client.say(".").removeprefix("250 2.0.0 kept as ")
        assert client.say("QUIT")[:3] == "221"
    envelope = "Return-Path: <>\r\n" + "".join(f"Delivered-To: {r}\r\n" for r in recipients)
    assert (folder / "new" / name).read_bytes() == envelope.encode() + content
    envelope = "Return-Path: <s@a.example>\r\nDelivered-To: r@b.example\r\n"
    assert (folder / "new" / other).read_bytes() == envelope.encode()
    assert (folder / "new" / odd).read_bytes().splitlines()[:2] == [
        b'Return-Path: <"s\\x1b[2J"@a.example>',
        b'Delivered-To: "r\\rX: y\\udc9b\\x9b"@b.example',  # a terminal obeys none of it
    ]
    first, second, third = said.read_text().splitlines()
    assert first.endswith(
        f">, <ü@é.example>, <x@[IPv6:::1]>, <a+b=c@EXAMPLE.org>: ü \ufffd (new/{name})"
    )
    assert first.startswith("mail      <> to <")
    assert second == f"mail      <s@a.example> to <r@b.example>:  (new/{other})"
    assert re.search(rf": Grüße .{{1,20}} \(new/{re.escape(odd)}\)$", third)
    assert "\x1b" not in third
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.glob("???"))} == {0o700}


def refused(*command: str) -> str:
    """The error of a command that can't start."""
    done = subprocess.run([*SMTPD, *command], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.slow
def test_errors_name_the_process_that_has_the_port_and_the_folder(
    sink: Sink, tmp_path: Path
) -> None:
    port, folder = sink.port, sink.folder
    config = tmp_path / "smtpd.yaml"
    database = "{uri: 'postgresql://127.0.0.1:1/x'}"
    config.write_text(f"listen: [{{port: {port}}}]\nenvironment: {{database: {database}}}\n")
    told = f"error: can't listen on 127.0.0.1 port {port}: Address already in use: pid "
    for command in (["sink", "--port", str(port)], ["run", "-c", str(config)]):
        error = refused(*command, *(["--maildir", str(folder)] if command[0] == "sink" else []))
        assert error.startswith(told)
        assert " -m smtpd sink" in error
        assert error.endswith(" has it\n")
    error = refused(
        "sink", "--port", str(free_port()), "--page-port", str(port), "--maildir", str(folder)
    )
    assert error.startswith(told)
    (tmp_path / "file").touch()
    error = refused(
        "sink", "--port", str(free_port()), "--maildir", str(tmp_path / "file" / "sink")
    )
    assert error == f"error: {tmp_path}/file: File exists\n"
