"""Mail without a subject: each way in takes it, and no next hop gets an empty field."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
from click.testing import CliRunner

from pgmta import Mail, SyncClient, enqueue
from queued.cli.queuectl import main
from tests.scenarios.test_composed import read
from tests.support.system import System

TEMPLATE = "---\nfrom: s@a.example\nsubject:{}\n---\nHello {{{{name}}}}.\n"


def test_a_subject_may_be_empty(system: System, tmp_path: Path) -> None:
    hop = system.hop()
    path = str(system.queued(hop).path)

    def queuectl(*words: str) -> None:
        done = CliRunner().invoke(main, [*words, "-c", path])
        assert done.exit_code == 0, done.stderr

    plain = {"sender": "s@a.example", "to": ["b@b.example"], "body": "x"}
    many = [plain, {**plain, "subject": None}, {**plain, "subject": ""}, {**plain, "subject": " "}]
    mail = "SELECT submit_mail('s@a.example', '{b@b.example}', %s, 'x')"
    for subject in ("", " ", None):
        system.ask(mail, subject)
    system.ask("SELECT submit_mail('s@a.example', '{b@b.example}', body => 'x')")
    (row,) = system.ask("SELECT ids, problems FROM submit_mails(%s)", json.dumps(many))
    assert (len(row["ids"]), row["problems"]) == (4, None)
    with SyncClient(system.uri) as client:
        client.send(Mail(sender="s@a.example", to=["b@b.example"], body="x"))
        mails = [Mail(sender="s@a.example", to=["b@b.example"], subject=subject, body="x")
                 for subject in ("", " ")]  # fmt: skip
        assert all(each.id for each in client.send_many(mails))
    with psycopg.connect(system.uri) as db:
        enqueue(db, mails[0])
    for subject in ("", " "):
        queuectl("send", "--from", "s@a.example", "--to", "b@b.example", "--subject", subject,
                 "--text", "x")  # fmt: skip
    names = {"none": "", "empty": ' ""', "word": ' "{{subject}}"'}
    for name, subject in names.items():
        (tmp_path / f"{name}.txt").write_text(TEMPLATE.format(subject))
        queuectl("template", "put", str(tmp_path / f"{name}.txt"))
        words = json.dumps({"name": "Ann"} | ({"subject": ""} if name == "word" else {}))
        system.ask("SELECT submit_template(%s, 'b@b.example', %s::jsonb)", name, words)
    for kept in hop.wait_kept(17):
        message = read(kept.content)
        assert message["Subject"] is None
        assert message.get_content().strip() in ("x", "Hello Ann.")
    system.stop()
