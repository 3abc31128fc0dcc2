"""Every file that a page names exists, and every link leads to a file and a heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PATH = re.compile(r"`([a-z_]+/[A-Za-z0-9_./-]+)(?:: \w+)?`")
IN_CODE = re.compile(
    r"\b(?:pgmta|smtpd|queued|sql|etc|docs|tests)/[a-z0-9_./-]+\.(?:py|sql|md|yaml)\b"
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    named = set(PATH.findall(page.read_text(encoding="utf-8")))
    named = {
        name for name in named if "/X." not in name and not name.startswith(("var/", "build/"))
    }
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("package", ["pgmta", "smtpd", "queued", "sql"])
def test_files_named_in_code_exist(package: str) -> None:
    files = [file for end in ("py", "sql") for file in (ROOT / package).rglob(f"*.{end}")]
    named = {name for file in files for name in IN_CODE.findall(file.read_text(encoding="utf-8"))}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    wrong = []
    for target in LINK.findall(text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []


def test_every_decision_is_in_the_list() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = LINK.findall((folder / "README.md").read_text(encoding="utf-8"))
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    assert pages == {name for name in listed if "/" not in name}
