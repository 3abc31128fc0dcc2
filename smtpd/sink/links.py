"""Links in the texts of mail (pure, standard library only).

Every pattern has bounds, so that its time grows as the text does.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

_URL = re.compile(r"(?i:https?://|mailto:)[^\s<>\"'`\\^{|}\x00-\x20]{1,4000}")
_HREF = re.compile(
    r"""\bhref[ \t\r\n]{0,20}=[ \t\r\n]{0,20}("[^"]{1,8000}"|'[^']{1,8000}'|[^\s"'>]{1,8000})""",
    re.IGNORECASE,
)
_BEHIND_URL = ".,;:!?'\"*_)]>"  # punctuation of a sentence, not of its URL
_WITHOUT_BLANKS = str.maketrans("", "", "\t\r\n")  # browsers leave them out of URLs
_MAX_LINKS = 500


def linked(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text in order, as pairs of text and its URL; the URL is empty for plain text."""
    done = 0
    for number, found in enumerate(_URL.finditer(text)):
        if number == _MAX_LINKS:
            break
        url = _trimmed(found[0])
        if done < found.start():
            yield text[done : found.start()], ""
        yield url, url
        done = found.start() + len(url)
    if done < len(text):
        yield text[done:], ""


def urls(text: str, markup: str) -> list[str]:
    """Return the URLs in a plain text and in HTML, each once, in their order."""
    found = dict.fromkeys([*(url for _, url in linked(text) if url), *_hrefs(markup)])
    return list(found)[:_MAX_LINKS]


def _hrefs(markup: str) -> Iterable[str]:
    for found in _HREF.finditer(markup):
        url = html.unescape(found[1].strip("\"'")).translate(_WITHOUT_BLANKS).strip()
        if _URL.fullmatch(url):
            yield url


def _trimmed(url: str) -> str:
    """Return a URL without the marks behind it; a bracket stays if the URL opens it."""
    while url[-1] in _BEHIND_URL and not (url[-1] == ")" and url.count("(") >= url.count(")")):
        url = url[:-1]
    return url
