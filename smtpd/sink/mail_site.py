"""The page of the sink: which path shows what, and whom it answers."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from aiohttp import web

from pgmta.mail.text import one_line
from smtpd.sink.dissection import READ, clean
from smtpd.sink.dissector import Dissection, Dissector, Undissectable
from smtpd.sink.header_text import decode_text
from smtpd.sink.kept_mails import KeptMails

PAGE = 100
"""Mails in a page of the list."""

_HERE = Path(__file__).parent / "templates"
_SHOWN = 1 << 20  # octets of the source
_TABS = ("html", "text", "links", "attachments", "header", "source")
_HTML = "text/html; charset=utf-8"
_COMMON = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # the browser then names the origin of a form, and no other
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",
    "Cache-Control": "no-store",
    "Server": "pgmta",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SANDBOX = "allow-popups allow-popups-to-escape-sandbox"
"""Rights of the frame of HTML: its links open new windows, when the reader clicks on them."""

_FRAME = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; "
    f"base-uri 'none'; frame-ancestors 'self'; sandbox {_SANDBOX}"
)
_FILE = "default-src 'none'; frame-ancestors 'none'; sandbox"
_PATH = re.compile(r"/m/([^/]+)(?:/([a-z]+)(?:/(\d{1,4}))?)?")
_NUMBER = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_PLAIN = re.compile(r"[^A-Za-z0-9._ -]")


class _Refusal(Exception):
    """A request that gets an error, with its text."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class MailSite:
    """Answers the reader's browser, on this machine only.

    Pages of other origins get nothing: there is no CORS, and a name that strangers point at this
    machine (DNS rebinding) is not in the Host field that is accepted.
    """

    def __init__(self, mails: KeptMails, dissector: Dissector, port: int) -> None:
        self._mails = mails
        self._dissector = dissector
        names = ("127.0.0.1", "localhost", "[::1]")
        self._hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())
        self._url = f"http://127.0.0.1:{port}/"
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE), autoescape=True, auto_reload=False,
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        environment.filters["octets"] = _octets
        environment.globals["sandbox"] = _SANDBOX
        self._templates = {
            name: environment.get_template(f"{name}.html") for name in ("list", "mail", "message")
        }
        self._files = {
            "/style.css": ((_HERE / "style.css").read_bytes(), "text/css; charset=utf-8"),
            "/list.js": ((_HERE / "list.js").read_bytes(), "text/javascript; charset=utf-8"),
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        try:
            return await self._answer(request)
        except _Refusal as refusal:
            return self._page("message", refusal.status, message=refusal.reason)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        hosts = [host.lower() for host in request.headers.getall("Host", [])]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            raise _Refusal(421, f"This page is at {self._url} only.")
        path = request.path
        if path == "/clear" and request.method == "POST":
            return await self._clear(request, hosts[0])
        if request.method not in ("GET", "HEAD"):
            raise _Refusal(405, "The path is there to be read.")
        if path == "/":
            return await self._list(request)
        if file := self._files.get(path):
            return _make(*file)
        if found := _PATH.fullmatch(path):
            return await self._mail(*found.groups())
        raise _Refusal(404, "There is no such page.")

    async def _clear(self, request: web.BaseRequest, host: str) -> web.StreamResponse:
        """Delete the mails. Another origin can send this form too, but not under our name."""
        if request.headers.getall("Origin", []) != [f"http://{host}"]:
            raise _Refusal(403, "The form is of another origin.")
        await asyncio.to_thread(self._mails.clear)
        return _make(b"", _HTML, 303, {"Location": "/"})

    async def _list(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show a page of the list; its script asks again and again, and mostly gets 304."""
        number = request.query.get("page", "1")
        body = await asyncio.to_thread(
            self._listed, int(number) if _NUMBER.fullmatch(number) else 1
        )
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        same = request.headers.get("If-None-Match") == tag
        return _make(b"" if same else body, _HTML, 304 if same else 200, {"ETag": tag})

    def _listed(self, number: int) -> bytes:
        names = self._mails.names()
        last = max(1, -(-len(names) // PAGE))
        number = min(number, last)
        shown = self._mails.summaries(names[(number - 1) * PAGE : number * PAGE])
        return self._render("list", mails=shown, count=len(names), number=number, last=last)

    async def _mail(self, name: str, view: str | None, part: str | None) -> web.StreamResponse:
        path = await asyncio.to_thread(self._mails.path, name)
        if not path:
            raise _Refusal(404, "This mail is not here: it was deleted, or never came.")
        if view == "raw":
            headers = _download("mail.eml")
            return web.FileResponse(path, headers=headers)
        try:
            found = await self._dissector.dissect(path)
        except Undissectable:
            found = None
        if view == "frame":
            if not found or found.html is None:
                raise _Refusal(404, "This mail has no HTML.")
            return _make(found.html.encode("utf-8", "replace"), _HTML, 200,
                         {"Content-Security-Policy": _FRAME})  # fmt: skip
        if view == "part":
            return await self._attachment(path, found, int(part or -1))
        if part or view not in (None, *_TABS):
            raise _Refusal(404, "There is no such page.")
        return await self._show(name, path, found, view)

    async def _attachment(
        self, path: Path, found: Dissection | None, number: int
    ) -> web.StreamResponse:
        attachments = found.attachments if found else []
        name = next((each.name for each in attachments if each.number == number), None)
        if name is None:
            raise _Refusal(404, "This mail has no such attachment.")
        try:
            octets = await self._dissector.attachment(path, number)
        except Undissectable:
            raise _Refusal(422, "This mail can't be taken apart: look at its source.") from None
        return web.Response(body=octets, headers=_download(file_name(name, number)))

    async def _show(
        self, name: str, path: Path, found: Dissection | None, view: str | None
    ) -> web.StreamResponse:
        summaries = await asyncio.to_thread(self._mails.summaries, [name])
        if not summaries:
            raise _Refusal(404, "This mail was deleted.")
        tabs = _tabs(found)
        view = view if view in tabs else next(iter(tabs))
        try:
            source = await asyncio.to_thread(_source, path) if view == "source" else ""
        except FileNotFoundError:
            raise _Refusal(404, "This mail was deleted.") from None
        return self._page(
            "mail", mail=summaries[0], base=f"/m/{quote(name)}", tabs=tabs, view=view, found=found,
            source=source, limit=READ, shown=_SHOWN,
        )  # fmt: skip

    def _page(self, name: str, status: int = 200, **values: Any) -> web.Response:
        return _make(self._render(name, **values), _HTML, status)

    def _render(self, name: str, **values: Any) -> bytes:
        return self._templates[name].render(values).encode("utf-8", "replace")


def _tabs(found: Dissection | None) -> dict[str, str]:
    """Return the tabs of a mail with their labels, the first one being the usual view."""
    if not found:
        return {"source": "Source"}
    tabs = {
        "html": "HTML" if found.html is not None else "",
        "text": "Text" if found.text is not None else "",
        "links": f"Links ({len(found.links)})" if found.links else "",
        "attachments": f"Attachments ({len(found.attachments)})" if found.attachments else "",
        "header": "Header",
        "source": "Source",
    }
    return {name: label for name, label in tabs.items() if label}


def _source(path: Path) -> str:
    with path.open("rb") as file:
        return clean(decode_text(file.read(_SHOWN)))


def file_name(name: str, number: int) -> str:
    """Return a name for a download: the last part of the path that a mail gives, or a number."""
    last = one_line(re.split(r"[/\\]", name)[-1]).replace("\ufffd", "_").strip(". ")
    return last[-100:] or f"part-{number}"


def _download(name: str) -> dict[str, str]:
    """Return the header fields of a file that no browser opens by itself (RFC 6266)."""
    plain = _PLAIN.sub("_", name)
    named = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    return {
        **_COMMON,
        "Content-Type": "application/octet-stream",
        "Content-Disposition": named,
        "Content-Security-Policy": _FILE,
    }


def _make(
    body: bytes, kind: str, status: int = 200, more: dict[str, str] | None = None
) -> web.Response:
    fields = {**_COMMON, "Content-Security-Policy": _POLICY, "Content-Type": kind, **(more or {})}
    return web.Response(body=body, status=status, headers=fields)


def _octets(size: int) -> str:
    """Return a size for a reader."""
    for unit, step in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size} octets"
