"""The programs of the pages for other libraries run as printed, by a login that may only submit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pgmta.django import EmailBackend
from tests.support.daemons import ROOT
from tests.support.packages import folder
from tests.support.rows import column
from tests.support.shop_login import ORDERS, shop_login, url

Language = Callable[[Path, str], list[str]]
GO_PATH = "/usr/share/gocode"


@pytest.fixture
def shop(database: str) -> Iterator[str]:
    with shop_login(database) as uri:
        yield uri


def program(page: str, kind: str) -> str:
    text = (ROOT / "docs" / "programs" / page).read_text(encoding="utf-8")
    found: str = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    return found


def node(place: Path, shop: str) -> list[str]:
    (place / "shop.js").write_text(program("node.md", "js"), encoding="utf-8")
    return ["node", "shop.js", url(shop)]


def go(place: Path, shop: str) -> list[str]:
    (place / "shop.go").write_text(program("go.md", "go"), encoding="utf-8")
    address = url(shop)
    return ["go", "run", "shop.go", f"{address}{'&' if '?' in address else '?'}sslmode=disable"]


@pytest.mark.parametrize(
    "language",
    [
        pytest.param(node, marks=pytest.mark.needs("nodejs", "pg")),
        pytest.param(
            go, marks=[pytest.mark.needs("golang-go", "golang-github-lib-pq-dev"), pytest.mark.slow]
        ),
    ],
)
def test_the_program_of_the_page_runs(
    language: Language, shop: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    with psycopg.connect(shop, autocommit=True) as owner:
        owner.execute(ORDERS.encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "go-build"
    done = subprocess.run(
        language(tmp_path, shop),
        cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False,
        env={
            "PATH": os.environ["PATH"], "HOME": str(tmp_path), "GOCACHE": str(cache),
            "GO111MODULE": "off", "GOPATH": GO_PATH, "CGO_ENABLED": "0", "GOFLAGS": "-p=2",
            "NODE_PATH": str(folder() / "node_modules"),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert re.search(r"^nothing sent:.*key: it was used for another message", printed, re.MULTILINE)
    assert "22023 to to: an address is malformed" in printed
    assert "refused no address to: an address is malformed" in printed
    people = ["ann@example.com", "carol@example.com", "dave@example.com"]
    assert re.findall(r"(\w+@example\.com) queued", printed) == people
    assert column(db, "SELECT recipient FROM queue ORDER BY 1") == people
    assert column(db, "SELECT number FROM public.orders") == [4711]


def test_the_program_for_sqlalchemy_runs(shop: str, db: psycopg.Connection) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program("sqlalchemy.md", "python"), url(shop, "postgresql+psycopg")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused: to: an address is malformed")
    assert column(db, "SELECT recipient FROM queue") == ["ann@example.com"]
    assert column(db, "SELECT receipt FROM public.orders") == column(db, "SELECT id FROM messages")


def test_the_settings_of_django_have_the_class() -> None:
    text = (ROOT / "docs" / "programs" / "django.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for block in blocks:
        compile(block, "docs/programs/django.md", "exec")
    named = set(re.findall(r"pgmta\.django\.(\w+)", text))
    assert named == {EmailBackend.__name__}
