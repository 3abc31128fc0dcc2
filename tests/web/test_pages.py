"""The pages in Chromium: without JavaScript, by keys alone, on a phone and on a desk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from selenium.webdriver.common.keys import Keys

from pgmta.compose.token import Purpose
from tests.features.lifecycle.tokens import add_accounts
from tests.support.rows import column
from tests.support.waiting import until
from tests.web.application import Application, application
from tests.web.browser import DESK, PHONE, Browser, browsing
from tests.web.web import RINGS, Web, forged, recover, return_to, secret_of, serving

pytestmark = [pytest.mark.needs("chromium", "chromium-driver", "axe-core"), pytest.mark.slow]
PICTURES = os.environ.get("PGMTA_PICTURES")
"""A folder for pictures of the pages on a phone: those in docs/pictures."""
ACTIVATE, RECOVER = Purpose.ACTIVATE, Purpose.RECOVER
TITLES = {
    "en": "Activate your account",
    "de": "Konto aktivieren",
    "es": "Active su cuenta",
    "fr": "Activez votre compte",
}


@pytest.fixture
def app() -> Iterator[Application]:
    with application() as server:
        yield server


@pytest.fixture
def web(
    as_web: str, accounts: psycopg.Connection, tmp_path: Path, app: Application
) -> Iterator[Web]:
    """A server that returns to the application."""
    return_to(accounts, app.url)
    with serving(tmp_path, as_web, limits={"exempt": ["127.0.0.0/8"]}) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as window:
        yield window


def test_axe_finds_mistakes(browser: Browser) -> None:
    browser.open("data:text/html,<script>document.title = 1</script><input>")
    assert any(line.startswith("label: ") for line in browser.mistakes())
    assert browser.title != "1"


def check(browser: Browser, title: str, width: int, picture: str) -> None:
    """Check a page in light and dark; nothing is wider than the window."""
    assert (browser.title, browser.mistakes()) == (title, [])
    assert browser.width <= width
    if PICTURES and width == PHONE[0]:
        browser.save_picture(Path(PICTURES) / f"{picture}.png")


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_by_keys_alone(
    web: Web, app: Application, accounts: psycopg.Connection, browser: Browser,
    size: tuple[int, int], dark: bool,
) -> None:  # fmt: skip
    browser.resize(size, dark=dark)
    shade = "dark" if dark else "light"
    add_accounts(accounts, 2)
    secret, _ = secret_of(accounts, "u1")
    link = web.link(ACTIVATE, secret)
    browser.open(link)
    check(browser, "Activate your account", size[0], f"activate-{shade}")
    assert column(accounts, "SELECT status::text FROM accounts WHERE login = 'u1'") == [
        "provisioned"
    ]
    assert (browser.next(), browser.outline) == ("button", "solid")
    browser.press(Keys.ENTER)
    until(lambda: browser.url == f"{web.url}/activated")
    check(browser, "Your account is active", size[0], f"activated-{shade}")
    assert column(accounts, "SELECT status::text FROM accounts WHERE login = 'u1'") == ["active"]

    secret, code = recover(accounts, "u2")
    browser.open(web.link(RECOVER, secret, code))
    check(browser, "Recover your account", size[0], f"recover-{shade}")
    assert (browser.next(), browser.outline) == ("input", "solid")
    browser.press(f"{(int(code) + 1) % 100_000:05}", Keys.ENTER)
    until(lambda: browser.title == "This link does not work")
    check(browser, "This link does not work", size[0], f"refused-{shade}")
    assert browser.next() == "input"
    browser.press(code)
    assert browser.next() == "button"
    browser.press(Keys.SPACE)
    until(lambda: browser.title == "New password")
    (path,) = [path for path in app.asked if "proof" in path]
    assert path.startswith("/password?shop=1&proof=")
    assert app.referrers[app.asked.index(path)] is None
    take = f"SELECT login FROM proof_take('{path.rpartition('=')[2]}')"
    assert column(accounts, take) == ["u2"]


def test_one_page_for_expired_used_and_forged(
    web: Web, accounts: psycopg.Connection, browser: Browser
) -> None:
    browser.resize(PHONE)
    add_accounts(accounts, 2)
    used, expired = (secret_of(accounts, login)[0] for login in ("u1", "u2"))
    accounts.execute("UPDATE tokens SET expires_at = epoch() - 1 WHERE secret = %s", (expired,))
    assert web.post("/activate", RINGS[ACTIVATE].sign(used)).status == 303
    tokens = [*(RINGS[ACTIVATE].sign(secret) for secret in (used, expired)), forged()]
    texts = set()
    for token in tokens:
        browser.open(f"{web.url}/activate?token={token}")
        browser.next()
        browser.press(Keys.ENTER)
        until(lambda: browser.title == "This link does not work")
        assert browser.mistakes() == []
        texts.add(browser.text)
    browser.open(f"{web.url}/activate?token={tokens[0][:50]}")  # a part of a link
    texts.add(browser.text)
    assert len(texts) == 1


@pytest.mark.parametrize("language", TITLES)
def test_languages(web: Web, tmp_path: Path, language: str) -> None:
    with browsing(tmp_path / "profile", language) as browser:
        browser.resize(PHONE)
        browser.open(web.link(ACTIVATE, os.urandom(32)))
        check(browser, TITLES[language], PHONE[0], f"activate-{language}")
        assert browser.language == language
