"""A program that sends mail by the HTTP API, or by pgmta.Client, as a process.

Its command is go. It sends some mail first, so that its connections are there.
"""

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

import uvloop

from bench.corpus import make_body
from bench.helper import listen, run, say
from pgmta import Client, Mail

BATCH_MAILS = 500
UPLOAD_OCTETS = 20_000_000
"""Of each file that is uploaded."""
_PIECE = bytes(range(256)) * 256
WARM_UP_MAILS = 200
"""So many mails are sent before the measurement by POST, and a batch by each connection else."""


def body_of(size: int) -> str:
    """Return the text of a mail."""
    return make_body(1, size).decode()


def mail_of(number: int, text: str) -> dict[str, Any]:
    """Return a mail as JSON of the API."""
    return {
        "from": "Shop <shop@example.org>", "to": [f"r{number}@d{number % 50}.example"],
        "subject": f"Order {number}", "body": text,
    }  # fmt: skip


class Connection(asyncio.Protocol):
    """A kept connection: one request after the other, until there are none."""

    def __init__(self, requests: deque[bytes], answers: list[tuple[int, bytes]]) -> None:
        self._requests, self._answers = requests, answers
        self._buffer = bytearray()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, unless all is done."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))

    def _next(self) -> None:
        if self._requests:
            self._transport.write(self._requests.popleft())
        else:
            self.done.set_result(None)
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Read an answer; its header has its length."""
        self._buffer += data
        head, mark, rest = self._buffer.partition(b"\r\n\r\n")
        if not mark:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(rest) >= length:
            self._answers.append((int(head[9:12]), bytes(rest)))
            self._buffer.clear()
            self._next()


class Sender:
    """The requests of a measurement, and what came of them."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._text = body_of(config["size"])
        self.ids: set[str] = set()
        self.failures: list[str] = []

    def _request(self, path: str, value: Any, key: int) -> bytes:
        body = json.dumps(value).encode()
        more = f"Idempotency-Key: {key}" if self._config["keys"] else ""
        return self._head(path, "application/json", len(body), more) + body

    def _head(self, path: str, kind: str, length: int, more: str = "") -> bytes:
        lines = [
            f"POST /v1/messages{path} HTTP/1.1", "Host: bench", f"Content-Type: {kind}",
            f"Authorization: Bearer {self._config['token']}", f"Content-Length: {length}",
            *([more] if more else []),
        ]  # fmt: skip
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    async def _send(self, requests: list[bytes], connections: int) -> float:
        answers: list[tuple[int, bytes]] = []
        waiting, loop = deque(requests), asyncio.get_running_loop()
        began = time.perf_counter()
        made = await asyncio.gather(*(
            loop.create_connection(
                lambda: Connection(waiting, answers), "127.0.0.1", self._config["port"]
            )
            for _ in range(connections)
        ))  # fmt: skip
        await asyncio.gather(*(protocol.done for _, protocol in made))
        seconds = time.perf_counter() - began
        for status, body in answers:
            self._note(status, body)
        return seconds

    def _note(self, status: int, body: bytes) -> None:
        found = json.loads(body)
        if status != 202:
            raise RuntimeError(f"{status} {body[:300]!r}")
        self.ids.update(each["id"] for each in found.get("data", [found]))

    async def posts(self, first: int, number: int) -> float:
        """Send mails, each by a request; return the seconds."""
        requests = [
            self._request("", mail_of(n, self._text), n) for n in range(first, first + number)
        ]
        return await self._send(requests, self._config["connections"])

    async def batches(self, first: int, number: int) -> float:
        """Send mails in batches over four connections; return the seconds."""
        mails = [mail_of(n, self._text) for n in range(first, first + number)]
        requests = [
            self._request("/batch", {"messages": mails[n : n + BATCH_MAILS]}, first + n)
            for n in range(0, number, BATCH_MAILS)
        ]
        return await self._send(requests, min(4, len(requests)))

    async def client(self, first: int, number: int) -> float:
        """Send mails by send_many(); return the seconds."""
        async with Client(self._config["uri"]) as client:
            await client.send_many([self._mail(0)])  # its connections are there then
            self.ids.clear()
            mails = [self._mail(n) for n in range(first, first + number)]
            began = time.perf_counter()
            results = await client.send_many(mails)
            seconds = time.perf_counter() - began
        self.ids.update(str(each.id) for each in results if each.id)
        return seconds

    async def uploads(self, first: int, number: int) -> float:
        """Send mails with a file each by multipart/form-data, all at once; return the seconds."""
        began = time.perf_counter()
        sent = [*map(self._upload, range(first, first + number))]
        found = await asyncio.gather(*sent, return_exceptions=True)
        self.failures += [repr(each) for each in found if each]
        return time.perf_counter() - began

    async def _upload(self, number: int) -> None:
        part = "--b\r\nContent-Disposition: form-data; name="
        before = (
            f'{part}"message"\r\n\r\n{json.dumps(mail_of(number, "x"))}\r\n'
            f'{part}"f"; filename="a.bin"\r\n\r\n'
        ).encode()
        length = len(before) + UPLOAD_OCTETS + len(b"\r\n--b--\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", self._config["port"])

        async def send() -> None:
            writer.write(self._head("", "multipart/form-data; boundary=b", length) + before)
            for start in range(0, UPLOAD_OCTETS, len(_PIECE)):
                writer.write(_PIECE[: UPLOAD_OCTETS - start])
                await writer.drain()
            writer.write(b"\r\n--b--\r\n")

        sending = asyncio.create_task(send())  # an answer may come before the end of the body
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self._note(int(head[9:12]), await reader.readexactly(length))
        sending.cancel()
        writer.close()

    def _mail(self, number: int) -> Mail:
        given = mail_of(number, self._text)
        return Mail(sender="shop@example.org", from_=given.pop("from"), **given)


async def produce(config: dict[str, Any]) -> None:
    """Do the work of the configuration and say the result."""
    going = asyncio.Event()
    listen(asyncio.get_running_loop(), lambda word: going.set())
    sender = Sender(config)
    works: dict[str, Callable[[int, int], Awaitable[float]]] = {
        "posts": sender.posts, "batches": sender.batches, "client": sender.client,
        "uploads": sender.uploads,
    }  # fmt: skip
    work = works[config["work"]]
    if config["work"] != "uploads":
        await work(config["first"], WARM_UP_MAILS)
    sender.ids.clear()
    say(**{"is": "ready"})
    await going.wait()
    seconds = await work(config["first"] + WARM_UP_MAILS, config["mails"])
    say(**{"is": "result"}, seconds=seconds, ids=len(sender.ids), failures=sender.failures)
    await asyncio.Event().wait()  # cancelled when standard input ends


def main() -> None:
    """Serve until standard input ends; argument: JSON with work, mails, size, port and more."""
    run(uvloop.new_event_loop(), produce(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
