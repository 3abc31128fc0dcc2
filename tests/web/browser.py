"""Chromium, driven by keys alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys

from tests.support.packages import INSTALLED, folder, program

PHONE, DESK = (320, 640), (1280, 800)
"""Sizes of windows in CSS pixels."""

_RUN = """
    return axe.run(document).then(found => found.violations.map(
        one => one.id + ': ' + one.nodes.map(node => node.html).join(' ')));
"""


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome, *, scripts: bool = False) -> None:
        self._driver = driver
        self._scripts = scripts
        self._command("Emulation.setScriptExecutionDisabled", value=not scripts)

    def resize(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Take another size, and light or dark colours."""
        width, height = size
        self._command("Emulation.setDeviceMetricsOverride", width=width, height=height,
                      deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._command("Emulation.setEmulatedMedia", features=features)

    def _command(self, name: str, **fields: Any) -> dict[str, Any]:
        return dict(self._driver.execute_cdp_cmd(name, fields) or {})

    def open(self, url: str) -> None:
        self._driver.get(url)

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            webdriver.ActionChains(self._driver).send_keys(key).perform()

    def next(self) -> str:
        """Press the key Tab; return the name of the element that has the focus then."""
        self.press(Keys.TAB)
        element = self._driver.switch_to.active_element
        return str(element.tag_name)

    def run(self, function: str, *arguments: object) -> Any:
        """Return what JavaScript of the test returns on the page."""
        return self._driver.execute_script(function, *arguments)

    def click(self, selector: str, frame: int | None = None) -> None:
        """Click on an element of the page, or of a frame in it."""
        if frame is not None:
            self._driver.switch_to.frame(frame)
        try:
            self._driver.find_element("css selector", selector).click()
        finally:
            self._driver.switch_to.default_content()

    def frame_text(self, frame: int) -> str:
        """Return the text in a frame."""
        self._driver.switch_to.frame(frame)
        try:
            return self.text
        finally:
            self._driver.switch_to.default_content()

    @property
    def windows(self) -> int:
        return len(self._driver.window_handles)

    @property
    def outline(self) -> str:
        """How the element with the focus is marked."""
        return str(self._driver.switch_to.active_element.value_of_css_property("outline-style"))

    @property
    def url(self) -> str:
        return str(self._driver.current_url)

    @property
    def title(self) -> str:
        return str(self._driver.title)

    @property
    def text(self) -> str:
        """The text of the page."""
        return str(self._driver.find_element("tag name", "body").text)

    @property
    def language(self) -> str | None:
        """The language that the page says it has."""
        found = self._driver.find_element("tag name", "html").get_attribute("lang")
        return None if found is None else str(found)

    @property
    def width(self) -> int:
        """Width of the content, in CSS pixels: more than the window has means scrolling."""
        size = self._command("Page.getLayoutMetrics")["cssContentSize"]
        return int(size["width"])

    def save_picture(self, path: Path) -> None:
        """Write a picture of the window into a file."""
        self._driver.save_screenshot(str(path))

    def mistakes(self) -> list[str]:
        """Return what axe-core finds on the page: it gets JavaScript for this moment."""
        script = (folder() / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
        source = f"{script};(() => {{{_RUN}}})().then(JSON.stringify)"
        self._command("Emulation.setScriptExecutionDisabled", value=False)
        try:
            found = self._command(
                "Runtime.evaluate", expression=source, awaitPromise=True, returnByValue=True
            )
        finally:
            self._command("Emulation.setScriptExecutionDisabled", value=not self._scripts)
        return [str(one) for one in json.loads(found["result"]["value"])]


@contextmanager
def browsing(profile: Path, language: str = "en", *, scripts: bool = False) -> Iterator[Browser]:
    """Start Chromium, with or without JavaScript, and end it."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(program(INSTALLED["chromium"]))
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={profile}", f"--lang={language}", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    ):  # fmt: skip
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"intl.accept_languages": language})
    service = Service(str(program(INSTALLED["chromium-driver"])))
    driver = webdriver.Chrome(options, service)
    driver.set_page_load_timeout(30)
    try:
        yield Browser(driver, scripts=scripts)
    finally:
        driver.quit()
