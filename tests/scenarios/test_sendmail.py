"""The command `sendmail`, with smtpd there and away."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from smtpd.sendmail.addresses import listed
from smtpd.sendmail.exits import Exit
from smtpd.sendmail.maildrop import Maildrop
from smtpd.sendmail.message import SubmittedMessage
from smtpd.sendmail.modes import flush
from smtpd.sendmail.options import parse
from smtpd.sendmail.settings import Settings
from smtpd.sendmail.submitted_envelope import SubmittedEnvelope
from tests.support.system import System
from tests.support.waiting import free_port, until

MAIL = b"Subject: hello\n\ntext\n.\nafter the dot\n"


class Sendmail:
    """Runs the command with settings for one smtpd."""

    def __init__(self, folder: Path, port: int) -> None:
        self.drop = folder / "maildrop"
        self.drop.mkdir(mode=0o1733, exist_ok=True)
        self.settings = folder / "sendmail.conf"
        self.settings.write_text(
            f"server = 127.0.0.1:{port}\ndirectory = {self.drop}  # here\ndomain = host.example\n"
        )

    def run(self, *words: str, given: bytes = MAIL) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "smtpd.sendmail", *words]
        environment = {**os.environ, "PGMTA_SENDMAIL_CONF": str(self.settings)}
        return subprocess.run(
            command, input=given, capture_output=True, env=environment, timeout=60, check=False
        )

    @property
    def waiting(self) -> list[str]:
        return sorted(path.name for path in self.drop.iterdir())


def rows(system: System) -> list[tuple[str, str, bytes]]:
    """Sender, recipient and body of the rows, in order."""
    query = (
        "SELECT q.sender, q.recipient, m.body FROM queue q JOIN messages m"
        " ON m.id = q.message_id ORDER BY q.id"
    )
    return [(row["sender"], row["recipient"], bytes(row["body"])) for row in system.ask(query)]


def test_options_recipients_and_header(system: System) -> None:
    smtpd = system.smtpd()
    sendmail = Sendmail(system.folder, smtpd.port)
    given = (
        b'To: "Doe, Jane" <jane@a.example>,\n bob@b.example (Bob)\nCc: group: x@c.example;\n'
        b"Bcc: hidden@d.example\nSubject: -t\n\nbody\n.\nmore"
    )
    done = sendmail.run("-t", "-oi", "-f", "shop@a.example", "-F", "Jürgen", given=given)
    assert (done.returncode, done.stderr) == (0, b"")
    found = rows(system)
    assert [row[1] for row in found] == [
        "jane@a.example", "bob@b.example", "x@c.example", "hidden@d.example"]  # fmt: skip
    body = found[0][2]
    assert found[0][0] == "shop@a.example"
    assert b"hidden" not in body
    assert b"Bcc" not in body
    assert body.endswith(b"\r\n\r\nbody\r\n.\r\nmore\r\n")
    for field in (b"\r\nDate: ", b"\r\nMessage-ID: <", b"\r\nFrom: =?utf-8?b?"):
        assert body.count(field) == 1
    # no -i: the dot ends the message; words after the options are recipients
    done = sendmail.run("-f", "<>", "root", "x@e.example")
    assert done.returncode == 0
    found = rows(system)[4:]
    assert [row[:2] for row in found] == [("", "root@host.example"), ("", "x@e.example")]
    assert found[0][2].endswith(b"\r\n\r\ntext\r\n")


@pytest.mark.slow
def test_exit_codes_and_reasons(system: System) -> None:
    smtpd = system.smtpd(relay={"networks": [], "domains": ["ours.example"]})
    sendmail = Sendmail(system.folder, smtpd.port)
    assert sendmail.run("-f", "a@x.example", "b@ours.example").returncode == 0
    part = sendmail.run("-f", "a@x.example", "b@ours.example", "c@other.example")
    assert part.returncode == 67
    assert b"c@other.example: 550 5.7.1" in part.stderr
    assert sendmail.run("-f", "a@x.example", "c@other.example").returncode == 69
    assert sendmail.run("-t", given=b"Subject: x\n\ny\n").returncode == 64
    unknown = sendmail.run("-k", "b@ours.example")
    reason = b"sendmail: unknown option -k; `sendmail --help` lists them\n"
    assert (unknown.returncode, unknown.stderr) == (64, reason)
    assert sendmail.run("-bv", "-f", "a@x.example", "b@ours.example").stdout.endswith(
        b"deliverable\n"
    )
    verified = sendmail.run("-bv", "-f", "a@x.example", "b@ours.example, C <c@other.example>")
    assert (verified.returncode, verified.stdout.count(b"\n")) == (67, 2)
    assert b"c@other.example... 550 5.7.1" in verified.stdout
    assert sendmail.run("-bv").returncode == 64
    assert sendmail.run("-bi").returncode == 0
    usage = sendmail.run("--help")
    assert (usage.returncode, usage.stdout[:6], usage.stderr) == (0, b"Usage:", b"")
    sendmail.settings.write_text("serve = x\n")
    wrong = sendmail.run("b@ours.example")
    assert wrong.returncode == 78
    assert b"line 1: 'serve' is no setting" in wrong.stderr
    sendmail.settings.write_text("server = 127.0.0.1:1\ndirectory = /nowhere\n")
    assert sendmail.run("b@ours.example").returncode == 75
    assert len(rows(system)) == 2


@pytest.mark.slow
def test_arguments_are_lists_of_addresses(system: System) -> None:
    """Debian's cron gives MAILTO as one argument."""
    smtpd = system.smtpd()
    sendmail = Sendmail(system.folder, smtpd.port)
    for words, expected in (
        (["-FCronDaemon", "-i", "-B8BITMIME", "-oem", "ann@a.example,bob@a.example"], 2),
        (["-i", "ann@a.example, bob@a.example"], 2),
        (["-d0.1", "-i", "Bob Example <bob@a.example>"], 1),
        (["-i", '"Doe, Jane" <jane@a.example>', "team: x@a.example, root;"], 3),
        (["-i", "root ann@a.example"], 2),
        (["-f", "Shop <shop@a.example>", "ann@a.example", "ann@a.example"], 1),
    ):
        before = len(rows(system))
        done = sendmail.run(*words)
        assert (done.returncode, done.stderr) == (0, b""), words
        assert len(rows(system)) - before == expected, words
    last = rows(system)[-1]
    assert last[:2] == ("shop@a.example", "ann@a.example")
    assert ("root@host.example") in [row[1] for row in rows(system)]
    wrong = sendmail.run("ann@a.example, <bob@a.example")
    assert (wrong.returncode, b"< without >" in wrong.stderr) == (65, True)


@pytest.mark.slow
@pytest.mark.parametrize("early", ["allow", "refuse"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_dialogue_from_a_pipe(system: System, end: bytes, early: str) -> None:
    """A program writes all of it at once; smtpd may refuse clients that do not wait."""
    smtpd = system.smtpd(
        listen=[{"address": "127.0.0.1", "port": free_port(), "role": "internal", "early": early}]
    )
    sendmail = Sendmail(system.folder, smtpd.port)
    text = b"x" * 70 + end
    dialogue = [
        b"EHLO me", b"MAIL FROM:<a@b.example>", b"RCPT TO:<c@d.example>", b"DATA", b"Subject: x",
        b"", b"..dot", text * 4000, b".", b"MAIL FROM:<a@b.example>", b"RCPT TO:<e@d.example>",
    ]  # fmt: skip
    chunk = b"Subject: y\r\n\r\n.\r\nBDAT 1\r\n"
    octets = end.join(dialogue) + end + b"BDAT %d LAST" % len(chunk) + end + chunk
    done = sendmail.run("-bs", given=octets + b"NOOP" + end + b"QUIT" + end)
    assert (done.returncode, done.stderr) == (0, b""), done.stdout
    replies = [line for line in done.stdout.split(b"\r\n") if line[3:4] == b" "]
    codes = b"220 250 250 250 354 250 250 250 250 250 221"
    assert b" ".join(line[:3] for line in replies) == codes
    (_, first, body), (_, second, other) = rows(system)
    assert (first, second) == ("c@d.example", "e@d.example")
    assert other == chunk
    assert b"\r\n.dot\r\nxxx" in body or not body  # a large one is in chunks
    cut = sendmail.run("-bs", given=end.join(dialogue[:6]) + end + b"half" + end + b".")
    assert (cut.returncode, len(rows(system))) == (65, 2)


@pytest.mark.slow
def test_smtp_on_standard_input(system: System) -> None:
    smtpd = system.smtpd()
    sendmail = Sendmail(system.folder, smtpd.port)
    dialogue = (
        b"EHLO me\r\nMAIL FROM:<a@b.example> BODY=8BITMIME\r\nRCPT TO:<%s@d.example>\r\n"
        b"DATA\r\nSubject: x\r\n\r\n..dot\r\n.\r\nQUIT\r\n"
    )
    done = sendmail.run("-bs", given=dialogue % b"first")
    assert done.stdout.count(b"\r\n250 2.") == 3
    smtpd.stop()
    done = sendmail.run("-bs", given=dialogue % b"second")
    assert done.stdout.endswith(b".mail waits\r\n221 2.0.0 bye\r\n")
    assert [row[1] for row in rows(system)] == ["first@d.example"]
    smtpd.start()
    smtpd.wait_log("serving", 2)
    assert sendmail.run("-q").returncode == 0
    found = rows(system)
    assert [row[1] for row in found] == ["first@d.example", "second@d.example"]
    assert found[0][2] == found[1][2]


@pytest.mark.slow
def test_smtpd_stops_meanwhile_and_nothing_is_lost_or_doubled(system: System) -> None:
    """Eight callers send while smtpd stops and starts; a restarted smtpd takes waiting mail."""
    folder = system.folder / "maildrop"
    smtpd = system.smtpd(maildrop={"directory": str(folder)})
    sendmail = Sendmail(system.folder, smtpd.port)
    failed: list[bytes] = []

    def call(name: int) -> None:
        for number in range(12):
            done = sendmail.run("-i", "-f", "a@x.example", f"r{name}.{number}@y.example")
            if done.returncode:
                failed.append(done.stderr)

    callers = [threading.Thread(target=call, args=(name,)) for name in range(8)]
    for caller in callers:
        caller.start()
    until(lambda: len(rows(system)) > 5, describe="first mail")
    smtpd.stop()
    until(lambda: len(sendmail.waiting) > 5, describe="waiting mail")
    (folder / "broken.mail").write_bytes(b"{}\nx")
    smtpd.start()
    smtpd.wait_log("serving", 2)
    for caller in callers:
        caller.join()
    assert failed == []
    until(lambda: sendmail.waiting == ["broken.refused"], describe="an empty maildrop")
    sent = [f"r{name}.{number}@y.example" for name in range(8) for number in range(12)]
    assert sorted(row[1] for row in rows(system)) == sorted(sent)


def test_files_that_are_not_ours_harm_nothing(system: System, tmp_path: Path) -> None:
    """Links, pipes and odd names in the maildrop are named once and set aside; other mail goes."""
    smtpd = system.smtpd()
    sendmail = Sendmail(system.folder, 1)
    assert sendmail.run("x@y.example").returncode == 0
    (good,) = sendmail.waiting
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"sender": "", "recipients": ["thief@y.example"]}) + "\nx")
    (sendmail.drop / "0-link.mail").symlink_to(secret)
    (sendmail.drop / "0-loop.mail").symlink_to("0-loop.mail")
    os.link(secret, sendmail.drop / "0-hard.mail")
    os.mkfifo(sendmail.drop / "0-pipe.mail")
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(sendmail.drop / "0-socket.mail"))
    odd = ["made\nup.mail", "made up.mail", "\x1b[2J.mail", ".mail", "\udcff.mail"]
    for name in (odd := [*odd, "a" * 250 + ".mail"]):
        (sendmail.drop / name).write_bytes(b"x")
    sendmail.settings.write_text(
        f"server = 127.0.0.1:{smtpd.port}\ndirectory = {sendmail.drop}\ndomain = host.example\n"
    )
    first, second = sendmail.run("-q"), sendmail.run("-q")
    assert (first.returncode, second.returncode, second.stderr) == (0, 0, b"")
    lines = first.stderr.decode("ascii").splitlines()
    assert len(lines) == 5 + len(odd), lines
    assert all("set aside" in line and line.isprintable() for line in lines)
    assert [row[1] for row in rows(system)] == ["x@y.example"]
    assert good not in sendmail.waiting
    assert len(sendmail.waiting) == 5 + len(odd)
    assert all(name.endswith(".refused") for name in sendmail.waiting)
    assert secret.exists()


def test_only_who_may_remove_waiting_mail_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would send the same files again and again."""
    tmp_path.chmod(0o1777)
    drop = Maildrop(str(tmp_path))
    drop.keep_message(SubmittedEnvelope("a@b.example", ["c@d.example"]), b"x", "test")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(Exit, match=r"only the owner of .* can send what waits there"):
        flush(Settings(), drop, verbose=False)


def test_hostile_files_of_a_user_harm_no_mail_of_others(system: System) -> None:
    """Any user may write files into the maildrop: these come first, and other mail follows."""
    smtpd = system.smtpd(relay={"domains": ["y.example"], "networks": []})
    sendmail = Sendmail(system.folder, 1)
    for number in range(2):
        assert sendmail.run("-f", "good@x.example", f"g{number}@y.example").returncode == 0
    assert sendmail.run("-f", "good@x.example", "g@other.example").returncode == 0  # is refused
    usual = {"sender": "", "recipients": ["a@y.example"], "notify": "", "ret": "", "envid": "",
             "body": ""}  # fmt: skip
    second = "a@y.example>\r\nDATA\r\nSubject: x\r\n\r\n.\r\nMAIL FROM:<>\r\nRCPT TO:<b@y.example"
    hostile: list[dict[str, object]] = [
        {"sender": 5}, {"sender": None}, {"recipients": "a@y.example"}, {"recipients": [["x"]]},
        {"recipients": [5, None]}, {"recipients": []}, {"recipients": {}}, {"notify": {}},
        {"recipients": [second]}, {"recipients": ["a@y.example", "\r\nDATA\r\nx"]},
        {"sender": "a@b.example>\r\nNOOP\r\nNOOP\r\nNOOP\r\nNOOP"}, {"envid": "a\r\nRSET\r\nRSET"},
        {"sender": "\0"}, {"sender": "a" * 70_000}, {"sender": "\ud800"}, {"size": 1e400},
    ]  # fmt: skip
    for number, changes in enumerate(hostile):
        head = {**usual, "size": 1, **changes}
        (sendmail.drop / f"0-{number:02}.mail").write_bytes(json.dumps(head).encode() + b"\nx")
    (sendmail.drop / "0-deep.mail").write_bytes(b"[" * 100_000 + b"\n")
    for name in ("0-made.mail", "0-00.refused"):
        (sendmail.drop / name).mkdir()
    with (sendmail.drop / "0-sparse.mail").open("wb") as file:
        file.write(json.dumps({**usual, "size": 1 << 40}).encode() + b"\n")
        file.truncate(1 << 40)
    sendmail.settings.write_text(
        f"server = 127.0.0.1:{smtpd.port}\ndirectory = {sendmail.drop}\ndomain = host.example\n"
    )
    done = sendmail.run("-q")
    assert b"Traceback" not in done.stderr
    recipients = [row[1] for row in rows(system)]
    assert recipients == ["g0@y.example", "g1@y.example"]
    assert [name for name in sendmail.waiting if name.endswith(".mail")] == []
    assert len([name for name in sendmail.waiting if name.startswith("1")]) == 1


@pytest.mark.parametrize(
    ("given", "fields", "body"),
    [
        (b"", [], b""),
        (b"no header\n", [], b"no header\r\n"),
        (b"\nno header: x\n", [], b"no header: x\r\n"),
        (b"A: 1\n folded\nB: 2\n\n\nx", [b"A: 1\r\n folded\r\n", b"B: 2\r\n"], b"\r\nx\r\n"),
        (b"From me Mon\nA: 1\n\nx\r", [b"A: 1\r\n"], b"x\r\n"),
        (b"A: 1\nnot a field\n", [b"A: 1\r\n"], b"not a field\r\n"),
        (b"A: 1\r\n\rx\ry\n\r\n", [b"A: 1\r\n"], b"x\r\ny\r\n\r\n"),
    ],
)
def test_header_and_body(given: bytes, fields: list[bytes], body: bytes) -> None:
    message = SubmittedMessage(given)
    assert (message.fields, message.body) == (fields, body)


def test_options_of_known_callers() -> None:
    """cron, mutt, git, PHP, mailx and Mailutils give these."""
    cron = parse(["-FCronDaemon", "-i", "-B8BITMIME", "-oem", "root"])
    assert (cron.full_name, cron.envelope.body) == ("CronDaemon", "8BITMIME")
    assert cron.envelope.recipients == ["root"]
    mutt = parse(["-oem", "-oi", "-N", "delay,failure", "-R", "hdrs", "-V", "a+b", "--", "-x@y"])
    assert not mutt.dot_ends
    assert vars(mutt.envelope) == {
        "sender": "", "recipients": ["-x@y"], "notify": "DELAY,FAILURE", "ret": "HDRS",
        "envid": "a+2Bb", "body": ""}  # fmt: skip
    assert parse(["-t", "-i", "-fshop@x.example"]).sender == "shop@x.example"
    assert parse(["-q30m"]).mode == "flush"
    assert parse(["-bm", "-odb", "-h", "3", "x"]).envelope.recipients == ["x"]


LISTS: list[tuple[str, list[str] | str]] = [
    ("a@b.example,c@d.example", ["a@b.example", "c@d.example"]),
    ('"Doe, Jane" <jane@a.example> , bob@b (Bob, (really))', ["jane@a.example", "bob@b"]),
    (
        "team: x@c.example, Y <y@c.example>; z@c.example",
        ["x@c.example", "y@c.example", "z@c.example"],
    ),
    ("undisclosed-recipients:;", []),
    ("root ann", ["root", "ann"]),
    ("Ann ann@x.example", ["Ann", "ann@x.example"]),
    ("a@x.example,\r\n b@y.example\n c@z", ["a@x.example", "b@y.example", "c@z"]),
    ('"john, doe"@x.example', ['"john, doe"@x.example']),
    ("pete(his account)@silly.test(host)", ["pete@silly.test"]),
    ("joe @ b.example", ["joe@b.example"]),
    ("<@a,@b:joe@x.example>", ["joe@x.example"]),
    ("a@[IPv6:::1]; b@c", ["a@[IPv6:::1]", "b@c"]),
    ("<>", [""]),
    ("", []),
    (" , ,", []),
    ("<a@b> <c@d>", "two addresses without a comma"),
    ("a <b", "< without >"),
    ("x: y@z", "a group without ;"),
    ("(" * 9999, "( without )"),
    ("Bob <bob@x> junk", "text behind >"),
]


@pytest.mark.parametrize(("text", "expected"), LISTS)
def test_lists_of_addresses(text: str, expected: list[str] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(Exit, match=re.escape(expected)) as caught:
            listed(text, "To")
        assert caught.value.code == 65
    else:
        assert listed(text, "To") == expected


def test_only_the_standard_library_is_imported() -> None:
    parts = ", ".join(f"smtpd.sendmail.{part}" for part in ("modes", "dialogue", "relay"))
    code = f"import sys, {parts}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    roots = {name.partition(".")[0] for name in modules if not name.startswith("__editable__")}
    installed = {
        "__main__",
        "_distutils_hack",
        "sitecustomize",
        "usercustomize",
    }  # by Python's site
    assert roots - {"smtpd"} <= sys.stdlib_module_names | installed
