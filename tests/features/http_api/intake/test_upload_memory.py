"""200 large uploads at once: the process has none of them in memory.

Option --api-upload-megabytes (CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import socket
from base64 import b64decode
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from random import Random

import psutil
import psycopg
import pytest

from tests.features.http_api.intake.test_sending import MAIL, multipart
from tests.features.http_api.served import make_key, serving_api
from tests.support.rows import column
from tests.support.waiting import until

UPLOADS = 200
MAX_MB = 150
_PIECE = 64 << 10


class Upload:
    """A request whose file is sent piece by piece."""

    def __init__(self, port: int, token: str, number: int, octets: int) -> None:
        body, fields = multipart(
            ('name="message"', "application/json", json.dumps(MAIL).encode()),
            ('name="f"; filename="a.bin"', "application/octet-stream", b"%"),
        )
        before, _, after = body.partition(b"%")
        self._octets, self._after = octets, after
        self._sent = 0
        self._piece = Random(number).randbytes(_PIECE)
        self.digest = sha256()
        self._socket = socket.create_connection(("127.0.0.1", port), 600)
        head = {
            "Host": "api", "Authorization": f"Bearer {token}", "Connection": "close",
            "Content-Length": str(len(before) + octets + len(after)), **fields,
        }  # fmt: skip
        lines = ["POST /v1/messages HTTP/1.1", *(f"{name}: {head[name]}" for name in head)]
        self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + before)

    def send(self, upto: int) -> None:
        """Send the file up to here."""
        while self._sent < upto:
            piece = self._piece[: upto - self._sent]
            self._socket.sendall(piece)
            self.digest.update(piece)
            self._sent += len(piece)

    def finish(self) -> int:
        """Send the rest; return the status of the answer."""
        self.send(self._octets)
        self._socket.sendall(self._after)
        answer = b""
        while octets := self._socket.recv(4096):
            answer += octets
        self._socket.close()
        return int(answer[9:12])


def _file_of(db: psycopg.Connection, message: int) -> str:
    """Return the digest of the file that a mail has."""
    chunks = db.execute(
        "SELECT data FROM message_chunks WHERE message_id = %s ORDER BY position", [message]
    )
    tail = b"".join(data for (data,) in chunks)
    octets = tail.partition(b"\r\n\r\n")[2].rpartition(b"\r\n--")[0]
    return sha256(b64decode(octets)).hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_uploads_are_not_in_memory(
    as_api: str, tmp_path: Path, db: psycopg.Connection, request: pytest.FixtureRequest
) -> None:
    octets = 1_000_000 * int(request.config.getoption("--api-upload-megabytes"))
    token = make_key(db, "shop")
    with serving_api(
        tmp_path, as_api, limits={"address_connections": 2 * UPLOADS, "request": "60s"}
    ) as api:
        process, largest = psutil.Process(api.pid), 0

        def wait(tasks: list[Future[int | None]]) -> None:
            def over() -> bool:
                nonlocal largest
                largest = max(largest, process.memory_info().rss)
                return all(each.done() for each in tasks)

            until(over, 600)

        with ThreadPoolExecutor(UPLOADS) as pool:
            uploads = [*pool.map(lambda n: Upload(api.port, token, n, octets), range(UPLOADS))]
            for share in (1, 2, 3):
                # all of them are under way at the same time
                wait([pool.submit(each.send, octets * share // 4) for each in uploads])
            finished: list[Future[int | None]] = [pool.submit(each.finish) for each in uploads]
            wait(finished)
        assert {each.result() for each in finished} == {202}
    print(f"{largest / 1e6:.0f} MB")
    assert largest < MAX_MB << 20
    stored = [_file_of(db, message) for message in column(db, "SELECT id FROM messages")]
    assert sorted(stored) == sorted(each.digest.hexdigest() for each in uploads)
    assert column(db, "SELECT count(*) FROM api_uploads") == [0]
