"""The sink's page in Chromium, with scripts: mail that reaches out, a list that fills itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.smtpd.sink.sink import Sink
from tests.smtpd.sink.trap import REACHES, Trap, hostile
from tests.support.waiting import until
from tests.web.browser import DESK, PHONE, Browser, browsing

pytestmark = [pytest.mark.needs("chromium", "chromium-driver", "axe-core"), pytest.mark.slow]
PICTURES = os.environ.get("PGMTA_PICTURES")
"""A folder for pictures of the page: those in docs/pictures."""
TABS = ("html", "text", "links", "attachments", "header", "source")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with browsing(tmp_path / "profile", scripts=True) as window:
        window.resize(DESK)
        yield window


def letter(subject: str) -> bytes:
    """Return a mail with every tab."""
    message = EmailMessage()
    message["Subject"], message["From"] = subject, "Änn's shop <shop@a.example>"
    message["To"] = "Bob <bob@b.example>"
    message.set_content("Hello Bob,\n\nopen http://127.0.0.1:2581/activate?token=abc\n")
    message.add_alternative(
        "<h1>Hello Bob</h1><p><a href='http://127.0.0.1:2581/activate?token=abc'>Activate your "
        "account</a></p>", subtype="html",
    )  # fmt: skip
    message.add_attachment(b"%PDF-1.7", maintype="application", subtype="pdf", filename="terms.pdf")
    return message.as_bytes()


def test_html_does_nothing_outside_its_frame(sink: Sink, browser: Browser) -> None:
    with Trap().running() as trap:
        trap.page = hostile(trap)
        browser.open(f"{trap.url}page")
        until(lambda: trap.reached() == set(REACHES), describe="an unprotected page reaches out")
        browser.open("about:blank")
        trap.forget()
        mail = b"Subject: hostile\r\nContent-Type: text/html\r\n\r\n" + trap.page.encode()
        url = f"{sink.url}/m/{sink.put(mail)}"
        browser.open(url)
        assert browser.frame_text(0).startswith("Hello\n")  # scripts would change the word
        browser.click("button", frame=0)
        # its links open windows without a way back, and nothing else was asked for before that
        browser.click("a", frame=0)
        until(lambda: "/link" in trap.paths)
        assert (browser.url, browser.title, browser.windows) == (url, "hostile", 2)
        assert set(trap.paths) <= {"/link", "/favicon.ico"}
        assert trap.reached() == set()
        assert not [line for line in trap.referrers if str(sink.page).encode() in line]
        browser.click("a[target=_top]", frame=0)
        assert (browser.url, browser.frame_text(0)[:5]) == (url, "Hello")
        browser.open(f"{url}/frame")  # the frame's own page is as closed
        assert browser.text.startswith("Hello\n")
        browser.click("button")
        browser.open(f"{url}/source")
        assert trap.reached() == set()


def test_the_list_fills_itself(sink: Sink, browser: Browser) -> None:
    subjects = "return [...document.querySelectorAll('.subject')].map(each => each.innerText)"
    count = "return document.getElementById('count')?.innerText"
    browser.open(sink.url)
    assert browser.run(count) == "No mails"
    sink.put(letter("first"))
    until(lambda: browser.run(subjects) == ["first"])
    browser.run("document.querySelector('.subject a').focus()")
    names = [sink.put(letter(f"mail {number}")) for number in range(100)]
    until(lambda: browser.run(count) == "101 mails")
    assert browser.run(subjects) == [f"mail {number}" for number in reversed(range(100))]
    assert "Page 1 of 2" in browser.text
    for name in names[1:]:
        (sink.folder / "new" / name).unlink()
    until(lambda: browser.run(subjects) == ["mail 0", "first"])
    browser.run("document.querySelector('.subject a').focus()")
    sink.put(letter("last"))
    until(lambda: browser.run(subjects) == ["last", "mail 0", "first"])
    browser.press(Keys.ENTER)  # the focus has stayed
    until(lambda: browser.title == "mail 0")
    browser.open(sink.url)
    browser.click("summary")
    browser.click("button")
    until(lambda: browser.run(count) == "No mails")
    assert browser.url == f"{sink.url}/"


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(sink: Sink, tmp_path: Path, size: tuple[int, int], dark: bool) -> None:
    with browsing(tmp_path / "plain") as browser:  # without JavaScript
        browser.resize(size, dark=dark)
        sink.put(b"Subject: " + b"long" * 100 + b"\r\n\r\n" + b"x" * 1000)
        name = sink.put(letter("Your account"), "bob@b.example")
        shade = "dark" if dark else "light"
        for tab, path in [("list", "/"), *((tab, f"/m/{name}/{tab}") for tab in TABS)]:
            browser.open(sink.url + path)
            assert (tab, browser.mistakes()) == (tab, [])
            assert browser.width <= size[0]
            if PICTURES and size == DESK and tab in ("list", "html"):
                browser.save_picture(Path(PICTURES) / f"sink-{tab}-{shade}.png")
