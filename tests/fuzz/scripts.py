"""Scripts that the fuzzers begin with, and words that they put together."""

from __future__ import annotations

from base64 import b64encode

PLAIN = b64encode(b"\0ann@example.org\0secret")
LOGIN = b64encode(b"ann@example.org"), b64encode(b"secret")
SCRAM = b64encode(b"n,,n=ann@example.org,r=abc")
ENVELOPE = b"MAIL FROM:<ann@example.org> BODY=8BITMIME\r\nRCPT TO:<r@example.org>\r\n"
MAIL = ENVELOPE + b"DATA\r\n"
BODY = b"Subject: x\r\nBcc: s@example.org\r\n\r\n..x\r\n.y\r\n\xc3\xa4\r\n"
END = b".\r\n"
CHUNKED = (
    ENVELOPE + b"BDAT 14\r\nSubject: x\r\n\r\nBDAT 0\r\nBDAT 5\r\n.\r\n.\rBDAT 3 LAST\r\n\nx\n"
    + ENVELOPE + b"BDAT 14 LAST\r\nSubject: y\r\n\r\n"
)  # fmt: skip
V2 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"
    + bytes((192, 0, 2, 7, 127, 0, 0, 1)) + b"\x10\x00\x00\x19"
)  # fmt: skip
WORDS = (
    b"EHLO c\r\n", b"HELO c\r\n", ENVELOPE, MAIL, BODY, END, b"\r\n.\r\n", b"\n.\n", b"\r.\r",
    b"\n.\r\n", b"\r\n.\n", b"\r\n.\r", b"\r\n", b"\n", b"\r", b"\0", b"MAIL FROM:<>\r\n",
    b"RCPT TO:<postmaster>\r\n", b"RCPT TO:<x@elsewhere.example>\r\n", b"RSET\r\n", b"NOOP\r\n",
    b"VRFY x\r\n", b"QUIT\r\n", b"DATA\r\n", b"BDAT 0\r\n", b"BDAT 3\r\nabc", b"BDAT 0 LAST\r\n",
    b"BDAT 5 LAST\r\na\r\n.\r", b"BDAT 99999999999999999\r\n", b"BDAT -1\r\n", b"BDAT x\r\n",
    CHUNKED, b"AUTH PLAIN " + PLAIN + b"\r\n", b"AUTH LOGIN\r\n", LOGIN[0] + b"\r\n",
    LOGIN[1] + b"\r\n", b"AUTH PLAIN\r\n", PLAIN + b"\r\n",
    b"AUTH SCRAM-SHA-256 " + SCRAM + b"\r\n",
    b"AUTH PLAIN AHgAeA==\r\n", b"*\r\n", b"=", b"STARTTLS\r\n", b"GET / HTTP/1.1\r\n",
    b"RCPT TO:<r@example.org> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;r@example.org\r\n",
    b"MAIL FROM:<ann@example.org> SIZE=1 RET=FULL ENVID=x SMTPUTF8\r\n",
    b"MAIL FROM:<ann@example.org> REQUIRETLS MT-PRIORITY=3 AUTH=<>\r\n",
    b"LHLO c\r\n",
    b"XCLIENT ADDR=192.0.2.1\r\n", b"XCLIENT ADDR=IPV6:2001:db8::1 PORT=7 NAME=c LOGIN=x\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 25\r\n", b"PROXY UNKNOWN\r\n",
    b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n", V2, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"Received: x\r\n", b"x" * 76 + b"\r\n", b"y" * 3000,
)  # fmt: skip
"""Words of the dialogue."""

_C = b"\xffc"
_EHLO = b"EHLO c\r\n" + _C
SEEDS = (
    b"\x00" + _EHLO + ENVELOPE + b"DATA\r\n" + _C + BODY.replace(b"\xc3\xa4", b"a") + END + _C
    + b"RSET\r\nQUIT\r\n",
    b"\x00" + _EHLO + b"STARTTLS\r\n\xfft" + _EHLO + CHUNKED + b"QUIT\r\n",
    b"\x01EHLO c\r\n" + MAIL + BODY + END + CHUNKED + MAIL + BODY + END + b"QUIT\r\n",
    b"\x02HELO c\r\nMAIL FROM:<>\r\nRCPT TO:<r@example.org>\r\nDATA\r\na\nb\r\n.\r\nNOOP\r\n"
    b"QUIT\r\n",
    b"\x02EHLO c\r\n" + MAIL + b"x" * 76 + b"\r\n\xffx\r\n.\r\n\xffwQUIT\r\n",
    b"\x03" + _EHLO + b"STARTTLS\r\n\xfft" + _EHLO + b"AUTH PLAIN " + PLAIN + b"\r\n" + _C + MAIL
    + BODY + END + b"QUIT\r\n",
    b"\x04EHLO c\r\nAUTH LOGIN\r\n" + LOGIN[0] + b"\r\n" + LOGIN[1] + b"\r\n" + MAIL + BODY + END
    + b"QUIT\r\n",
    b"\x04EHLO c\r\nAUTH SCRAM-SHA-256 " + SCRAM + b"\r\n" + _C
    + b"*\r\nAUTH PLAIN AHgAeA==\r\n\xffwQUIT\r\n",
    b"\x05PROXY TCP4 192.0.2.1 192.0.2.2 1000 25\r\nEHLO c\r\n" + MAIL + BODY + END + b"QUIT\r\n",
    b"\x05" + V2 + b"EHLO c\r\nAUTH PLAIN\r\n" + PLAIN + b"\r\n" + CHUNKED + b"QUIT\r\n",
    b"\x06\xfft" + _EHLO + b"AUTH PLAIN " + PLAIN + b"\r\n" + _C + CHUNKED + b"QUIT\r\n",
    b"\x07PROXY TCP6 2001:db8::1 ::1 1 2\r\n\xfft" + _EHLO + MAIL + _C
    + b"a\r\n" + END + b"QUIT\r\n",
    b"\x08" + _EHLO + b"MAIL FROM:<>\r\nSTARTTLS\r\n\xfft" + _EHLO + MAIL + _C
    + b"a\r\n" + END,
    b"\x09LHLO c\r\n" + ENVELOPE + b"RCPT TO:<s@example.org>\r\nDATA\r\n" + BODY + END + ENVELOPE
    + b"RCPT TO:<x@elsewhere.example>\r\nBDAT 3 LAST\r\na\r\nQUIT\r\n",
    b"\x0aEHLO c\r\nXCLIENT ADDR=192.0.2.1 PORT=7\r\n" + _C + b"EHLO c\r\n" + MAIL + BODY + END
    + b"QUIT\r\n",
    b"\x01EHLO c\r\n" + MAIL + BODY + b"\xff1" + END + b"\xffw\xff0" + MAIL + b"\xff2" + BODY + END
    + b"\xffW\xffb" + MAIL + BODY + END + b"\xffr\xffs",
)  # fmt: skip
"""Dialogues of every kind."""
STREAMS = (
    b"EHLO c\r\n" + MAIL + BODY + END + CHUNKED + MAIL + b"a\rb\nc\0" + END + b"\r\n.\r\nQUIT\r\n",
    b"HELO c\r\n" + MAIL + b".\r\n" + MAIL + b".\r\r\n.\r\n..\r\n\n.\r\n.\n.\r\n.\r\n"
    + b"VRFY x\r\nQUIT\r\n",
    b"EHLO c\r\n" + CHUNKED + b"BDAT 5\r\nabcdeRSET\r\n" + ENVELOPE
    + b"BDAT 1\r\n\rBDAT 1\r\n\nBDAT 0 LAST\r\nBDAT 3 x\r\nQUIT\r\n",
)  # fmt: skip
"""Octets that a client may send at once or one by one."""
