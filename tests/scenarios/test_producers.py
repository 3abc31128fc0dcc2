"""Batches from several processes at a time: each names its refused mails, and stores the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psycopg

from tests.sql.test_composed import SOURCE, put_template
from tests.support.rows import column

SIZE = 400
PROGRAM = """
import json, random, sys
import psycopg, pgmta

uri, way, worker, size = *sys.argv[1:4], int(sys.argv[4])
GOOD = {"sender": "s@a.example", "body": "x"}
BAD = {
    3: {"to": ["bob"]}, 4: {"subject": "a\\nb"}, 70: {"body": None},
    171: {"headers": {"Date": "x"}}, 172: {"metadata": {"_x": 1}}, 250: {"key": "taken"},
    size - 1: {"to": []},
}

def mail(n):
    given = {**GOOD, "to": [f"r{n}@b.example"], "subject": f"{worker} {n}", **BAD.get(n, {})}
    if n == 333:
        return {"template": "receipt", "recipient": "r@b.example", "params": {"nmae": 1}}
    return given

def shared(n):
    return {**GOOD, "to": [f"r{n}@b.example"], "subject": f"shared {n}", "key": f"shared {n}"}

def made(given):
    return pgmta.TemplateMail(**given) if "template" in given else pgmta.Mail(**given)

def shown(error):
    return f"{getattr(error, 'sqlstate', '')} {error}"

own = [mail(n) for n in range(size)]
both = [shared(n) for n in range(size)]
if way == "client":
    order = list(range(size))
    random.Random(worker).shuffle(order)
    with pgmta.SyncClient(uri) as client:
        results = client.send_many(made(each) for each in own)
        found = client.send_many(made(both[n]) for n in order)
        copies = dict(zip(order, found))
def by_sql(db, mails):
    call = "SELECT ids, problems FROM pgmta.submit_mails(%s)"
    ids, problems = db.execute(call, [json.dumps(mails)]).fetchone()
    texts = {each["index"]: f"{each['code']} {each['message']}" for each in problems or ()}
    return [pgmta.SendResult(id, texts.get(n)) for n, id in enumerate(ids)]

def by_enqueue(db, mails):
    return pgmta.enqueue_many(db, [made(each) for each in mails])

submit = by_sql if way == "sql" else by_enqueue
while way != "client":
    try:
        with psycopg.connect(uri) as db:
            results, copies = submit(db, own), dict(enumerate(submit(db, both)))
        break
    except psycopg.errors.DeadlockDetected:  # with keys that others lock in another order
        continue
print(json.dumps({
    "refused": {n: shown(each.error) for n, each in enumerate(results) if each.error},
    "ids": [each.id for each in results if each.id],
    "copies": [copies[n].id for n in range(size)],
    "troubles": [shown(each.error) for each in copies.values() if each.error],
}))
"""
REFUSED = {
    3: "to: ", 4: "subject: ", 70: "body: ", 171: "headers: ", 172: "metadata: ", 250: "key: ",
    333: "params: ", SIZE - 1: "to: ",
}  # fmt: skip


def test_each_refused_mail_is_named(tmp_path: Path, database: str, db: psycopg.Connection) -> None:
    """Some mails have keys that all processes share, and come in other orders."""
    put_template(db, "receipt", SOURCE)
    db.execute("SELECT submit_mail('s@a.example', '{b@b.example}', 'x', 'x', key => 'taken')")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    ways = ["client", "client", "client", "enqueue", "sql"]
    programs = [
        subprocess.Popen(
            [sys.executable, "program.py", database, way, str(worker), str(SIZE)],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for worker, way in enumerate(ways)
    ]  # fmt: skip
    answers = []
    for program in programs:
        output, errors = program.communicate(timeout=100)
        assert (program.returncode, errors) == (0, "")
        answers.append(json.loads(output))
    for worker, answer in enumerate(answers):
        assert answer["troubles"] == []
        refused = {int(n): text for n, text in answer["refused"].items()}
        assert refused.keys() == REFUSED.keys()
        for n, text in refused.items():
            assert REFUSED[n] in text, (ways[worker], n)
        good = [n for n in range(SIZE) if n not in REFUSED]
        subjects: dict[int, str] = dict(
            db.execute(
                "SELECT id, params->>'subject' FROM messages WHERE id = ANY (%s)", [answer["ids"]]
            ).fetchall()
        )
        assert [subjects[each] for each in answer["ids"]] == [f"{worker} {n}" for n in good]
    # a key gives all of them one mail
    assert len({tuple(answer["copies"]) for answer in answers}) == 1
    counts = Counter(column(db, "SELECT params->>'subject' FROM messages"))
    assert counts == Counter(
        ["x", *(f"shared {n}" for n in range(SIZE)),
         *(f"{worker} {n}" for worker in range(len(ways)) for n in good)]
    )  # fmt: skip
