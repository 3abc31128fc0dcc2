"""The sink's page over HTTP: whom it answers, and what it shows of which mail."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.smtpd.sink.sink import Sink
from tests.support.waiting import PATIENCE

HTML = b"Content-Type: text/html\r\n\r\n"


def shown(sink: Sink, name: str, tab: str) -> str:
    """Return what a tab shows below the others."""
    answer = sink.ask(f"/m/{name}/{tab}")
    assert answer.status == 200
    return answer.text.split("</nav>")[-1]


def test_no_connection_keeps_the_page_from_its_reader(sink: Sink, said: Path) -> None:
    """Also a browser's own ones, which it keeps; a request that is none says nothing on stdout."""
    with ExitStack() as stack:
        for octets in [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] * 40:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", sink.page)))
            client.sendall(octets)
        assert sink.ask("/").status == 200
    with socket.create_connection(("127.0.0.1", sink.page), PATIENCE) as client:
        client.sendall(b"\x16\x03\x01secret\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 400 ")
    assert "refused" not in said.read_text()


def test_each_answer_protects_its_reader(shared: Sink) -> None:
    message = EmailMessage()
    message.set_content("text")
    message.add_alternative("<p>html", subtype="html")
    message.add_attachment(
        b"<script>", maintype="text", subtype="html", filename='../../e"v\\il/na me.html'
    )
    name = shared.put(message.as_bytes())
    paths = ["/", f"/m/{name}", f"/m/{name}/source", "/style.css", "/list.js", "/none"]
    files = [f"/m/{name}/part/2", f"/m/{name}/raw"]
    for path in [*paths, f"/m/{name}/frame", *files]:
        headers = shared.ask(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [field for field in headers if field.startswith("access-control")]
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
        assert ("frame-ancestors 'none'" in policy) == (not path.endswith("frame"))
    frame = shared.ask(f"/m/{name}/frame").headers["content-security-policy"]
    assert "script-src" not in frame
    assert frame.endswith("; sandbox allow-popups allow-popups-to-escape-sandbox")
    assert 'sandbox="allow-popups allow-popups-to-escape-sandbox"' in shared.ask(f"/m/{name}").text
    for path in files:
        headers = shared.ask(path).headers
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-security-policy"].endswith("sandbox")
    part = shared.ask(files[0])
    assert part.body == b"<script>"
    assert part.headers["content-disposition"] == (
        "attachment; filename=\"na me.html\"; filename*=UTF-8''na%20me.html"
    )
    assert shared.ask(files[1]).body == (shared.folder / "new" / name).read_bytes()


def test_the_host_of_a_target_is_not_read(shared: Sink) -> None:
    answer = shared.ask("http://xn--a/", Host=f"127.0.0.1:{shared.page}")
    assert answer.status == 200


def test_names_that_strangers_point_here_get_nothing(shared: Sink) -> None:
    for host in ("evil.example", f"evil.example:{shared.page}", "127.0.0.1", "localhost:1", ""):
        answer = shared.ask("/", Host=host)
        assert (host, answer.status) == (host, 421)
        assert f"http://127.0.0.1:{shared.page}/ only" in answer.text
    for name in ("127.0.0.1", "LOCALHOST", "[::1]"):
        assert shared.ask("/", Host=f"{name}:{shared.page}").status == 200


def test_only_the_page_itself_clears(sink: Sink) -> None:
    kept = sink.folder / "new" / sink.put(b"Subject: a\r\n\r\n")
    read = sink.folder / "cur" / f"{sink.put(b'')}:2,S"
    (sink.folder / "new" / read.name.partition(":")[0]).rename(read)
    assert sink.ask(f"/m/{read.name.partition(':')[0]}").status == 200
    assert sink.ask("/clear").status == 404
    assert sink.ask("/", "POST").status == 405
    for origin in ("null", "http://evil.example", f"https://127.0.0.1:{sink.page}", sink.url[:-1]):
        assert sink.ask("/clear", "POST", Origin=origin).status == 403
    assert sink.ask("/clear", "POST").status == 403
    assert kept.exists()
    assert sink.ask("/clear", "POST", Origin=sink.url).status == 303
    assert not kept.exists()
    assert not read.exists()


def test_paths_lead_to_mails_alone(shared: Sink) -> None:
    (shared.folder.parent / "secret").write_text("secret")
    (shared.folder / "new" / "link").symlink_to(shared.folder.parent / "secret")
    name = shared.put(b"Subject: a\r\n\r\n")
    for path in (
        "/m/link/raw", "/m/..%2f..%2fsecret/raw", "/m/../../secret/raw", "/m/%2e%2e/raw", "/m/",
        "/m/x%00/raw", f"/m/{name}/none", f"/m/{name}/part/0", f"/m/{name}/part/99",
        f"/m/{name}/frame", f"/m/{name}/source/1", "/site.py", "/m/%ff/raw",
    ):  # fmt: skip
        assert (path, shared.ask(path).status) == (path, 404)
    assert shared.ask("/?page=99999999").status == shared.ask("/?page=x").status == 200


@pytest.mark.slow
def test_the_list_has_pages(sink: Sink) -> None:
    for number in range(10_000):
        sink.put(f"Subject: mail {number}\r\n\r\n".encode())
    began = time.monotonic()
    first, last = sink.ask("/"), sink.ask("/?page=100")
    assert time.monotonic() - began < 5
    assert "10000 mails" in first.text
    assert re.findall("mail [0-9]+", first.text) == [f"mail {n}" for n in range(9999, 9899, -1)]
    assert re.findall("mail [0-9]+", last.text) == [f"mail {n}" for n in range(99, -1, -1)]
    tag = first.headers["etag"]
    same = sink.ask("/", If_None_Match=tag)
    assert (same.status, same.body) == (304, b"")
    sink.put(b"")
    assert sink.ask("/", If_None_Match=tag).status == 200


def test_what_the_list_says_of_a_mail(sink: Sink) -> None:
    sink.put(
        b"from: =?utf-8?q?=C3=84nn?= <a@b.example>\r\nSUBJECT: =?utf-8?b?R3LDvMOfZQ==?=\r\n"
        b" =?x-none?q?=FF?= <script>\r\nX: 1\r\n\r\nSubject: body",
        "x@y.example", "b@y.example", "c@y.example", "d@y.example",
    )  # fmt: skip
    sink.put(b"Subject: \xe2\x80\xaeevil\x00\x1b\r\nTo: list\r\n\r\n", sender="")
    (sink.folder / "new" / "odd name").write_text("")
    text = sink.ask("/").text
    assert "Änn &lt;a@b.example&gt;" in text
    assert ">Grüßeÿ &lt;script&gt;<" in text
    assert "x@y.example, b@y.example, c@y.example and 1 more" in text
    assert "<bdi>\ufffdevil\ufffd\ufffd</bdi>" in text
    assert "&lt;&gt;" in text
    assert "2 mails" in text


def test_odd_mail_is_shown(shared: Sink) -> None:
    for header, body, tab, words in (
        ("text/plain; charset=iso-8859-1", b"\xe9", "text", "é"),
        ("text/plain; charset=utf-8", b"caf\xe9", "text", "café"),
        ("text/plain; charset=zlib", b"x\xc3\xa9", "text", "xé"),
        ("text/plain; charset=utf-16", b"odd", "text", "odd"),
        ("text/plain; charset=\"utf-7\r\n x\"; charset=x", b"x", "text", "x"),
        ("text/plain", b"a\x00\x1b\rb", "text", "a\ufffd\ufffd\nb"),
        ("multipart/mixed; boundary=b", b"no part", "source", "no part"),
        ("multipart/mixed; boundary=b", b"--b\r\n\r\n<&>", "text", "&lt;&amp;&gt;"),
        ("multipart/mixed", b"--b\r\n\r\nx", "header", "multipart/mixed"),
        ("message/rfc822", b"Subject: in\r\n\r\nx", "attachments", "message/rfc822"),
        ("nonsense/", b"text", "attachments", "nonsense/"),
        ("nonsense", b"text", "text", "text"),
        ("text/plain", b"(http://a.example/x_(y)).", "links", ">http://a.example/x_(y)<"),
        ("text/html", b"<a href=' https://x.example/?a&amp;b\n'>", "links", "x.example/?a&amp;b<"),
    ):  # fmt: skip
        content = f"Content-Type: {header}\r\n\r\n".encode() + body
        assert words in shown(shared, shared.put(content), tab), header


def test_links_lead_to_the_web_only(shared: Sink) -> None:
    urls = ("javascript:alert(1)", "data:text/html,x", "//x.example", "file:///etc", "vbscript:x")
    markup = "".join(f'<a href="{url}">' for url in urls) + "<a href=mailto:a@b.example>"
    found = shown(shared, shared.put(HTML + markup.encode()), "links")
    assert re.findall('href="([^"]*)"', found) == ["mailto:a@b.example"]
    assert 'target="_blank" rel="noreferrer noopener"' in found


def test_pictures_of_html_are_in_it(shared: Sink) -> None:
    message = EmailMessage()
    message.set_content('<img src="cid:one"><img src=cid:two><p>cid:one', subtype="html")
    message.add_related(b"\x89PNG", maintype="image", subtype="png", cid="<one>")
    message.add_related(b"<b>", maintype="text", subtype="html", cid="<two>")
    frame = shared.ask(f"/m/{shared.put(message.as_bytes())}/frame").text
    assert '<img src="data:image/png;base64,iVBORw==">' in frame
    assert "<img src=cid:two><p>cid:one" in frame


def test_names_of_files_are_names_of_files(shared: Sink) -> None:
    names = {
        '"../../x.sh"': "x.sh",
        '"C:\\\\dir\\\\x.exe"': "x.exe",
        '"..."': "part-0",
        '"a\x07b;\'.txt"': "a_b;'.txt",
        '"=?utf-8?q?=E2=80=AEx=0D=0ASet-Cookie:_a=22.pdf?="': '_x Set-Cookie: a".pdf',
    }
    for given, name in names.items():
        mail = f"Content-Disposition: attachment; filename={given}\r\n\r\nx".encode()
        headers = shared.ask(f"/m/{shared.put(mail)}/part/0").headers
        assert "set-cookie" not in headers
        found = headers["content-disposition"].partition("filename*=UTF-8''")[2]
        assert (given, re.sub("%(..)", lambda x: chr(int(x[1], 16)), found)) == (given, name)
