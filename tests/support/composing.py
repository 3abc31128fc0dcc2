"""Parts of any Unicode, the tail as the database makes it, and a reader of composed mail."""

from __future__ import annotations

import email
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email import policy
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.utils import getaddresses
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from hypothesis import strategies as st

from pgmta.compose.mime import MessageIdentity, boundary
from pgmta.compose.parts import Parts

IDENTITY = MessageIdentity(
    "<42.0123456789abcdef@mail.example.com>", datetime(2026, 7, 28, 7, 26, 5, tzinfo=UTC)
)
ODD = [
    "", " ", "   ", " a", "a ", "a  b", "=?utf-8?q?x?=", "=?utf-8?B?eA==?= =?x", "?=", "=3D", "_",
    '"', "\\", '\\"', ",", ";", ":", "<a@b.c>", "a@b.c", "(c)", "John Q. Public", 'O\'Neil, "B" \\',
    "Müller", "für  Sie", "日本語の件名です", "e\u0301a\u0308", "שלום עולם", "\u202eabc\u202c",
    "\U0001f469\u200d\U0001f467\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001d518\U0010ffff", "\u200b",
    "\xa0", "\u2028x\u2029", "ﬁ", "\ufffd", "ä" * 500, "漢" * 300, "w " * 300 + "w",
    "https://example.com/" + "x" * 2000, "x" * 997, "x" * 998, "a" * 75 + "ü" + "b" * 80,
]  # fmt: skip
"""Texts for fields that some programs read wrong."""
ODD_LINES = [
    "", ".", "..", " ", "\t", "a ", "a\t", "From here", "From ", ">From x", "--", "-- ", "=", "=20",
    "ü" * 40 + " ", "x" * 74 + " ", "x" * 74 + "ü\t", "x" * 75 + ".", "x" * 998, "x" * 999,
    "x" * 75 + "From a", "--=_42.0123456789abcdefa", "--=_42.0123456789abcdefm--", "\0", "\x1b[31m",
    "\x0b\x0c\x1c\x85", "ünï", "漢字", "\ufeff", "{{word}}", "<p>Ä &amp; b</p>", "\u2028",
]  # fmt: skip


class Attachment(NamedTuple):
    """An element of the type submit_attachment: with a content_id it is an inline picture."""

    name: str
    type: str
    content: bytes
    content_id: str | None = None


def compose_tail(
    parts: Parts, identity: MessageIdentity, attachments: Sequence[Attachment]
) -> bytes:
    """Return the tail as the function submit_tail() of the database makes it."""
    start = f"\r\n--{boundary(identity.message_id, '')}".encode()
    pictures = [each for each in attachments if each.content_id]
    files = [each for each in attachments if not each.content_id]
    tail = b""
    if pictures:
        tail += b"".join(start + b"r\r\n" + _part(each) for each in pictures) + start + b"r--\r\n"
    if attachments and parts.body is not None and parts.html is not None:
        tail += start + b"a--\r\n"
    if files:
        tail += b"".join(start + b"m\r\n" + _part(each) for each in files) + start + b"m--\r\n"
    return tail


def _part(attachment: Attachment) -> bytes:
    name, media, content, content_id = attachment
    whole = media.lower().startswith("message/")
    encoding = "base64" if not whole else "7bit" if content.isascii() else "8bit"
    media = re.sub("; ?([A-Za-z0-9-]+=)", ";\r\n \\1", media)
    head = f"Content-Type: {media}\r\nContent-Transfer-Encoding: {encoding}\r\n"
    if content_id:
        head += f"Content-ID: <{content_id}>\r\n"
    head += f"Content-Disposition: {'inline' if content_id else 'attachment'}{_file_name(name)}"
    return head.encode() + b"\r\n\r\n" + (content if whole else _base64(content))


def _base64(content: bytes) -> bytes:
    """Return base64 in lines as PostgreSQL makes them: a full last line has its line end."""
    encoded = b64encode(content)
    lines = [encoded[at : at + 76] for at in range(0, len(encoded), 76)]
    return b"".join(line + b"\r\n" if len(line) == 76 else line for line in lines)


def _file_name(name: str) -> str:
    if len(name) <= 60 and re.fullmatch("[!-~]+(?: [!-~]+)*", name) and "=?" not in name:
        escaped = re.sub(r'(["\\])', r"\\\1", name)
        return f';\r\n filename="{escaped}"'
    if len(_percent(name)) <= 60:
        return f";\r\n filename*=utf-8''{_percent(name)}"
    sections = [_percent(name[at : at + 5]) for at in range(0, len(name), 5)]
    sections[0] = "utf-8''" + sections[0]
    return "".join(f";\r\n filename*{number}*={section}" for number, section in enumerate(sections))


def _percent(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def field_texts() -> st.SearchStrategy[str]:
    """Texts that a header field can have: any Unicode but controls."""
    characters = st.characters(
        exclude_characters=[chr(code) for code in (*range(32), 127)], exclude_categories=["Cs"]
    )
    some = st.text(characters, max_size=80)
    odd = st.sampled_from(ODD)
    return st.one_of(some, odd, st.lists(st.one_of(some, odd), max_size=4).map(" ".join))


def body_texts() -> st.SearchStrategy[str]:
    """Texts with any characters and line ends."""
    some = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
    lines = st.lists(st.one_of(some, st.sampled_from(ODD_LINES)), max_size=8)
    return st.one_of(
        some,
        st.builds(lambda end, each: end.join(each), st.sampled_from(["\n", "\r\n", "\r"]), lines),
    )


def addresses(*, utf8: bool = True) -> st.SearchStrategy[str]:
    """Addresses, with `utf8` also some with local parts beyond ASCII."""
    local = st.from_regex(r"[a-z0-9!#$%&'*+/=?^_`{|}~-]{1,60}(?:\.[a-z]{1,3})?", fullmatch=True)
    others = ["jörg", "δοκιμή", "用户"] if utf8 else []
    odd = st.sampled_from(['"a b"', '"a,b"', "x" * 64, *others])
    domains = ["example.com", "a.b.example.org", "d" * 60 + ".example", "[192.0.2.1]"]
    return st.builds(lambda a, b: f"{a}@{b}", st.one_of(local, odd), st.sampled_from(domains))


def mailboxes(*, utf8: bool = True) -> st.SearchStrategy[list[str]]:
    return st.builds(lambda a, b: [a, b], field_texts(), addresses(utf8=utf8))


_NAMES = ["X-Order", "Comments", "Organization", "X-" + "y" * 48, "x-a"]
_STRUCTURED = {
    "List-Unsubscribe": ["<https://example.com/u?x=1>", "<https://example.com/" + "x" * 900 + ">"],
    "References": [" ".join(f"<{n}.abcdef@example.com>" for n in range(60))],
    "Auto-Submitted": ["auto-generated"],
    "Feedback-ID": ["a:b:c:d"],
}


def params(*, utf8: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Good values of `messages.params` without a tail."""
    boxes = st.lists(mailboxes(utf8=utf8), max_size=4)
    structured = st.sampled_from([(n, v) for n, values in _STRUCTURED.items() for v in values])
    own = st.lists(
        st.one_of(st.tuples(st.sampled_from(_NAMES), field_texts()), structured), max_size=4
    )
    return st.fixed_dictionaries(
        {"from": mailboxes(utf8=utf8)},
        optional={
            "to": boxes, "cc": boxes, "reply_to": boxes, "subject": field_texts(),
            "body": body_texts(), "html": body_texts(), "headers": own.map(dict),
        },
    )  # fmt: skip


def _legible(name: str) -> str:
    """Return a file name that readers leave: `email` strips it, and postal-mime decodes =?."""
    return name[:200].replace("=?", "=").replace("<", "(").strip()


def files(*, inline: bool) -> st.SearchStrategy[list[Attachment]]:
    """Attachments, with `inline` also pictures."""
    names = field_texts().map(_legible).filter(bool)
    types = st.sampled_from(["application/pdf", "image/png", "text/plain; charset=utf-8"])
    content = st.one_of(st.binary(max_size=200), st.sampled_from([b"", b"x" * 57, b"y" * 114]))
    numbers = st.integers(0, 3) if inline else st.just(0)
    plain = st.lists(st.builds(Attachment, names, types, content, st.none()), max_size=3)
    pictures = numbers.flatmap(
        lambda count: st.tuples(
            *[
                st.builds(Attachment, names, st.just("image/png"), content, st.just(f"p{n}@x"))
                for n in range(count)
            ]
        )
    )
    return st.builds(lambda a, b: [*a, *b], plain, pictures)


def kind_of(attachments: Sequence[Attachment]) -> str:
    """Return the value of the key tail."""
    inline = any(each.content_id for each in attachments)
    plain = any(not each.content_id for each in attachments)
    return "both" if inline and plain else "related" if inline else "mixed" if plain else ""


def text_back(text: str) -> str:
    """Return a text as readers get it back."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text and not text.endswith("\n"):
        text += "\n"
    return text.replace("\n", "\r\n")


class Read(NamedTuple):
    """A message as a reader sees it."""

    mailboxes: dict[str, list[tuple[str, str]]]
    subject: str
    headers: list[tuple[str, str]]
    body: str | None
    html: str | None
    attachments: list[tuple[str, str, bytes, str | None]]


_COMPOSED = {
    "date", "from", "reply-to", "to", "cc", "subject", "message-id", "mime-version",
    "content-type", "content-transfer-encoding",
}  # fmt: skip


def read_by_email(content: bytes) -> Read:
    """Read a message by Python's `email`; it must find no defect."""
    message = email.message_from_string(content.decode(), policy=policy.default)
    for part in message.walk():
        assert not part.defects
    boxes = {
        name: found
        for name in ("from", "reply-to", "to", "cc")
        if (found := _boxes_by_email(content, name))
    }
    texts: dict[str, str | None] = {"text/plain": None, "text/html": None}
    attachments = []
    for part in _leaves(message):
        payload = cast(bytes, part.get_payload(decode=True))
        name = part.get_filename()
        if name is None:
            assert texts[part.get_content_type()] is None
            texts[part.get_content_type()] = payload.decode()
        else:
            content_id = part["content-id"]
            attachments.append(
                (name, part.get_content_type(), payload, content_id and str(content_id))
            )
    own = [(n, str(v)) for n, v in message.items() if n.lower() not in _COMPOSED]
    return Read(
        boxes,
        str(message["subject"] or ""),
        own,
        texts["text/plain"],
        texts["text/html"],
        attachments,
    )


def _boxes_by_email(content: bytes, name: str) -> list[tuple[str, str]]:
    """Return names and addresses; the newer API keeps spaces between encoded words of a name."""
    message = email.message_from_string(content.decode(), policy=policy.compat32)
    value = str(message[name] or "").replace("\r\n", "").removesuffix("undisclosed-recipients:;")
    return [
        (str(make_header(decode_header(n))), a) for n, a in getaddresses([value], strict=False) if a
    ]


def _leaves(message: EmailMessage) -> Iterator[EmailMessage]:
    for part in message.walk():
        if not part.is_multipart():
            yield part


def expected(given: dict[str, Any], attachments: Sequence[Attachment]) -> Read:
    """Return what a reader has to see of a message of these params."""
    boxes = {
        key.replace("_", "-"): [(name, address) for name, address in given[key]]
        for key in ("reply_to", "to", "cc")
        if given.get(key)
    }
    boxes = {"from": [tuple(given["from"])], **boxes}
    texts = [given.get(key) for key in ("body", "html")]
    if texts == [None, None]:
        texts[0] = ""
    body, html = [None if text is None else text_back(text) for text in texts]
    ordered = sorted(attachments, key=lambda each: not each.content_id)
    return Read(
        boxes,
        given.get("subject", "") if given.get("subject", "").strip(" ") else "",
        [(name, value) for name, value in given.get("headers", {}).items()],
        body,
        html,
        [
            (
                each.name,
                each.type.partition(";")[0],
                each.content,
                each.content_id and f"<{each.content_id}>",
            )
            for each in ordered
        ],
    )
