"""The text of HTML."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queued.cli.options.html_text import html_text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<h1>Spring &amp;\n more</h1>Dear <b>Ann</b>,<br>new", "Spring & more\n\nDear Ann,\nnew"),
        ("<ul><li>one<li>two</ul>", "- one\n- two"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>", "a  b\nc"),
        ("<head><title>x</title><body>y<script>z</script>", "y"),
        ("<style><p>x</style>y<template><p>z</template>", "y"),
        ("<pre>  a\n   b</pre>", "  a\n   b"),
        ('<a href="https://a.example/?a&amp;b">Look</a>', "Look <https://a.example/?a&b>"),
        ('<a href="https://a.example">https://a.example</a>', "https://a.example"),
        ("<p>a</p><p></p><p>b<p>c", "a\n\nb\n\nc"),
        ("<img alt=Logo><hr>", "[Logo]\n\n-----"),
        ("a</pre></a></ul></script>b", "a\n\nb"),
    ],
)
def test_html_is_read_as_lines(html: str, text: str) -> None:
    assert html_text(html) == text


@given(st.lists(st.sampled_from(["<p>", "</p>", "<pre>", "<a href=x>", "</a>", "<li>", "<style>",
                                 "</style>", "<td>", " ", "\n", "x", "&", "<"])))  # fmt: skip
def test_any_html_is_read(parts: list[str]) -> None:
    assert "\n\n\n" not in html_text("".join(parts)) or "<pre>" in parts
