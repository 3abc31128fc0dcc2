"""A name server on port 53 with TXT records, for verifiers that ask only such: needs root.

`python -m tests.support.key_server ADDRESS < RECORDS`; a line is a name, a blank, and the text.
"""

from __future__ import annotations

import socketserver
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

_STRING = 255
_MOUNT = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'


def _serve(address: str, records: dict[str, str]) -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            query = dns.message.from_wire(self.request[0])
            response = dns.message.make_response(query)
            name = query.question[0].name.to_text(omit_final_dot=True).lower()
            if text := records.get(name):
                parts = (text[at : at + _STRING] for at in range(0, len(text), _STRING))
                strings = " ".join(f'"{part}"' for part in parts)
                owner = query.question[0].name
                response.answer.append(dns.rrset.from_text(owner, 60, "IN", "TXT", strings))
            else:
                response.set_rcode(dns.rcode.NXDOMAIN)
            response.flags |= dns.flags.RA
            self.request[1].sendto(response.to_wire(), self.client_address)

    with socketserver.UDPServer((address, 53), Handler) as server:
        print("ready", flush=True)
        server.serve_forever()


@contextmanager
def serving_keys(folder: Path, address: str, records: Mapping[str, str]) -> Iterator[list[str]]:
    """Serve the records; yields the begin of a command whose program asks this server."""
    text = "".join(f"{name} {record}\n" for name, record in records.items())
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.key_server", address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    process.stdin.write(text)
    process.stdin.close()
    try:
        assert process.stdout.readline() == "ready\n"
        file = folder / "resolv.conf"
        file.write_text(f"nameserver {address}\n")
        yield ["unshare", "-m", "sh", "-c", _MOUNT, "sh", str(file)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    _serve(sys.argv[1], dict(line.rstrip("\n").split(" ", 1) for line in sys.stdin))
