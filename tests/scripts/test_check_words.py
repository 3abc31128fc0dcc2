"""scripts/check-words finds each kind of mistake, and only those."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check-words"

GLOSSARY = """\
# Glossary

| term | meaning | not |
|---|---|---|
| chunk | a row of a body | piece, lump |
| pending commit | a message that waits | |
| message id | the number of a message | queue id |
"""

GOOD = {
    "page.md": """\
# A page

The *chunk* is not a `piece`; "nobody knows" is quoted. A pending commit waits.

```sh
echo nobody told the lump
```

At most 5 rows per second. Which message id is it?
""",
    "module.py": '"""Return the chunks:\n\n' + "    one word per line\n" * 20 + '"""\n\n'
    "piecework = PendingCommit = message_id = 1\n",
    "query.sql": "-- Return the rows.\nSELECT 'nobody', piece FROM told;\n",
    "file.yaml": "# The number of chunks.\npiece: told\n",
}

BAD = [
    ("page.md", "One.\n\nTwo, and nobody\nknows.\n", '3: "nobody"'),
    ("page.md", "| a |\n|---|\n| whoever comes |\n", '3: "whoever"'),
    ("page.md", "What has to wait runs\nlater.\n", '1: "What has to wait …"'),
    ("page.md", "A row says what is missing.\n", '1: "what is"'),
    ("page.md", "The page tells it.\n", '1: "tells"'),
    ("page.md", "It takes 20 rows, at most.\n", '1: "20 rows, at most"'),
    ("page.md", "It costs 3 ms a message.\n", '1: "ms a message"'),
    ("page.md", "- a point\n- at most so\n  many\n", '2: "so many"'),
    ("page.md", "Pieces and lumps.\n", '1: "Pieces"'),
    ("page.md", "Pieces and lumps.\n", '1: "lumps"'),
    ("page.md", "The queue id.\n", '1: "queue id"'),
    ("page.md", "The row " + "and the row " * 7 + "is here.\n", '1: "The row and the …"'),
    ("page.md", "The row" + " is here; the row" * 12 + ".\n", '1: "The row is here …"'),
    ("module.py", 'def f():\n    """Return it.\n\n    As told.\n    """\n', '4: "told"'),
    ("module.py", 'def f():\n    """Whether it is."""\n', '2: "Whether"'),
    ("module.py", '"""A tree:\n\n    Error\n    told by nobody\n"""\n', '4: "nobody"'),
    ("module.py", "x = 1  # so\n# many\n", '1: "so many"'),
    ("module.py", "raise ValueError(f'{x} has somebody else')\n", '1: "somebody"'),
    ("module.py", "class LumpWriter:\n    pass\n", '1: "LumpWriter"'),
    ("module.py", "def f(max_pieces): ...\n", '1: "max_pieces"'),
    ("query.sql", "SELECT 1;\nSELECT 2; -- as everybody knows\n", '2: "everybody"'),
    ("file.yaml", "a: 1\n# stands in\n# the file\n", '2: "stands in"'),
    ("tool", "#!/bin/sh\n# whoever calls\n", '2: "whoever"'),
    ("program", "#!/usr/bin/env python3\nlump = 1\n", '2: "lump"'),
]  # fmt: skip


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("check_words", str(SCRIPT))
    spec = importlib.util.spec_from_loader("check_words", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_words"] = module  # NamedTuple looks for it
    loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "develop").mkdir(parents=True)
    (tmp_path / "docs" / "develop" / "glossary.md").write_text(GLOSSARY)
    for name, text in GOOD.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def check(script: ModuleType, root: Path, *files: str) -> list[str]:
    return [str(error) for error in script.check(root, list(files), len(files) > 1)]


def test_good_files(script: ModuleType, root: Path) -> None:
    assert check(script, root, "docs/develop/glossary.md", *GOOD) == []


@pytest.mark.parametrize(("file", "text", "expected"), BAD)
def test_bad_files(script: ModuleType, root: Path, file: str, text: str, expected: str) -> None:
    (root / file).write_text(text)
    errors = check(script, root, file)
    assert any(error.startswith(f"{file}:{expected}: ") for error in errors), errors


def test_a_term_that_is_not_used(script: ModuleType, root: Path) -> None:
    files = [name for name in GOOD if name not in ("page.md", "module.py")]
    assert [
        error.split(": ")[:2] for error in check(script, root, "docs/develop/glossary.md", *files)
    ] == [
        ["docs/develop/glossary.md:6", '"pending commit"'],
        ["docs/develop/glossary.md:7", '"message id"'],
    ]


@pytest.mark.slow
def test_exit_codes(tmp_path: Path) -> None:
    def run(*words: str) -> int:
        return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True).returncode

    assert run("scripts/check-words") == 0
    assert run("tests/scripts/test_check_words.py") == 1  # its examples
    assert run("no/such/file.md") == 2
    assert run() == 0


def test_left_out_are_files_that_exist(script: ModuleType) -> None:
    """No entry of LEFT_OUT is left behind after the last of its files."""
    files = script.listed(SCRIPT.parents[1])
    assert [p for p in script.LEFT_OUT if not any(fnmatch(f, p) for f in files)] == []
