"""Mail that came by SMTP has the parts that a reader sees, whatever its form."""

from __future__ import annotations

import base64
import random
import time
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.policy import SMTP

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta_features.providers.mail_parts import MailParts, mailbox, unflowed
from pgmta_features.providers.places import Unplaceable
from tests.support.odd_messages import odd_messages


def mail(*lines: str, charset: str = "utf-8") -> MailParts:
    return MailParts("\r\n".join(lines).encode(charset))


def test_charsets() -> None:
    for kind, octets, text in [
        ("text/plain; charset=iso-8859-1", b"Gr\xfc\xdfe", "Grüße"),
        ("text/plain; charset=koi8-r", "мир".encode("koi8-r"), "мир"),
        ("text/plain; charset=utf-16", "мир".encode("utf-16"), "мир"),
        ("text/plain; charset=x-none", "Grüße".encode(), "Grüße"),
        ("text/plain", "Grüße".encode(), "Grüße"),
        ("text/plain", b"Gr\xfc\xdfe", "Grüße"),
        ("text/plain; charset=us-ascii", "Grüße".encode(), "Grüße"),
        ("text/plain; charset=hex", b"abc", "abc"),
    ]:
        assert MailParts(f"Content-Type: {kind}\r\n\r\n".encode() + octets).text == text
    assert mail("Content-Type: text/html", "", "<p>").text is None


def test_nested_parts() -> None:
    inner = b"Subject:  a   folded\r\n  line\r\nX-Y: " + b"z" * 200 + b"\r\n\r\nGr\xfc\xdfe\r\n"
    picture = EmailMessage()
    picture.set_content("plain\n")
    picture.add_alternative('<img src="cid:p@x">', subtype="html")
    html = picture.get_payload()[1]  # type: ignore[index]
    html.add_related(b"png", "image", "png", cid="<p@x>", filename="p.png")  # type: ignore[union-attr]
    picture.add_attachment(b"a,b", maintype="text", subtype="csv", filename='ü,;".csv')
    picture.add_attachment(b"x", maintype="image", subtype="png", filename="y.png", cid="<y@x>")
    octets = picture.as_bytes(policy=SMTP)
    edge = picture.get_boundary()
    assert edge
    end = f"\r\n--{edge}--\r\n".encode()
    attached = f"\r\n--{edge}\r\nContent-Type: message/rfc822\r\n\r\n".encode() + inner[:-2]
    found = MailParts(octets.replace(end, attached + end))
    assert (found.text, found.html) == ("plain\n", '<img src="cid:p@x">\n')
    whole = inner[:-2].replace(b"Subject:  a", b"Subject: a")
    read = [(e["name"], e["type"], base64.b64decode(e["content"] or ""), e["cid"])
            for e in found.attachments]  # fmt: skip
    assert read == [
        ("p.png", "image/png", b"png", "p@x"),
        ('ü,;".csv', "text/csv", b"a,b", None),
        ("y.png", "image/png", b"x", None),
        (
            "attachment.eml",
            "message/rfc822",
            whole,
            None,
        ),
    ]


def test_without_a_text() -> None:
    found = mail("Content-Type: application/pdf", "Content-Transfer-Encoding: base64", "", "eA==")
    assert (found.text, found.html, found.texts) == (None, None, [])
    assert [each["content"] for each in found.attachments] == ["eA=="]
    assert mail("Content-Type: multipart/mixed", "", "no parts").text == "no parts"
    assert mail("Subject: x", "", "").text == ""


def test_fields() -> None:
    found = mail(
        "From: =?utf-8?q?M=C3=BCller=2C_Hans?= <h@a.example>", "Subject: =?utf-8?b?w7w=?=",
        " =?iso-8859-1?q?=FC?= x =?utf-8?q?a=0D=0ABcc:_eve@e.example?=", "Reply-To: a@b, C <c@d>",
        "List-Unsubscribe: <https://a.example/u?x=1>,", "\t<mailto:u@a.example>",
        "List-Unsubscribe-Post: List-Unsubscribe=One-Click", "X-A: 1", "x-a: 2", "X-Ü: Grüße",
        "Received: by x", "Bcc: eve@e.example", "Content-Language: de", "", "",
    )  # fmt: skip
    assert found.field("subject") == "üü x a Bcc: eve@e.example"
    assert found.field("From") == '"Müller, Hans" <h@a.example>'
    assert found.field("reply-to") == "a@b, C <c@d>"
    assert found.field("X-None") is None
    assert found.header_map == {
        "List-Unsubscribe": "<https://a.example/u?x=1>,\t<mailto:u@a.example>",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
        "X-A": "1",
    }
    assert [each["value"] for each in found.headers][2:] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "a@b.c"), ("Ann", "Ann <a@b.c>"), ("Ann  B", '"Ann  B" <a@b.c>'),
        ('O\'Neil, "B" \\', '"O\'Neil, \\"B\\" \\\\" <a@b.c>'), ("x>, <y", '"x>, <y" <a@b.c>'),
        ("Jörg Ä", "Jörg Ä <a@b.c>"),
    ],
)  # fmt: skip
def test_mailboxes(name: str, text: str) -> None:
    assert mailbox(name, "a@b.c") == text


def test_format_flowed() -> None:
    # examples of RFC 3676, sections 4.1 and 4.5, with space-stuffing and a signature
    text = ">> Exit, Stage Left. \n>> Soon.\n> Hm, \nno.\n  From \n here \n\n-- \nAnn\n"
    assert unflowed(text, delsp=False) == (
        ">> Exit, Stage Left. Soon.\n> Hm, \nno.\n From here \n\n-- \nAnn\n"
    )
    assert unflowed("wo \nrt\n", delsp=True) == "wort\n"
    assert unflowed("", delsp=False) == ""
    found = mail("Content-Type: text/plain; format=flowed", "", "a ", "b", "c")
    assert found.text == "a b\nc"


@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_no_message_raises_an_error(octets: bytes, seed: int) -> None:
    source = random.Random(seed)
    known = next(odd_messages(1, seed, doubled=True))
    head = source.choice([
        b"", b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n",
        b"Content-Type: message/rfc822\r\n\r\n", b"Content-Type: text/plain; charset=",
        b"From: ", b"Subject: =?", b"Reply-To: ", b"Content-Type: ", b"X-Y: ", known,
        b"Content-Disposition: attachment; filename*0*=",
    ])  # fmt: skip
    found = MailParts(head + octets)
    values = [found.text, found.html, found.texts, found.attachments, found.headers]
    values += [found.field(name) for name in ("Subject", "From", "Reply-To", "X-Y")]
    for name in ("from", "to", "reply-to"):
        values.append(found.mailboxes(name))
    assert "\r" not in repr([found.field("Subject"), found.headers])


def test_long_fields_take_no_square_of_their_length() -> None:
    """Measured before: 100 s for 150 KB, in which no other mail went out."""
    words = "=?utf-8?q?a?= " * 20_000
    began = time.process_time()
    found = mail(f"X-A: {'ä ' * 50_000}", f"Subject: {words}", "", "x")
    (field,) = found.headers
    assert str(make_header(decode_header(field["value"]))) == "ä " * 50_000
    assert found.field("Subject") == words
    assert time.process_time() - began < 5


def test_a_field_of_mime_has_a_bound() -> None:
    """Measured before: 21 s for 500 KB of semicolons."""
    began = time.process_time()
    for name in ("Content-Type: text/plain", "content-disposition : attachment"):
        for fold in ("", "\r\n "):
            long = f"{name}{fold}{';' * 500_000}"
            with pytest.raises(Unplaceable, match="64 KB"):
                mail(long, "", "x")
            with pytest.raises(Unplaceable, match="64 KB"):
                mail("Content-Type: multipart/mixed; boundary=b", "", "--b", long, "", "x", "--b--")
    assert time.process_time() - began < 5
    assert mail("", f"Content-Type: {'x' * 1000}\r\n", "y" * 500_000)
