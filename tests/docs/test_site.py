"""The site of docs in Chromium, from a folder: on a phone and a desk, light and dark, searched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import ROOT
from tests.support.waiting import until
from tests.web.browser import Browser, browsing

pytestmark = [pytest.mark.needs("chromium", "chromium-driver"), pytest.mark.slow]
PICTURES = os.environ.get("PGMTA_PICTURES")
"""A folder for screenshots of the site; without it they are not kept."""
SIZES = ((360, 740), (1280, 800))
TERMS = {
    "greylisting": "operate/troubleshooting",
    "mailbox is full": "operate/troubleshooting",
    "quarantine": "operate/quarantine",
    "pg_restore": "operate/backup",
    "while-daemons-run": "operate/upgrade",
    "suspend": "operate/suspensions",
    "prometheus": "operate/monitoring",
    "autovacuum": "operate/database",
    "_partid": "operate/partitions",
    "proxy": "operate/listeners",
    "debian": "operate/install",
    "smarthost": "mail/routes",
    "MTA-STS": "operate/operations",
    "selector": "mail/dkim",
    "VERP": "mail/rewriting",
    "exponential": "mail/retry",
    "sendmail": "mail/sendmail",
    "django": "programs/django",
    "idempotency": "programs/sql",
    "standing rule": "operate/workers",
}
_ROOTS = """
    const roots = [document];
    document.querySelectorAll('*').forEach(one => one.shadowRoot && roots.push(one.shadowRoot));
"""
FOUND = _ROOTS + (
    "return roots.slice(1).flatMap(root => [...root.querySelectorAll('a')].map(a => a.href));"
)
CLEAR = _ROOTS + (
    "roots.slice(1).forEach(root => root.querySelectorAll('input').forEach(one => {"
    "one.value = arguments[0]; one.dispatchEvent(new Event('input', {bubbles: true})); }));"
)
ELSEWHERE = (
    "return performance.getEntriesByType('resource').map(one => one.name)"
    ".filter(name => !name.startsWith('file:'))"
)
WIDE = "return document.scrollingElement.scrollWidth - innerWidth"
BRIGHT = (
    "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g)"
    ".slice(0, 3).reduce((all, one) => all + +one, 0)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, made as `make site` does; each warning, such as a broken link, ends it."""
    folder = tmp_path_factory.mktemp("with a space")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "site"), str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A window with JavaScript, which reaches no other host."""
    with browsing(tmp_path / "profile", scripts=True) as window:
        yield window


def test_pages_fit_and_need_no_other_host(site: Path, browser: Browser, tmp_path: Path) -> None:
    pages = [
        site / "index.html",
        *(site / "operate").glob("*.html"),
        *(site / "reference").glob("*.html"),
    ]
    browser.resize(SIZES[0])
    wide = []
    for page in pages:
        browser.open(page.as_uri())
        if (over := browser.run(WIDE)) > 0 or browser.run(ELSEWHERE):
            wide.append((page.name, over, browser.run(ELSEWHERE)))
    assert wide == []
    for size in SIZES:
        for dark in (False, True):
            browser.resize(size, dark=dark)
            for name in ("index", "operate/troubleshooting"):
                browser.open((site / f"{name}.html").as_uri())
                until(lambda dark=dark: (browser.run(BRIGHT) < 200) == dark)  # type: ignore[misc]
                assert browser.run(WIDE) <= 0
                kind = f"{size[0]}_{'dark' if dark else 'light'}"
                picture = Path(PICTURES or tmp_path) / f"site_{Path(name).name}_{kind}.png"
                browser.save_picture(picture)
                assert picture.stat().st_size > 10_000


def test_the_search_finds_terms(site: Path, browser: Browser) -> None:
    browser.resize(SIZES[1])
    browser.open((site / "index.html").as_uri())
    browser.click(".md-search__button")
    until(lambda: browser.run(_ROOTS + "return roots.length > 1"), describe="the search")
    for term, page in TERMS.items():
        browser.run(CLEAR, "")
        until(lambda: not browser.run(FOUND), describe="no result")
        browser.run(CLEAR, term)

        def found(page: str = page) -> bool:
            return any(f"/{page}.html" in each for each in browser.run(FOUND))

        until(found, describe=f"{page} for {term}")
