"""`queuectl template`: files into versions, and mail that they would make."""

from __future__ import annotations

import email
import email.policy
import json
import webbrowser
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from queued.cli.queuectl import main
from tests.sql.test_roles import acting
from tests.support.rows import column

FIELDS = "---\nfrom: Shop <info@shop.example>\nsubject: Order {{order}}\n---\n"
TEXT = f"{FIELDS}\nHello {{{{name}}}}\n"
HTML = '<p>Hello {{name}}</p>\n<a href="https://shop.example/{{order}}">Order</a>\n'


class Site:
    """A queued.yaml with a database, and template files beside it."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder = folder
        self.path = folder / "queued.yaml"
        self.connect(uri)

    def connect(self, uri: str) -> None:
        self.path.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))

    def write(self, name: str, text: str) -> str:
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        return str(file)

    def run(self, command: str, *words: str) -> Result:
        return CliRunner().invoke(main, ["template", command, "-c", str(self.path), *words])

    def said(self, command: str, *words: str) -> str:
        result = self.run(command, *words)
        assert result.exit_code == 0, result.stderr
        return result.stdout


@pytest.fixture
def site(tmp_path: Path, database: str) -> Site:
    return Site(tmp_path, database)


def test_files_become_versions_once(site: Site, db: psycopg.Connection) -> None:
    text, html = site.write("receipt.txt", TEXT), site.write("receipt.html", HTML)
    plain = site.write("plain.txt", TEXT.replace("\n", "\r\n"))
    only = site.write("only.html", f"{FIELDS}{HTML}")
    stored = json.loads(site.said("put", text, html, plain, only, "--json"))
    assert [(each["name"], each["version"], each["new"]) for each in stored] == [
        ("receipt", 1, True), ("plain", 1, True), ("only", 1, True),
    ]  # fmt: skip
    assert "unchanged" in site.said("put", html)
    assert column(db, "SELECT body FROM templates ORDER BY name") == [
        None, "Hello {{name}}\n", "Hello {{name}}\n",
    ]  # fmt: skip
    assert site.run("diff", text, plain, only).exit_code == 0
    site.write("receipt.txt", TEXT.replace("Hello", "Dear"))
    changed = site.run("diff", text, plain)
    assert changed.exit_code == 1
    assert "-Hello {{name}}\n+Dear {{name}}" in changed.stdout
    assert "@@" in changed.stdout
    assert "plain" not in changed.stdout
    assert site.said("put", text, plain).splitlines()[1:] == [
        "receipt        2  new",
        "plain          1  unchanged",
    ]
    assert "Dear" in site.said("show", "receipt")
    first = site.said("show", "receipt", "--version", "1")
    assert "Hello" in first
    assert "  name: text\n" in first
    assert "  order: field, url_part\n" in first
    assert "bounce" not in first
    assert "sender: info@shop.example\n" in first
    listed = json.loads(site.said("list", "--json"))
    assert [(each["name"], each["version"]) for each in listed] == [
        ("only", 1), ("plain", 1), ("receipt", 2),
    ]  # fmt: skip
    audit = "SELECT condition FROM audit WHERE action = 'template put' ORDER BY id"
    assert column(db, audit) == ["only", "plain", "receipt", "receipt"]


def test_tenants_have_their_own_names(site: Site) -> None:
    text = site.write("receipt.txt", TEXT)
    other = site.write("other.txt", TEXT.replace("---\nfrom", "---\ntenant: b\nfrom", 1))
    site.said("put", text)
    assert "1  new" in site.said("put", text, other, "--tenant", "a")
    names = {(e["tenant"], e["name"]) for e in json.loads(site.said("list", "--json"))}
    assert names == {("", "receipt"), ("a", "receipt"), ("b", "other")}
    assert "receipt" in site.said("list", "--tenant", "a")
    missing = site.run("show", "other")
    assert (missing.exit_code, missing.stderr) == (
        1, "error: there is no template other; there is receipt\n",
    )  # fmt: skip
    gone = site.run("show", "receipt", "--version", "7", "--tenant", "a")
    assert "template receipt has no version 7; the last is 1" in gone.stderr


def test_put_stores_all_or_none(site: Site, db: psycopg.Connection) -> None:
    good = site.write("good.txt", TEXT)
    bad = site.write("bad.txt", f"{FIELDS}\nHello\n{{{{Name}}}}\n")
    site.write("bad.html", "<p>x</p>")
    odd = site.write("odd.html", f"{FIELDS}\n\n<p>\n<p {{{{x}}}}>\n")
    refused = site.run("put", good, bad, odd)
    assert refused.exit_code == 2
    lines = refused.stderr.splitlines()
    assert lines[0].startswith(f"error: {bad}:7: '{{{{Name}}}}' is no word; ")
    assert lines[1].startswith(f"error: {odd}:8: {{{{x}}}} is in the name of an attribute")
    assert column(db, "SELECT count(*) FROM templates") == [0]


def test_a_bad_file_is_named_with_its_line(site: Site) -> None:
    for name, text, said in (
        ("a.md", TEXT, "a.md: a template is NAME.txt, NAME.html or both"),
        ("a.txt", "Hello", "a.txt:1: it does not begin with ---"),
        ("a.txt", "---\nfrom: a@b.example\n", "a.txt:1: its fields have no end"),
        ("a.txt", FIELDS, "a.txt: it has neither text nor html"),
        ("a.txt", FIELDS.replace("subject", "sujet") + "x", "a.txt:3: sujet: unknown key; did"),
        ("a.txt", FIELDS.replace("Order", "- Order: a:") + "x", "a.txt:3: YAML: "),
        ("a.txt", FIELDS.replace("Shop <", "{{x}} <") + "x", "a.txt:2: a value that begins"),
        ("a.txt", FIELDS.replace("Shop", "A, B") + "x", "a.txt:2: from: the name has ,"),
        ("a.txt", FIELDS.replace("subject", "reply_to: x\nsubject") + "x", "a.txt:3: reply_to: "),
        ("a.txt", FIELDS.replace("---\nf", "---\nname: a b\nf", 1) + "x", "a.txt:2: name: 'a b'"),
        ("a.txt", FIELDS.replace("---\nf", "---\ntenant: ' '\nf", 1) + "x", "a.txt:2: tenant: ' '"),
        ("a b.txt", f"{FIELDS}x", "a b.txt: 'a b' is no name"),
        ("a.txt", FIELDS.replace("---\nf", "---\nheaders:\n  Bcc: x@y.example\nf", 1) + "x",
         "a.txt:3: headers.Bcc: "),
        ("a.txt", FIELDS.replace("info@shop.example", "{{x}}") + "x", "a.txt:2: sender: it has a"),
        ("a.txt", '---\nfrom: a@b.example\nsubject: "a\\nb"\n---\nx', "a.txt:3: subject: it has"),
    ):  # fmt: skip
        refused = site.run("put", site.write(name, text))
        assert refused.exit_code == 2
        assert f"{site.folder}/{said}" in refused.stderr, refused.stderr


def test_two_files_have_one_name_and_one_front_matter(site: Site) -> None:
    one = site.write("one.txt", TEXT.replace("---\nf", "---\nname: same\nf", 1))
    two = site.write("two.txt", TEXT.replace("---\nf", "---\nname: same\nf", 1))
    assert f"{two}: {one} has a template same already" in site.run("put", one, two).stderr
    html = site.write("one.html", TEXT)
    assert f"{html}:1: {one} has the fields of this template" in site.run("put", html).stderr
    assert "none.txt: No such file" in site.run("put", str(site.folder / "none.txt")).stderr
    (site.folder / "odd.txt").write_bytes(b"\xff")
    assert "odd.txt: is not UTF-8" in site.run("put", str(site.folder / "odd.txt")).stderr


def test_mail_is_rendered_from_files_without_a_database(site: Site) -> None:
    text = site.write("receipt.txt", TEXT)
    site.write("receipt.html", HTML)
    params = site.write("params.json", '{"name": "J\u00fcrgen & <b>", "order": 1.50}')
    site.path.unlink()
    words = (text, "--params-file", params)
    assert site.said("render", *words, "--text") == "Hello J\u00fcrgen & <b>\n"
    assert site.said("render", *words, "--html").splitlines() == [
        "<p>Hello J\u00fcrgen &amp; &lt;b&gt;</p>",
        '<a href="https://shop.example/1.50">Order</a>',
    ]
    assert "quoted-printable" in site.said("render", *words)
    content = json.loads(site.said("render", *words, "--to", "Ann <ann@b.example>", "--json"))
    mail = email.message_from_string(content["content"], policy=email.policy.default)
    assert (mail["To"], mail["Subject"]) == ("Ann <ann@b.example>", "Order 1.50")
    body = mail.get_body(("plain",))
    assert body is not None
    assert body.get_content() == "Hello J\u00fcrgen & <b>\r\n"
    assert "Order 7" in site.said("render", *words, "--param", "order=7")
    missing = site.run("render", str(site.folder / "none.txt"))
    assert (missing.exit_code, "none.txt: No such file" in missing.stderr) == (2, True)
    for given, said in (((text, "--version", "1"), "--version: "), (("receipt",), "give -c FILE")):
        refused = site.run("render", *given)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr


def test_stored_mail_is_rendered_and_bad_values_are_named(site: Site) -> None:
    site.said("put", site.write("receipt.txt", TEXT))
    assert "Order 7" in site.said("render", "receipt", "--param", "order=7", "--param", "name=Ann")
    for words, said in (
        (["--param", "order=7"], "--param: the word name is missing"),
        (["--param", "order=a\nb", "--param", "name="], "--param: the word order has a line end"),
        (["--param", "order"], "--param 'order': expected key=value"),
        (["--to", "x"], "--to: no domain in 'x'"),
        (["--html", "--param", "order=7", "--param", "name=A"], "error: the template has no html"),
    ):
        refused = site.run("render", "receipt", *words)
        assert refused.exit_code
        assert said in refused.stderr
    lists = site.write("list.json", "[1]")
    refused = site.run("render", "receipt", "--params-file", lists)
    assert "expected an object with values by word" in refused.stderr
    broken = site.write("broken.json", "{")
    refused = site.run("render", "receipt", "--params-file", broken)
    assert "broken.json: no JSON" in refused.stderr


@pytest.mark.parametrize("found", [True, False])
def test_a_browser_shows_the_page_in_a_sandbox(
    site: Site, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    pages: list[Path] = []

    def opened(uri: str) -> bool:
        pages.append(Path(uri.removeprefix("file://")))
        return found

    monkeypatch.setattr(webbrowser, "open", opened)
    text = site.write("receipt.txt", TEXT)
    site.write("receipt.html", "<script>alert(1)</script><p title='\"'>{{name}}</p>")
    result = site.run("render", text, "--param", "order=7", "--param", "name=<b>", "--open")
    [page] = pages
    try:
        assert result.exit_code == (not found)
        assert str(page) in (result.stdout if found else result.stderr)
        assert found or "no browser was found" in result.stderr
        shown = page.read_text(encoding="utf-8")
        assert page.stat().st_mode & 0o077 == 0
    finally:
        page.unlink()
    assert "content=\"default-src 'none';" in shown
    assert "<script>" not in shown
    assert '<iframe sandbox srcdoc="&lt;script&gt;' in shown
    assert "Subject: Order 7" in shown
    assert "<pre>Hello &lt;b&gt;\n</pre>" in shown


def test_a_reader_looks_and_stores_nothing(site: Site, database: str) -> None:
    text = site.write("receipt.txt", TEXT)
    site.connect(acting(database, "pgmta_operator"))
    site.said("put", text)
    site.connect(acting(database, "pgmta_reader"))
    assert site.run("diff", text).exit_code == 0
    assert "receipt" in site.said("list")
    refused = site.run("put", site.write("other.txt", TEXT))
    assert refused.exit_code == 1
    assert "permission denied for table templates" in refused.stderr
