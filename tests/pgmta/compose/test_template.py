"""Templates: which are refused, where words may be, and what their values can't do."""

from __future__ import annotations

import email
import email.policy
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlsplit

import html5lib
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgmta.compose.mime import MessageIdentity, compose_head
from pgmta.compose.template import Template, TemplateSource, compile_template
from pgmta.compose.words import WordPlace, fault
from pgmta.errors import TemplateError

PLAIN = TemplateSource(
    sender="bounces@shop.example", from_="Shop <info@shop.example>", subject="Hello", body="Hello"
)
IDENTITY = MessageIdentity("<1.0123456789abcdef@mx.example>", datetime(2026, 1, 31, tzinfo=UTC))
FIELDS = {
    "Date", "From", "To", "Subject", "Message-ID", "List-Unsubscribe", "X-A", "MIME-Version",
    "Content-Type", "Content-Transfer-Encoding",
}  # fmt: skip
CHARACTERS, SPACES, ERROR = 1, 2, 7  # token types of html5lib


def made(**changes: Any) -> Template:
    return compile_template(replace(PLAIN, **changes))


class Recorder(html5lib.HTMLParser):  # type: ignore[misc]
    """Parses HTML as browsers do, and keeps the tokens."""

    def tokens(self, text: str) -> list[tuple[Any, ...]]:
        self.seen: list[tuple[Any, ...]] = []
        self.parse(text)
        return self.seen

    def normalizedTokens(self) -> Iterator[dict[str, Any]]:
        for token in super().normalizedTokens():
            kind, data = token["type"], token.get("data")
            if kind in (CHARACTERS, SPACES):
                if self.seen and self.seen[-1][0] == CHARACTERS:
                    data = self.seen.pop()[2] + data
                self.seen.append((CHARACTERS, "", data))
            elif kind != ERROR:
                pairs = tuple(data.items()) if isinstance(data, dict) else data
                self.seen.append((kind, token.get("name", ""), pairs))
            yield token


def shown(tokens: list[tuple[Any, ...]], replaced: dict[str, str]) -> list[tuple[Any, ...]]:
    """The tokens with each mark in texts and values replaced; empty texts are none."""

    def other(text: str) -> str:
        for mark, value in replaced.items():
            text = text.replace(mark, value)
        return text

    found = list[tuple[Any, ...]]()
    for kind, name, data in tokens:
        if kind == CHARACTERS:
            if text := other(data):
                found.append((kind, name, text))
        elif isinstance(data, tuple):
            found.append((kind, name, tuple((key, other(value)) for key, value in data)))
        else:
            found.append((kind, name, data))
    return found


HOSTILE = st.sampled_from(
    ["<", ">", '"', "'", "&", "=", "/", "`", "-->", "--!>", "<!--", "]]>", "</title>", "</style>",
     "</textarea >", "<script>alert(1)</script>", "javascript:", "data:text/html,", "&lt;", "&#60;",
     "amp;", "\r\n", "\n", "\t", " onclick=x ", "{{b}}", "{{{{", "%3C", "\\", "@evil.example", "//",
     "?", "#", "..", "\x0b", "\x1b[2J", "\u2028", "\u202e", "ß", "🎉"]
)  # fmt: skip
VALUES = st.lists(
    HOSTILE
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3),
    max_size=6,
).map("".join)
URLS = st.text("abcXYZ019-._~:/?#[]@!$&'()*+,;=%").map("https://shop.example{}".format)
SOUP = st.lists(
    st.sampled_from(
        ["<p>", "</p>", "<", "</", "<!", "<!--", "-->", "--", "<title>", "</title>", "</tit", "</",
         "<style>", "</style>", "<script>", "</script>", "<textarea>", "</textarea>", "<table><tr>",
         '<a href="', "<a href='", '<a title="', "<img src=", '"', "'", ">", "/>", " ", "=", "/",
         "https://shop.example", "?", "#", "&", "&amp;", "am", "p;", ";", "x", "\n", "-", "{{{{",
         *["{{w}}"] * 8]
    ),
    max_size=14,
).map("".join)  # fmt: skip
PAGES = st.sampled_from(
    ['<p title="{{w}}">{{w}}</p>', "<title>{{w}}</title><textarea>{{w}}</textarea>{{w}}",
     '<a href="{{w}}">{{w}}</a>', "<a href=' {{w}}/x?y={{w}}#{{w}}' title='{{w}}'>x</a>",
     '<img src="https://shop.example/{{w}}/{{w}}.png?a={{w}}&amp;b={{w}}" alt="{{w}}">',
     "<!--[if !mso]><!-->{{w}}<!--<![endif]--><style>p{}</style>{{w}}", "{{w}}{{w}}<br/>{{w}}",
     "<table>{{w}}<tr><td width='{{w}}'>{{w}}</table>", "<pre>{{w}}</pre>a < b {{w}}",
     "<!DOCTYPE html><html><head>{{w}}<title>{{w}}</title></head>{{w}}<body>{{w}}</html>{{w}}"]
)  # fmt: skip


@given(page=PAGES | SOUP | st.tuples(SOUP, PAGES).map("".join), data=st.data())
@example(page="<textarea>{{w}}</textarea>", data=None)
def test_no_value_changes_the_tokens_of_html(page: str, data: st.DataObject | None) -> None:
    number = page.count("{{w}}")
    for index in range(number):
        page = page.replace("{{w}}", f"{{{{w{index}}}}}", 1)
    try:
        template = made(html=page, body="x")
    except TemplateError:
        return
    marks, values, expected = {}, {}, {}
    for word, (place,) in template.words.items():
        url = place is WordPlace.URL
        value = (data.draw(URLS if url else VALUES) if data else "\n</textarea>") or ""
        if place is WordPlace.URL_PART and value in (".", ".."):
            return
        marks[word] = f"https://m.{word}.example" if url else f"mark-{word}-mark"
        values[word] = value
        part = place is WordPlace.URL_PART
        value = value.replace("\r\n", "\n").replace("\r", "\n") if not part else value
        expected[marks[word]] = quote(value, safe="") if part else value
    plain = Recorder().tokens(template.fill(marks, []).html or "")
    filled = Recorder().tokens(template.fill(values, []).html or "")
    assert shown(filled, {}) == shown(plain, expected)


@given(VALUES, VALUES)
def test_a_value_stays_in_its_part_of_a_url(part: str, text: str) -> None:
    if part in (".", ".."):
        return
    body = "{{t}} https://shop.example/a/{{p}}/b?c={{p}} (HTTP://x.example/?{{p}}) {{t}}"
    filled = made(body=body).fill({"p": part, "t": text}, []).body or ""
    done = quote(part, safe="")
    url = f"https://shop.example/a/{done}/b?c={done}"
    assert filled == f"{text} {url} (HTTP://x.example/?{done}) {text}"
    assert (urlsplit(url).hostname, urlsplit(url).query) == ("shop.example", f"c={done}")


@given(VALUES, st.sampled_from(sorted(WordPlace)))
def test_a_value_is_refused_or_fits_its_place(value: str, place: WordPlace) -> None:
    template = made(
        from_="{{name}} Shop <{{address}}>", subject="{{field}}", body="{{text}} ",
        html='<a href="{{url}}">x</a><a href="https://a.example/?{{url_part}}">x</a>',
        headers={"List-Unsubscribe": "<https://a.example/{{atom}}>", "X-A": "{{field}}"},
    )  # fmt: skip
    assert template.words == {each.value: {each} for each in WordPlace}
    good: dict[str, object] = {
        "name": "Ann", "address": "a@b.example", "field": "f", "text": "t",
        "url": "http://c.example", "url_part": "u", "atom": "k",
    }  # fmt: skip
    assert template.fill(good, [("", "x@y.example")]) == template.fill(good, [("", "x@y.example")])
    values = {**good, place.value: value}
    if reason := fault(place, value):
        with pytest.raises(ValueError, match="word") as refused:
            template.fill(values, [])
        assert str(refused.value) == f"the word {place} {reason}"
        assert len(value) < 4 or value not in reason
        return
    parts = template.fill(values, [])
    head = email.message_from_bytes(compose_head(parts, IDENTITY), policy=email.policy.default)
    assert [each.addr_spec for each in head["From"].addresses] == [parts.from_[1]]
    assert not {*head.keys()} - FIELDS
    lines = (parts.subject, *parts.from_, *(text for _, text in parts.headers))
    assert all("\n" not in line and "\r" not in line for line in lines)
    assert dict(parts.headers)["List-Unsubscribe"].isascii()


BAD: list[tuple[dict[str, Any], str, int, str]] = [
    ({"body": "a\nb {{name\n}}"}, "body", 2, "no }} ends it"),
    ({"body": "{{name"}, "body", 1, "write {{name}}"),
    ({"body": "{{{name}}}"}, "body", 1, "no }} ends it"),
    ({"body": "\n\n{{Name}}"}, "body", 3, "'{{Name}}' is no word"),
    ({"body": "{{1a}}"}, "body", 1, "is no word"),
    ({"body": "{{}}"}, "body", 1, "is no word"),
    ({"body": "{{ü}}"}, "body", 1, "is no word"),
    ({"body": "{{" + "a" * 64 + "}}"}, "body", 1, "is no word"),
    ({"body": "{{#if paid}}"}, "body", 1, "no conditions, loops or filters"),
    ({"body": "{{sum|money}}"}, "body", 1, "no conditions, loops or filters"),
    ({"body": "\nhttps://{{host}}/a"}, "body", 2, "{{host}} is in the host of a URL"),
    ({"body": "http://a.example{{x}}"}, "body", 1, "is in the host of a URL"),
    ({"body": "a\n\0"}, "body", 2, "U+0000"),
    ({"body": "\ud800"}, "body", 1, "U+D800"),
    ({"body": "x" * 1048577}, "body", 1, "over 1048576"),
    ({"body": None}, "", 1, "neither text nor html"),
    ({"subject": "a\nb"}, "subject", 1, "a line end"),
    ({"subject": "a\rb"}, "subject", 1, "a line end"),
    ({"subject": "a\x1b"}, "subject", 1, "U+001B"),
    ({"subject": "x" * 999}, "subject", 1, "over 998"),
    ({"subject": "{{X}}"}, "subject", 1, "is no word"),
    ({"sender": "{{x}}@a.example"}, "sender", 1, "it has a word"),
    ({"sender": "a"}, "sender", 1, "no domain"),
    ({"from_": ""}, "from", 1, "no address"),
    ({"from_": "Shop"}, "from", 1, "write ADDRESS or NAME <ADDRESS>"),
    ({"from_": "a@b.example, c@d.example"}, "from", 1, "malformed"),
    ({"from_": "A <a@b.example>, C <c@d.example>"}, "from", 1, "the name has <"),
    ({"from_": "A, B <a@b.example>"}, "from", 1, "the name has ,"),
    ({"from_": "A <a@b.example"}, "from", 1, "does not end with >"),
    ({"from_": "A <a@b.example>\r\nBcc: x@y.example"}, "from", 1, "a line end"),
    ({"from_": "a+{{x}}@b.example"}, "from", 1, "only a part of the address"),
    ({"from_": "ä@b.example"}, "from", 1, "SMTPUTF8"),
    ({"reply_to": "{{a}}{{b}}"}, "reply_to", 1, "only a part of the address"),
    ({"headers": {"To": "x"}}, "headers.To", 1, "is reserved"),
    ({"headers": {"content-type": "x"}}, "headers.content-type", 1, "is reserved"),
    ({"headers": {"X A": "x"}}, "headers.X A", 1, "no name of letters"),
    ({"headers": {"X:": "x"}}, "headers.X:", 1, "no name of letters"),
    ({"headers": {"X-A": 5}}, "headers.X-A", 1, "no text"),
    ({"headers": {"X-A": "x\ny"}}, "headers.X-A", 1, "a line end"),
    ({"headers": {"X-A": "x", "x-a": "y"}}, "headers.x-a", 1, "already"),
    ({"headers": {"List-Id": "ä {{x}}"}}, "headers.List-Id", 1, "printable ASCII"),
    ({"headers": {"List-Id": "{{a}}{{b}}{{c}}{{d}}"}}, "headers.List-Id", 1, "997 characters"),
]  # fmt: skip
BAD_HTML = [
    ("<script>\n{{x}}</script>", 2, "{{x}} is in an element script"),
    ("<STYLE>p{color:{{x}}}</STYLE>", 1, "is in an element style"),
    ("<p>\n<!-- {{x}} -->", 2, "is in a comment"),
    ("<![if {{x}}]>", 1, "is in a comment"),
    ("<?php {{x}} ?>", 1, "is in a comment"),
    ("</ {{x}}>", 1, "is in a comment"),
    ("<!DOCTYPE {{x}}>", 1, "is in a comment"),
    ("<p {{x}}>", 1, "in the name of an attribute"),
    ("<p x{{x}}=1>", 1, "in the name of an attribute"),
    ("\n<{{x}}>", 2, "would be a tag"),
    ("<p{{x}}>", 1, "in the name of a tag"),
    ("</{{x}}>", 1, "is in a comment"),
    ("<title></tit{{x}}</title>", 1, "may become a tag"),
    ("<title><{{x}}</title>", 1, "may become a tag"),
    ("<p title={{x}}>", 1, "a value without quotes"),
    ("<p title=a{{x}}>", 1, "a value without quotes"),
    ('<p onclick="f({{x}})">', 1, "is in the attribute onclick"),
    ('<p style="color:{{x}}">', 1, "is in the attribute style"),
    ('<p srcdoc="{{x}}">', 1, "is in the attribute srcdoc"),
    ('<img srcset="{{x}} 2x">', 1, "is in the attribute srcset"),
    ('<iframe src="{{x}}"></iframe>', 1, "is in a tag <iframe"),
    ('<meta content="{{x}}">', 1, "is in a tag <meta"),
    ('<base href="{{x}}">', 1, "is in a tag <base"),
    ('<a href="javascript:{{x}}">', 1, "begin with http:// or https://"),
    ('<a href="mailto:{{x}}">', 1, "begin with http:// or https://"),
    ('<a href="/a/{{x}}">', 1, "begin with http:// or https://"),
    ('<a href="&#104;{{x}}">', 1, "begin with http:// or https://"),
    ('<a\nhref="https://{{x}}/">', 2, "in the host of a URL"),
    ('<a href="https://a.example{{x}}">', 1, "in the host of a URL"),
    ('<a href="{{x}}{{y}}">', 1, "{{y}} may be in the host"),
    ("&{{x}};", 1, "a character reference"),
    ("&#{{x}}", 1, "a character reference"),
    ('<a href="https://a.example/?a&{{x}}">', 1, "write &amp; for &"),
    ("\n<p", 2, "a tag <p without an end"),
    ('<p title="', 1, "the value of the attribute title without an end"),
    ("{{x}}\n\n<!-- x", 3, "a comment without an end"),
    ("<!-->{{x}}", 1, "ends as it begins"),
    ("<title>x", 1, "an element title without an end"),
    ("<style>x</styles>", 1, "an element style without an end"),
    ('<a href="x" y" title="{{x}}">', 1, "a quote is missing"),
    ('<a ="x">', 1, "a quote is missing"),
    ("<svg><style>{{x}}</style></svg>", 1, "an element svg"),
    ("<noscript>{{x}}</noscript>", 1, "an element noscript"),
    ("<select>", 1, "an element select"),
    ("<![CDATA[{{x}}]]>", 1, "a CDATA section"),
    ("<script><!--</script>", 1, "a script with <!--"),
    ("{{x", 1, "no }} ends it"),
]


@pytest.mark.parametrize(
    ("changes", "part", "line", "reason"),
    [*BAD, *[({"html": html}, "html", line, reason) for html, line, reason in BAD_HTML]],
)
def test_a_mistake_is_named_with_its_line(
    changes: dict[str, Any], part: str, line: int, reason: str
) -> None:
    with pytest.raises(TemplateError) as refused:
        made(**changes)
    error = refused.value
    assert (error.part, error.line) == (part, line)
    assert reason in error.advice
    assert not part or str(error).startswith(f"{part}, line {line}: ")


WORDS = {"name": "Ann", "sum": "7.50", "link": "https://a.example/?x=1&y"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"name": "Ann"}, "the words link, sum are missing"),
        (WORDS | {"nam": 1}, "the word nam is not in the template; did you mean name?"),
        (WORDS | {"zzz": 1}, "the word zzz is not in the template; it has link, name, sum"),
        (WORDS | {"name": None}, "the word name is null; give a text, a number, true or false"),
        (WORDS | {"name": ["Ann"]}, "the word name is a list;"),
        (WORDS | {"name": {}}, "the word name is an object;"),
        (WORDS | {"name": float("nan")}, "the word name is no finite number;"),
        (WORDS | {"name": "a\nb"}, "the word name has a line end"),
        (WORDS | {"name": "x" * 999}, "the word name is over 998 characters"),
        (WORDS | {"sum": "a\0"}, "the word sum has NUL"),
        (WORDS | {"sum": "\udc00"}, "the word sum has NUL or half of a character"),
        (WORDS | {"link": "javascript:alert(1)"}, "the word link is no URL"),
        (WORDS | {"link": "https://a.example/ b"}, "the word link is no URL"),
        (WORDS | {"link": "https://\u017f.example/"}, "the word link is no URL"),
        (WORDS | {"link": "https://"}, "the word link is no URL"),
        (WORDS | {"link": ""}, "the word link is no URL"),
    ],
)
def test_a_bad_word_is_named_without_its_value(words: dict[str, object], reason: str) -> None:
    template = made(subject="{{name}}", body="{{sum}}", html='<a href="{{link}}">x</a>')
    with pytest.raises(ValueError, match="word") as refused:
        template.fill(words, [])
    assert reason in str(refused.value)


def test_values_go_in_as_they_are_written() -> None:
    template = made(
        from_='"{{shop}}, Inc." <{{address}}>', reply_to="{{address}}", subject="{{n}} {{yes}}",
        body="{{{{ {{ n }} {{decimal}} }} 100% \\1\r\n{{big}}", html="<p>{{shop}}</p>",
        headers={"X-B": "{{n}}", "X-A": "a"},
    )  # fmt: skip
    parts = template.fill(
        {"shop": "A&B's", "address": "i@a.example", "n": 7, "yes": True,
         "decimal": Decimal("1.50"), "big": "123456789012345678901.50"}, [("Ann", "ann@b.example")],
        tail="mixed",
    )  # fmt: skip
    assert parts.from_ == ("A&B's, Inc.", "i@a.example")
    assert parts.reply_to == (("", "i@a.example"),)
    assert parts.to == (("Ann", "ann@b.example"),)
    assert parts.subject == "7 true"
    assert parts.body == "{{ 7 1.50 }} 100% \\1\r\n123456789012345678901.50"
    assert parts.html == "<p>A&amp;B&#x27;s</p>"
    assert parts.headers == (("X-A", "a"), ("X-B", "7"))
    assert parts.tail == "mixed"


def test_a_masked_template_has_no_value() -> None:
    template = made(
        from_="{{name}} <{{from}}>", subject="{{n}}", body="{{{{ https://a.example/{{n}}",
        html='<a href="{{link}}" title="{{n}}">{{n}}</a>',
    )  # fmt: skip
    parts = template.masked([("", "x@y.example")])
    assert parts.from_ == ("{{name}}", "{{from}}")
    assert (parts.subject, parts.body) == ("{{n}}", "{{ https://a.example/{{n}}")
    assert parts.html == '<a href="{{link}}" title="{{n}}">{{n}}</a>'


@pytest.mark.parametrize("host", ["", "/", "\\", " ", "\t", "&sol;", "?", "#", "x", "x\\"])
def test_a_word_is_never_the_host_of_a_url(host: str) -> None:
    """Browsers take https:///a for https://a."""
    for end in ("", "/"):
        if (host, end) == ("x", "/"):
            continue
        with pytest.raises(TemplateError, match="host of a URL"):
            made(html=f'<a href="https://{host}{end}{{{{w}}}}">x</a>')
    if host in "/\\?#":
        with pytest.raises(TemplateError, match="host of a URL"):
            made(body=f"https://{host}{{{{w}}}}")


@pytest.mark.parametrize(
    ("begin", "part"),
    [("", "<title>{{a}}</title>\n"), ('<a href="https://a.example/?', "&amp;b={{a}}"),
     ('<a title="', "{{{{")],
)  # fmt: skip
def test_a_large_template_is_compiled_soon(begin: str, part: str) -> None:
    """Its time grows with its length: a worker compiles it between two deliveries."""
    literal = part.replace("{{a}}", "aaaaa") * (900_000 // len(part))
    html = f"{begin}{literal}{part * 500}" + ('">' if begin else "")
    started = time.process_time()
    made(html=html, body=f"https://a.example/{'aaaaa/' * 140_000}{'{{a}}/' * 499}")
    assert time.process_time() - started < 30


def test_a_template_has_a_bounded_number_of_places() -> None:
    made(body="{{a}}" * 600, html="{{b}}" * 399, subject="{{a}}")
    with pytest.raises(TemplateError, match="html.*over 1000 words"):
        made(body="{{a}}" * 600, html="{{b}}" * 400, subject="{{a}}")


@pytest.mark.parametrize(
    ("part", "place", "value"),
    [("body", "{{a}}", "é"), ("html", "{{a}}", "'"),
     ("html", '<a href="https://a.example/{{a}}">', "é"),
     ("html", "<b>{{a}}</b>", "&")],
)  # fmt: skip
def test_words_are_bounded_as_often_and_as_long_as_they_come(
    part: str, place: str, value: str
) -> None:
    template = made(**{part: place * 1000})
    template.fill({"a": value * 690}, [])
    with pytest.raises(ValueError, match=f"^the words of {part} are over 4 MB") as caught:
        template.fill({"a": value * 2200}, [])
    assert value not in str(caught.value)
