"""Paths and mailboxes: what gets in can be written out again, and nothing else gets in."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgmta.errors import AddressError
from pgmta.mail.address import (
    MAX_ADDRESS_OCTETS,
    mailbox_key,
    normalise_domain,
    parse_mailbox,
    split_path,
    unquoted,
)

LABEL63 = "a" * 63
DOMAIN191 = f"{LABEL63}.{LABEL63}.{LABEL63}"

PATHS = [
    ("<a@b.example>", "a@b.example", ""),
    (" <a@b.example>  SIZE=1 BODY=8BITMIME ", "a@b.example", "SIZE=1 BODY=8BITMIME"),
    ("<>", "", ""),
    ("<> SIZE=5", "", "SIZE=5"),
    ("a@b.example", "a@b.example", ""),
    ("a@b.example SIZE=5", "a@b.example", "SIZE=5"),
    ('<"a>b"@c.example> X', '"a>b"@c.example', "X"),
    (r'<"a\">b"@c.example>', r'"a\">b"@c.example', ""),
    (r'<"a\\"@c.example>', r'"a\\"@c.example', ""),
    ('<a@b.example> ">"', "a@b.example", '">"'),
    ("<@x.example,@y.example:a@b.example>", "a@b.example", ""),
    ('<@x.example:"a:b"@c.example>', '"a:b"@c.example', ""),
    ("<@x.example:>", "@x.example:", ""),  # no null reverse-path: it has no domain, and is refused
    ("<Postmaster>", "Postmaster", ""),
]

BAD_PATHS = ["", " ", "<", "<a@b", '<"a>@b', '<"', "a@b>", r'<"a\"@b>', "a<b"]

MAILBOXES = [
    ("a@b.example", "b.example"),
    ("A.b+c=d/e@B.Example", "b.example"),
    ("!#$%&'*+-/=?^_`{|}~@b.example", "b.example"),
    ('"a b"@b.example', "b.example"),
    ('""@b.example', "b.example"),
    (r'"\"\\\@"@b.example', "b.example"),
    ('"@"@b.example', "b.example"),
    ('"<>"@b.example', "b.example"),
    ("a@localhost", "localhost"),
    ("a@x_y.example", "x_y.example"),
    ("a@1.2.example", "1.2.example"),
    ("a@[192.0.2.1]", "[192.0.2.1]"),
    ("a@[IPv6:2001:DB8::0:1]", "[IPv6:2001:db8::1]"),
    ("a@[ipv6:::1]", "[IPv6:::1]"),
    (f"a@{LABEL63}.example", f"{LABEL63}.example"),
    (f"{'l' * (MAX_ADDRESS_OCTETS - 192)}@{DOMAIN191}", DOMAIN191),
]

UTF8_MAILBOXES = [
    ("jürgen@b.example", "b.example"),
    ('"jü rgen"@b.example', "b.example"),
    ("a@bücher.example", "xn--bcher-kva.example"),
    ("a@BÜCHER.Example", "xn--bcher-kva.example"),
    ("用户@例え。テスト", "xn--r8jz45g.xn--zckzah"),
    ("é" * 113 + "@" + "ü.example", "xn--tda.example"),
    ("a@faß.de", "xn--fa-hia.de"),  # not fass.de: that is another owner's
    ("a@FAẞ.de", "xn--fa-hia.de"),
    ("a@βόλος.com", "xn--nxasmm1c.com"),
    ("a@ΒΌΛΟΣ.com", "xn--nxasmq6b.com"),
    ("a@\u0646\u0627\u0645\u0647\u200c\u0627\u06cc.com", "xn--mgba3gch31f060k.com"),
    ("a@क्\u200dष.com", "xn--11b2ezcw70k.com"),
    ("a@ü\uff0eexample\uff61net", "xn--tda.example.net"),
    ("a@x_y.ü.example", "x_y.xn--tda.example"),
    ("a@xn--zz.ü.example", "xn--zz.xn--tda.example"),
    ("a@\uff11\uff21.example", "1a.example"),
    ("\u0646\u0627\u0645\u0647\u200c\u0627\u06cc@b.example", "b.example"),
]

BAD_MAILBOXES = [
    *(
        "",
        "@",
        "a",
        "a@",
        "@b.example",
        "Postmaster",
        "a@@b.example",
        "a@b@c.example",
        "a b@c.example",
    ),
    *(
        ".a@b.example",
        "a.@b.example",
        "a..b@c.example",
        '"a@b.example',
        'a"@b.example',
        '"a"b@c.example',
    ),
    *('"a"."b"@c.example"', '"a\\"@b.example', '"\x7f"@b.example', '"\\\x01"@b.example'),
    *("a@b..example", "a@.example", "a@b.example.", "a@-b.example", "a@b-.example", "a@b example"),
    *(
        "a@b.example>",
        "<a@b.example",
        "a@b,c",
        "a@b:c",
        "a@b;c",
        "a(c)@b.example",
        "a@b\\c",
        "a@b/c",
    ),
    *("a@[192.0.2.1", "a@192.0.2.1]", "a@[192.0.2.256]", "a@[::1]", "a@[IPv6:192.0.2.1]", "a@[]"),
    *("a@[IPv6:fe80::1%eth0]", "a@[IPv6:::1%\r\n]", "a@[192.0.2.1]x", "a@[IPv6:::1]]", "a@[tag:x]"),
    *("a\r\nRCPT TO:<b@c>@d", "a@b\r\nDATA", "a\n@b.example", "a\r@b.example", "a\0@b.example"),
    *('"a\r\n"@b.example', '"a\n"@b.example', "a\t@b.example", "a@b\0.example", " a@b.example"),
    f"a@{'b' * 64}.example",
    f"{'l' * (MAX_ADDRESS_OCTETS - 191)}@{DOMAIN191}",
]

BAD_UTF8_MAILBOXES = [
    "a\udcff@b.example",  # an octet that is no UTF-8, as aiosmtpd hands it on
    "a@b\udcff.example",
    "a@ü..example",
    "a@ü\uff20b.example",  # NFKC makes it an @
    "a@ü\uff0fb.example",
    "a@ü\u2028.example",
    f"a@{'ü' * 63}.example",
    "é" * 126 + "@b.example",
    *(
        f"{what}{char}{where}"
        for char in "\x1b\x80\x85\x9b\xad\u061c\u200b\u200e\u202e\u2028\u2029\u2066\ufeff\U000e0041"
        for what, where in (
            ("é", "@b.example"),
            ('"é', '"@b.example'),
            ('"é\\', '"@b.example'),
            ("a@é", ".example"),
            ("a@b", ".example"),
        )
    ),
    *("a@a\u200db.example", "a@a\u200cb.example"),  # not where the letters give them a meaning
    *("a@ü_x.example", "a@-ü.example", "a@ü-.example", "a@\u0301ü.example", "a@ü.", "a@ü\u3002"),
    f"a@faß.{DOMAIN191}.{LABEL63}",
]


@pytest.mark.parametrize(("argument", "path", "rest"), PATHS)
def test_paths(argument: str, path: str, rest: str) -> None:
    assert split_path(argument) == (path, rest)


@pytest.mark.parametrize("argument", BAD_PATHS)
def test_bad_paths(argument: str) -> None:
    with pytest.raises(AddressError):
        split_path(argument)


@pytest.mark.parametrize(("text", "domain"), MAILBOXES)
def test_mailboxes(text: str, domain: str) -> None:
    for utf8 in (False, True):
        assert parse_mailbox(text, utf8=utf8) == (text, domain)
    assert normalise_domain(domain) == domain


@pytest.mark.parametrize(("text", "domain"), UTF8_MAILBOXES)
def test_mailboxes_that_need_smtputf8(text: str, domain: str) -> None:
    assert parse_mailbox(text, utf8=True) == (text, domain)
    with pytest.raises(AddressError, match="SMTPUTF8"):
        parse_mailbox(text)


@pytest.mark.parametrize("text", BAD_MAILBOXES + BAD_UTF8_MAILBOXES)
def test_bad_mailboxes(text: str) -> None:
    for utf8 in (False, True):
        with pytest.raises(AddressError) as caught:
            parse_mailbox(text, utf8=utf8)
        str(caught.value).encode()  # fits into a reply to the client


SPELLINGS = [
    ("one", ["one", '"one"', r'"\o\n\e"', r'"on\e"']),
    ("a.b", ["a.b", '"a.b"', r'"a\.b"']),
    ('"a b"', ['"a b"', r'"a\ b"', r'"\a\ \b"']),
    (r'"\\"', [r'"\\"']),
    (r'"a\"b"', [r'"a\"b"', r'"\a\"b"']),
    *((text, [text]) for text in ('""', '".a"', '"a..b"', '"a."', '"@"', '"a,b"')),
    ("zoë", ["zoë", '"zoë"', r'"\zoë"']),
]


def test_spellings_of_one_mailbox() -> None:
    """RFC 5321, section 4.1.2: all quoted forms are equivalent. Others are other mailboxes."""
    for least, spellings in SPELLINGS:
        assert {unquoted(text) for text in spellings} == {least}
        hosts = "É.example", "xn--9ca.EXAMPLE"
        addresses = [f"{text}@{host}" for text in spellings for host in hosts]
        for address in addresses:
            parse_mailbox(address, utf8=True)
        assert {mailbox_key(address) for address in addresses} == {f"{least}@xn--9ca.example"}
        parse_mailbox(f"{least}@b.example", utf8=True)
    assert len({least for least, _ in SPELLINGS}) == len(SPELLINGS)
    assert mailbox_key('"One"@b.example') == mailbox_key("one@b.example")
    assert [mailbox_key(text) for text in ("", "One", '"')] == ["", "one", '"']


def outside_quotes(text: str) -> str:
    """The characters that no quoted string holds."""
    out, quoted, escaped = "", False, False
    for char in text:
        if escaped:
            escaped = False
        elif quoted and char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif not quoted:
            out += char
    assert not quoted
    return out


tricky = st.text(
    st.sampled_from([*'ab.@"\\<>:, ', "\r", "\n", "\0", "\t", "\x7f", "ü", "\udc80", "[", "]"]),
    max_size=14,
)
wild = st.text(max_size=14)
local = st.one_of(
    tricky, wild, tricky.map(lambda t: f'"{t}"'), st.text(string.printable, max_size=20)
)
arguments = st.one_of(
    st.tuples(local, st.sampled_from(["b.example", "[IPv6:::1]", "ü.example", "b\r\nx"])).map(
        lambda pair: f"<{pair[0]}@{pair[1]}>"
    ),
    tricky.map(lambda t: f"<a@[IPv6:fe80::1%{t}]>"),
    st.tuples(tricky, local).map(lambda pair: f"<@{pair[0]}:{pair[1]}@b.example> X=1"),
    tricky,
    wild,
)


@given(arguments, st.booleans())
@example('<"a>"@b.example>', False)
@example('<@a:"x\r\nDATA"@b.example>', False)
def test_what_is_let_in_can_be_written_out(argument: str, utf8: bool) -> None:
    try:
        mailbox, domain = parse_mailbox(split_path(argument)[0], utf8=utf8)
    except AddressError:
        return
    assert not set(mailbox) & set("\r\n\0")
    assert not set(outside_quotes(mailbox)) & set("<> ")
    assert utf8 or mailbox.isascii()
    assert domain.isascii()
    assert domain == domain.lower().replace("ipv6:", "IPv6:") == normalise_domain(domain)
    for command in (f"RCPT TO:<{mailbox}>", f"MAIL FROM:<{mailbox}> SIZE=1 BODY=8BITMIME"):
        line = (command + "\r\n").encode()
        assert line.splitlines() == [command.encode()]
        path, rest = split_path(line.decode().rstrip("\r\n").partition(":")[2])
        assert parse_mailbox(path, utf8=utf8) == (mailbox, domain)
        assert rest in ("", "SIZE=1 BODY=8BITMIME")
