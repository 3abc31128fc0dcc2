"""`queuectl campaign create` and `preview`."""

from __future__ import annotations

import json

import psycopg
import yaml

from pgmta.compose.template import TemplateSource
from tests.features.campaigns.commands.site import Site
from tests.scenarios.test_composed import body, put_template, read
from tests.support.rows import column

HEAD = "recipient,name,city\n"


def test_a_campaign_uses_a_version_of_a_template(site: Site, db: psycopg.Connection) -> None:
    put_template(db, "hello")
    said = site.said(
        "create", "other", "--template", "hello", "--version", "1", "--credential", "ses-1",
        "--at", "2030-01-31T09:30:00+01:00", "--deadline", "2030-02-01T00:00:00Z", "--scope", "x",
        "--sender", "", "--priority", "8", "--tenant", "acme",
    )  # fmt: skip
    assert said == (
        "created other, campaign 2, with template hello version 1; "
        "a list has the columns recipient, city, name\n"
    )
    rows = db.execute(
        "SELECT tenant, credential, sender, scope, priority, visible_at = '2030-01-31 08:30+00',"
        " deadline = '2030-02-01 00:00+00' FROM campaigns WHERE name = 'other'"
    )
    assert rows.fetchall() == [("acme", "ses-1", "", "x", 8, True, True)]
    assert column(db, "SELECT condition FROM audit WHERE action = 'campaign create'") == [
        "news", "other",
    ]  # fmt: skip


def test_the_time_of_a_campaign_is_said_with_its_zone(site: Site) -> None:
    made = site.run("create", "x-mas", "--template", "hello", "--credential", "ses-1",
                    "--at", "24 Dec 2035 18:00 Europe/Berlin")  # fmt: skip
    assert "--at: 2035-12-24 18:00:00 +01:00 (Europe/Berlin)\n" in made.stderr
    query = "SELECT visible_at = '2035-12-24 17:00+00' FROM campaigns WHERE name = 'x-mas'"
    assert column(site.db, query) == [True]


def test_campaigns_that_are_refused(site: Site) -> None:
    for options, reason in (
        (("--template", "nope", "--credential", "c"), "nope"),
        (("--template", "hello", "--credential", "c", "--at", "soon"), "--at 'soon'"),
        (("--template", "hello", "--credential", ""), "credential: it does not fit"),
        (("--template", "hello", "--credential", "c", "--deadline", "2001-01-01T00:00:00Z"),
         "deadline"),
        (("--template", "hello", "--credential", "c", "--priority", "10"),
         "priority: it does not fit"),
    ):  # fmt: skip
        found = site.run("create", "other", *options)
        assert found.exit_code in (1, 2), found.stderr
        assert reason in found.stderr
        assert "Traceback" not in found.stderr
    again = site.run("create", "news", "--template", "hello", "--credential", "c")
    assert 'there is a campaign "news" already' in again.stderr
    for name in ("a  b", " a", "a ", "a\tb", "a" + 32 * " b"):
        odd = site.run("create", name, "--template", "hello", "--credential", "c")
        assert odd.stderr.startswith("error: name: it does not fit. A letter, then up to 63")
    assert column(site.db, "SELECT name FROM campaigns") == ["news"]


def test_a_name_may_have_blanks(site: Site) -> None:
    name = "Spring sale 2026"
    site.create(name)
    assert "import 'Spring sale 2026' FILE" in site.said("show", name)
    site.said("import", name, site.file(HEAD + "a@x.example,Ann,Kiel\n"))
    assert "Dear Ann" in site.said("preview", name)
    site.said("start", name)
    site.said("stop", name)
    assert "resume 'Spring sale 2026'" in site.said("show", name)
    assert name in site.said("list")
    assert "did you mean Spring sale 2026?" in site.run("show", "Spring sail 2026").stderr
    site.said("resume", name)
    assert "a@x.example" in site.said("export", name)


def test_the_preview_is_the_mail_of_a_recipient(site: Site, db: psycopg.Connection) -> None:
    site.imported(HEAD + "a@x.example,Ann,Kiel\nb@x.example,Bob,Köln\n")
    mail = read(site.said("preview", "news", "2").encode())
    assert (mail["To"], mail["Subject"]) == ("b@x.example", "Hello Bob")
    assert "List-Unsubscribe" not in mail
    assert body(mail, "plain") == "Dear Bob in Köln, you are b@x.example.\n"
    assert "Dear Ann" in site.said("preview", "news", "--text")
    assert json.loads(site.said("preview", "news", "--json"))["subject"] == "Hello Ann"
    assert "the template has no html" in site.run("preview", "news", "--html").stderr
    assert "news has no recipient 3; the last one is 2" in site.run("preview", "news", "3").stderr
    assert column(db, "SELECT count(*) FROM queue") == [0]
    assert column(db, "SELECT state FROM campaign_recipients") == ["unsent", "unsent"]


def test_the_preview_of_a_recipient_by_address_or_by_chance(
    site: Site, db: psycopg.Connection
) -> None:
    nobody = site.run("preview", "news", "--any")
    assert "news has no recipient 1; import some first" in nobody.stderr
    rows = "a@x.example,Ann,Kiel\nBob@MÜLLER.example,Bob,\nc@x.example,Cid,Ulm\n"
    site.imported(HEAD + rows)
    for address in ("bob@xn--mller-kva.example", '"BOB"@müller.example'):
        found = site.run("preview", "news", "--recipient", address, "--text")
        assert found.stdout.startswith("Dear Bob in , you are Bob@xn--mller-kva.example.")
        assert found.stderr == "recipient 2: the word city is empty\n"
    assert "no recipient z@x.example" in site.run("preview", "news", "--recipient",
                                                  "z@x.example").stderr  # fmt: skip
    assert "exclude each other" in site.run("preview", "news", "1", "--any").stderr
    # those that are left after others were taken out
    db.execute("DELETE FROM campaign_recipients WHERE number <> 2")
    for _ in range(9):
        chosen = site.run("preview", "news", "--any", "--text")
        assert chosen.exit_code == 0
        assert "recipient 2, Bob@xn--mller-kva.example\n" in chosen.stderr
    db.execute("UPDATE campaign_recipients SET params = params - 'name'")
    missing = site.run("preview", "news", "2")
    assert missing.exit_code == 1
    assert "recipient 2, Bob@xn--mller-kva.example: the word name is missing" in missing.stderr


def test_the_preview_has_all_parts(site: Site, db: psycopg.Connection) -> None:
    put_template(db, "both", TemplateSource(
        sender="s@a.example", from_="s@a.example", subject="Für {{name}}", body="Dear {{name}}\n",
        html="<style>p {}</style><p>Dear <b>{{name}}</b>,</p><a href='https://a.example'>Look</a>",
    ))  # fmt: skip
    site.said("create", "both", "--template", "both", "--credential", "c")
    site.said("import", "both", site.file("recipient,name\na@x.example,Ann & Bob\n"))
    said = site.said("preview", "both", "--parts")
    whole = json.loads(site.said("preview", "both", "--json"))
    assert "\nSubject: Für Ann & Bob\n" in said
    assert "Dear Ann & Bob\n" in said
    html = "<p>Dear <b>Ann &amp; Bob</b>,</p><a href='https://a.example'>Look</a>"
    assert f"--- html\n<style>p {{}}</style>{html}\n" in said
    assert whole["size"] == len(whole["content"].encode())
    assert f"{whole['size']:,} octets" in said
    site.said("create", "sms", "--template", "both", "--credential", "c")
    site.said("import", "sms", site.file("recipient,name\n+49 170 1234567,Zoë ✓\n"))
    segments = "1 segment, 11 units of UCS-2, because of ë✓"
    assert segments.replace("ë✓", "ë ✓") in site.said("preview", "sms", "--parts")
    assert json.loads(site.said("preview", "sms", "--json"))["segments"]["number"] == 1


def test_the_preview_has_an_example_of_the_link_that_unsubscribes(
    site: Site, db: psycopg.Connection
) -> None:
    put_template(db, "bye", TemplateSource(
        sender="s@a.example", from_="s@a.example", subject="x", body="Stop: {{unsubscribe}}\n"
    ))  # fmt: skip
    made = json.loads(site.said("create", "bye", "--template", "bye", "--credential", "c",
                                "--scope", "news", "--json"))  # fmt: skip
    assert made["columns"] == ["recipient"]
    site.said("import", "bye", site.file("recipient\na@x.example\n"))
    site.configure({"tokens": {"unsubscribe_url": "https://mail.shop.example"}})
    mail = read(site.said("preview", "bye").encode())
    link = body(mail, "plain").removeprefix("Stop: ").strip()
    assert link.startswith("https://mail.shop.example/unsubscribe?token=")
    assert mail["List-Unsubscribe"] == f"<{link}>"
    assert mail["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"


def test_a_credential_that_nothing_names_is_said(site: Site, db: psycopg.Connection) -> None:
    """A route, a condition of a worker, or a budget names it; an unreadable file says nothing."""

    def said(credential: str) -> str:
        name = f"c{column(db, 'SELECT count(*) FROM campaigns')[0]}"
        made = site.run("create", name, "--template", "hello", "--credential", credential)
        assert made.exit_code == 0, made.stderr
        return made.stderr

    usual = "no route, budget or option names it; its mail goes by the usual route\n"
    assert said("ses-1") == f"--credential ses-1: {usual}"
    routes = {"routes": [{"metadata.credential": ["ses-1", "ses-2"], "to": "h.example"}]}
    (site.folder / "shaping.yaml").write_text(yaml.safe_dump(routes))
    worker = {"name": "w", "where": "metadata->>'credential' = 'other'"}
    site.configure({"shaping": "shaping.yaml", "workers": [worker]})
    db.execute("SELECT budget_set('credential:twilio', 10, NULL)")
    for known in ("ses-1", "ses-2", "twilio", "other"):
        assert said(known) == ""
    near = "--credential ses1: no route, budget or option names it; near: ses-1, ses-2\n"
    assert said("ses1") == near
    site.configure({"shaping": "none.yaml"})
    assert said("ses1") == ""


def test_a_scope_needs_the_url_of_its_links(site: Site, db: psycopg.Connection) -> None:
    db.execute("SELECT budget_set('credential:c', 10, NULL)")
    given = ("--template", "hello", "--credential", "c", "--scope", "news")
    site.configure({})
    said = site.run("create", "one", *given).stderr
    assert "tokens.unsubscribe_url is missing in queued.yaml" in said
    site.configure({"tokens": {"unsubscribe_url": "https://a.example"}})
    assert site.run("create", "two", *given).stderr == ""


def test_the_preview_has_its_subject_as_it_is_read(site: Site, db: psycopg.Connection) -> None:
    subject = "Frühling für {{name}}, " + "und noch mehr " * 10
    put_template(db, "spring", TemplateSource(
        sender="s@a.example", from_="s@a.example", subject=subject, body="Subject: x\n"
    ))  # fmt: skip
    site.said("create", "spring", "--template", "spring", "--credential", "c")
    site.said("import", "spring", site.file("recipient,name\na@x.example,Jörg\n"))
    lines = site.said("preview", "spring").splitlines()
    assert subject.replace("{{name}}", "Jörg") in [line.removeprefix("Subject: ") for line in lines]
    assert lines[lines.index("") :] == ["", "Subject: x"]
    assert "=?utf-8?" not in "".join(lines)
