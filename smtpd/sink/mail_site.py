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

from pgmta.http.answers import HTML_TYPE, HttpAnswers, HttpError
from pgmta.http.route import HttpLimits, Route
from pgmta.http.site import HttpSite
from pgmta.mail.text import one_line
from smtpd.sink.dissection import MAX_MAIL_OCTETS, clean
from smtpd.sink.dissector import Dissection, Dissector, Undissectable
from smtpd.sink.header_text import decode_text
from smtpd.sink.kept_mails import KeptMails

MAILS_PER_PAGE = 100

_TEMPLATES = Path(__file__).parent / "templates"
_SHOWN_SOURCE_OCTETS = 1 << 20
_TABS = ("html", "text", "links", "attachments", "header", "source")
_MAX_CONNECTIONS = 32
_CONNECTION_TIMEOUT_S = 60.0  # for a request and its answer, which may be a large attachment
_OCTET_STREAM = "application/octet-stream"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SANDBOX = "allow-popups allow-popups-to-escape-sandbox"
"""The rights of the frame with HTML: its links may open new windows, on a click of the reader."""

_FRAME_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; "
    f"base-uri 'none'; frame-ancestors 'self'; sandbox {_SANDBOX}"
)
_FILE_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "same-origin",  # the browser then names the origin of a form, and no other
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",
}
_NUMBER = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9._ -]")


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
            loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, auto_reload=False,
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        environment.filters["octets"] = _octets
        environment.globals["sandbox"] = _SANDBOX
        self._templates = {
            name: environment.get_template(f"{name}.html") for name in ("list", "mail", "message")
        }
        self._files = {
            "/style.css": ((_TEMPLATES / "style.css").read_bytes(), "text/css; charset=utf-8"),
            "/list.js": ((_TEMPLATES / "list.js").read_bytes(), "text/javascript; charset=utf-8"),
        }
        self._answers = HttpAnswers(_HEADERS)
        routes = [
            Route("GET", "/", self._list, page=True),
            Route("GET", "/m/{name}", self._mail, page=True),
            Route("GET", "/m/{name}/{view:[a-z]+}", self._mail, page=True),
            Route("GET", r"/m/{name}/{view:[a-z]+}/{part:\d{1,4}}", self._mail, page=True),
            Route("POST", "/clear", self._clear, page=True),
            *(Route("GET", path, self._file, page=True) for path in self._files),
            Route("GET", "/{rest:.*}", self._missing, page=True),
        ]
        limits = HttpLimits(_MAX_CONNECTIONS, _CONNECTION_TIMEOUT_S)
        self.served = HttpSite(
            routes, limits, self._answers, error_page=self._error, check=self._check_host
        )
        """What the listener serves."""

    def _check_host(self, request: web.Request) -> None:
        hosts = [host.lower() for host in request.headers.getall("Host", [])]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            raise HttpError(421, f"This page is at {self._url} only.")

    def _error(self, _: web.Request, error: HttpError) -> web.Response:
        return self._page("message", error.status, message=error.detail)

    async def _missing(self, _: web.Request) -> web.Response:
        raise HttpError(404, "There is no such page.")

    async def _file(self, request: web.Request) -> web.Response:
        return self._answers.make(*self._files[request.path])

    async def _clear(self, request: web.Request) -> web.Response:
        """Delete the mails. Another origin can send this form too, but not under our name."""
        if request.headers.getall("Origin", []) != [f"http://{request.host.lower()}"]:
            raise HttpError(403, "The form is of another origin.")
        await asyncio.to_thread(self._mails.clear)
        return self._answers.redirect("/")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        """Show a page of the list; its script asks again and again, and mostly gets 304."""
        number = request.query.get("page", "1")
        body = await asyncio.to_thread(
            self._listed, int(number) if _NUMBER.fullmatch(number) else 1
        )
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        same = request.headers.get("If-None-Match") == tag
        return self._answers.make(
            b"" if same else body, HTML_TYPE, 304 if same else 200, {"ETag": tag}
        )

    def _listed(self, number: int) -> bytes:
        names = self._mails.names()
        last = max(1, -(-len(names) // MAILS_PER_PAGE))
        number = min(number, last)
        shown = self._mails.summaries(
            names[(number - 1) * MAILS_PER_PAGE : number * MAILS_PER_PAGE]
        )
        return self._render("list", mails=shown, count=len(names), number=number, last=last)

    async def _mail(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        view, part = request.match_info.get("view"), request.match_info.get("part")
        path = await asyncio.to_thread(self._mails.path, name)
        if not path:
            raise HttpError(404, "This mail is not here: it was deleted, or never came.")
        if view == "raw":
            fields = self._answers.fields(_OCTET_STREAM, _download("mail.eml"))
            return web.FileResponse(path, headers=fields)
        try:
            found = await self._dissector.dissect(path)
        except Undissectable:
            found = None
        if view == "frame":
            if not found or found.html is None:
                raise HttpError(404, "This mail has no HTML.")
            fields = {"Content-Security-Policy": _FRAME_POLICY}
            return self._answers.make(found.html.encode("utf-8", "replace"), HTML_TYPE, 200, fields)
        if view == "part":
            return await self._attachment(path, found, int(part or -1))
        if part or view not in (None, *_TABS):
            raise HttpError(404, "There is no such page.")
        return await self._show(name, path, found, view)

    async def _attachment(
        self, path: Path, found: Dissection | None, number: int
    ) -> web.StreamResponse:
        attachments = found.attachments if found else []
        name = next((each.name for each in attachments if each.number == number), None)
        if name is None:
            raise HttpError(404, "This mail has no such attachment.")
        try:
            octets = await self._dissector.attachment(path, number)
        except Undissectable:
            raise HttpError(422, "This mail can't be taken apart: look at its source.") from None
        return self._answers.make(octets, _OCTET_STREAM, 200, _download(file_name(name, number)))

    async def _show(
        self, name: str, path: Path, found: Dissection | None, view: str | None
    ) -> web.StreamResponse:
        summaries = await asyncio.to_thread(self._mails.summaries, [name])
        if not summaries:
            raise HttpError(404, "This mail was deleted.")
        tabs = _tabs(found)
        view = view if view in tabs else next(iter(tabs))
        try:
            source = await asyncio.to_thread(_source, path) if view == "source" else ""
        except FileNotFoundError:
            raise HttpError(404, "This mail was deleted.") from None
        return self._page(
            "mail", mail=summaries[0], base=f"/m/{quote(name)}", tabs=tabs, view=view, found=found,
            source=source, limit=MAX_MAIL_OCTETS, shown=_SHOWN_SOURCE_OCTETS,
        )  # fmt: skip

    def _page(self, name: str, status: int = 200, **values: Any) -> web.Response:
        return self._answers.make(self._render(name, **values), HTML_TYPE, status)

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
        return clean(decode_text(file.read(_SHOWN_SOURCE_OCTETS)))


def file_name(name: str, number: int) -> str:
    """Return a name for a download: the last part of the path that a mail gives, or a number."""
    last = one_line(re.split(r"[/\\]", name)[-1]).replace("\ufffd", "_").strip(". ")
    return last[-100:] or f"part-{number}"


def _download(name: str) -> dict[str, str]:
    """Return the header fields of a file that no browser opens by itself (RFC 6266)."""
    plain = _UNSAFE_IN_NAME.sub("_", name)
    named = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    return {"Content-Disposition": named, "Content-Security-Policy": _FILE_POLICY}


def _octets(size: int) -> str:
    """Return a size for a reader."""
    for unit, step in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size} octets"
