"""`queuectl send`: mistakes name the option and the way out, and words are those of `render`."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from queued.cli.queuectl import main
from tests.support.rows import column

ADDRESSES = ("--from", "shop@example.org", "--to", "ann@example.com")
PARTS = (*ADDRESSES, "--subject", "Hi")


@pytest.fixture
def config(tmp_path: Path, database: str) -> Path:
    path = tmp_path / "queued.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    return path


def run(config: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "-c", str(config)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (PARTS, "--text: there is neither body nor html. Give plain text, html or both\n"),
        ((*ADDRESSES, "--subject", "a\nb", "--text", "x"), "--subject: it has a line end."),
        ((*PARTS, "--text", "@none.txt"), "--text @none.txt: No such file or directory\n"),
        ((*PARTS, "--text", "x", "--cc", "a@b.example, c@b.example"), "Each mailbox is bob@"),
        ((*PARTS, "--text", "x", "--at", "9999-12-01T09:00:00Z"), "--at: it is over 10 years"),
        ((*PARTS, "--text", "x", "--header", "Date=x"), '--header: a field is reserved'),
        ((*PARTS[:2], "--subject", "Hi", "--text", "x"), "Give a mailbox in to, cc or bcc\n"),
        (("--template", "none", *ADDRESSES[2:]), "There is no template yet: queuectl template put"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_option(
    config: Path, db: psycopg.Connection, words: tuple[str, ...], said: str
) -> None:
    refused = run(config, "send", *words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert not column(db, "SELECT id FROM messages")


def test_a_number_in_a_file_of_words_is_as_it_is_written(
    config: Path, db: psycopg.Connection
) -> None:
    text = config.with_name("bill.txt")
    text.write_text("---\nfrom: shop@example.org\nsubject: Bill\n---\n{{amount}}\n")
    words = config.with_name("words.json")
    words.write_text('{"amount": 1.50}')
    assert run(config, "template", "put", str(text)).exit_code == 0
    to = ("--to", "ann@example.com")
    sent = run(config, "send", "--template", "bill", *to, "--params-file", str(words))
    assert sent.exit_code == 0, sent.stderr
    assert column(db, "SELECT params #>> '{words,amount}' FROM messages") == ["1.50"]
