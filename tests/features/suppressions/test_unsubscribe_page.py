"""The page that unsubscribes in Chromium: without JavaScript, by keys alone, on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from tests.features.suppressions.campaign import Campaign, token
from tests.support.waiting import until
from tests.web.browser import DESK, PHONE, Browser, browsing
from tests.web.test_pages import check
from tests.web.web import Web

pytestmark = [pytest.mark.needs("chromium", "chromium-driver", "axe-core"), pytest.mark.slow]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_by_keys_alone(
    web: Web, campaign: Campaign, browser: Browser, size: tuple[int, int], dark: bool
) -> None:
    shade = "dark" if dark else "light"
    browser.resize(size, dark=dark)
    campaign.add("ann@b.example")
    browser.open(f"{web.url}/unsubscribe?token={token(campaign.id, 1)}")
    check(browser, "Unsubscribe", size[0], f"unsubscribe-{shade}")
    assert campaign.reasons() == [], "a look changes nothing"
    assert (browser.next(), browser.outline) == ("button", "solid")
    browser.press(Keys.ENTER)
    until(lambda: browser.url == f"{web.url}/unsubscribed")
    check(browser, "You are unsubscribed", size[0], f"unsubscribed-{shade}")
    assert campaign.reasons() == ["ann@b.example news unsubscribed"]
    browser.open(f"{web.url}/unsubscribe?token={token(campaign.id, 2)}")
    browser.next()
    browser.press(Keys.ENTER)
    until(lambda: browser.title == "This link does not work")
    check(browser, "This link does not work", size[0], f"unknown-{shade}")
