"""The HTTPS server of MTA-STS policies (RFC 8461, section 3.3)."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter

from tests.internet.case import Plan
from tests.support.authority import Authority
from tests.support.loop_thread import LoopThread

ADDRESS = "127.80.0.1"
NOBODY = "127.80.0.2"
"""An address where no policy is served: the connection is refused."""

PATH = "/.well-known/mta-sts.txt"


class PolicyServer:
    """Serves the policy of each domain by name; `plans` may be changed at any time.

    A plan has: policy; status; type; certificate (good, wrong, expired); redirect; hang.
    """

    def __init__(self, authority: Authority, port: int) -> None:
        self.plans: dict[str, Plan] = {}
        self.fetched: Counter[str] = Counter()
        self._authority = authority
        self._thread = LoopThread()
        context = authority.issue(["policies.fake"]).context()
        context.sni_callback = self._choose
        self._server = self._thread.do(
            asyncio.start_server(self._connected, ADDRESS, port, ssl=context)
        )

    def _choose(self, sock: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        domain = (name or "").removeprefix("mta-sts.")
        kind = self.plans.get(domain, {}).get("certificate", "good")
        names = [f"policy.{domain}" if kind == "wrong" else f"mta-sts.{domain}"]
        sock.context = self._authority.issue(names, expired=kind == "expired").context()
        return None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            (host,) = [
                line.partition(":")[2].strip()
                for line in head.splitlines()
                if line.lower().startswith("host:")
            ]
            domain = host.partition(":")[0].removeprefix("mta-sts.")
            await self._answer(writer, domain, path)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, domain: str, path: str) -> None:
        plan = self.plans.get(domain)
        self.fetched[domain] += 1
        if plan and plan.get("hang"):
            await asyncio.Event().wait()
        status, headers, body = "404 Not Found", [], b"none here"
        if plan and path == "/moved.txt":
            status, body = "200 OK", str(plan["policy"]).encode()
        elif plan and path == PATH:
            status = str(plan.get("status", "200 OK"))
            body = str(plan["policy"]).encode().replace(b"\n", b"\r\n")
            body += b"#" * int(plan.get("padding", 0))
            if plan.get("redirect"):
                status, headers = "302 Found", ["Location: /moved.txt"]
        kind = plan.get("type", "text/plain") if plan else "text/plain"
        lines = [f"HTTP/1.1 {status}", *headers, f"Content-Type: {kind}"]
        lines += [f"Content-Length: {len(body)}", "Connection: close"]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    def stop(self) -> None:
        async def end() -> None:
            self._server.close()

        self._thread.do(end())
        self._thread.end()
