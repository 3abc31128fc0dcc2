"""`queuectl campaign import` of files as programs of people write them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.features.campaigns.commands.site import Site
from tests.features.campaigns.commands.test_import_ends import command
from tests.features.campaigns.commands.test_import_list import problems
from tests.support.rows import column

ROW = {"name": "Jörg", "city": "Köln"}


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "cp1252", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("first", ["", "sep=;\n"])
def test_the_form_of_a_file_is_recognised_and_said(
    site: Site, mark: str, codec: str, first: str
) -> None:
    text = (first and f"sep={mark}\r\n") + mark.join(("Ort", "E-Mail", "Nr", "Vorname")) + "\r\n"
    text += mark.join(("Köln", "j@x.example", "7", "Jörg")) + "\r\n"
    content = text.encode(codec)
    if codec.startswith("utf-16"):
        content = "\ufeff".encode(codec) + content
    options = ["--column", "e-mail", "--column", "name=vorname", "--column", "city=Ort"]
    said = json.loads(site.said("import", "news", site.file(content), "--json", *options))
    names = {"cp1252": "windows-1252", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16"}
    assert said["encoding"] == names.get(codec, "UTF-8")
    assert said["separator"] == {",": "comma", ";": "semicolon", "\t": "tab"}[mark]
    assert said["columns"] == {"recipient": "E-Mail", "city": "Ort", "name": "Vorname"}
    assert said["left_out"] == ["Nr"]
    assert column(site.db, "SELECT params FROM campaign_recipients") == [ROW]


def test_a_form_that_is_given_is_not_guessed(site: Site) -> None:
    text = "recipient;name,city;city\nj@x.example;Łódź;Köln\n"
    options = ("--separator", "semicolon", "--encoding", "windows-1250", "--column",
               "name=name,city")  # fmt: skip
    assert site.imported(text.encode("cp1250", "replace"), *options)["imported"] == 1
    assert column(site.db, "SELECT params ->> 'name' FROM campaign_recipients") == ["Łódź"]
    unknown = site.refused(text, "--encoding", "window-1252")
    assert "--encoding window-1252: it is unknown; did you mean windows-1252?" in unknown
    ignored = site.run("import", "news", "--sql", "SELECT 1", "--encoding", "utf-8")
    assert "--separator and --encoding count only with FILE" in ignored.stderr


def test_bad_lines_of_latin_1_are_named_on_stderr_and_in_a_file(site: Site, tmp_path: Path) -> None:
    bad = {
        3: (b"no-address;J\xf6rg;K", "no domain in 'no-address'"),
        4: (b"a@x.example;J\x81rg;K", "name has the octet 0x81, which is not in windows-1252"),
        5: (b"b@x.example;B", "it has 2 cells, and there are 3 columns"),
        6: (b"\x8d@x.example;B;K", "recipient has the octet 0x8D, which is not in windows-1252"),
        7: (b"c@x.example;a\0b;K", "name has NUL"),
        8: (b'd@x.example;"J\xf6rg"x;K', "there is text behind the quote that ends a cell"),
        10: (b"J\xf6rg <e@x.example>;J\xf6rg;K", "malformed local part in 'Jörg <e@x.example>'"),
    }  # fmt: skip
    lines = [b"recipient;name;city", b"j@x.example;J\xf6rg;K\xf6ln"]
    lines += [bad[n][0] if n in bad else b"k@x.example;Zo\xeb;Ulm" for n in range(3, 11)]
    errors = tmp_path / "bad.csv"
    content = b"\r\n".join(lines)
    done = site.run("import", "news", site.file(content), "--errors", str(errors))
    assert done.exit_code == 1
    assert problems(errors).keys() == bad.keys()
    for line, (_, reason) in bad.items():
        assert problems(errors)[line].startswith(reason)
        assert f"list.csv:{line}: {reason}" in done.stderr
    assert "imported 2 recipients into news" in done.stdout
    assert ["encoding", "windows-1252"] in [line.split() for line in done.stdout.splitlines()]
    assert column(site.db, "SELECT params ->> 'name' FROM campaign_recipients") == ["Jörg", "Zoë"]


def test_half_of_a_character_of_utf_16_costs_its_line(site: Site, tmp_path: Path) -> None:
    text = "recipient,name,city\na@x.example,A\ud83d,K\nb@x.example,😀,K\n"
    found = site.imported(
        text.encode("utf-16", "surrogatepass"), "--errors", str(tmp_path / "bad.csv"), code=1
    )
    assert (found["imported"], found["bad"]) == (1, 1)
    assert problems(tmp_path / "bad.csv") == {
        2: "name has half of a surrogate pair of UTF-16, 0xD83D"
    }
    assert column(site.db, "SELECT params ->> 'name' FROM campaign_recipients") == ["😀"]


def test_standard_input_and_a_pipe_are_recognised_as_files_are(site: Site) -> None:
    content = "name;recipient;city\nJörg;{}@x.example;Köln\n"
    for name, place in (("a", "-"), ("b", "/dev/stdin")):
        given = content.format(name).encode("cp1252")
        done = subprocess.run(
            command(site, "news", "--json", place), input=given, capture_output=True, check=True
        )
        assert json.loads(done.stdout)["encoding"] == "windows-1252"
    assert site.recipients() == ["a@x.example", "b@x.example"]
