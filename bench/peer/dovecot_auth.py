"""Dovecot's protocol for AUTH, so that Postfix can ask for passwords without Dovecot.

It answers at once from memory, which favours Postfix. Command: SOCKET USER PASSWORD.
"""

import asyncio
import base64
import itertools
import os
import sys
from pathlib import Path

_numbers = itertools.count(1)


async def serve(path: Path, user: str, password: str) -> None:
    """Answer until the process is ended."""
    right = base64.b64encode(f"\0{user}\0{password}".encode()).decode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = f"MECH\tPLAIN\tplaintext\nSPID\t{os.getpid()}\nCUID\t{next(_numbers)}\n"
        writer.write(f"VERSION\t1\t1\n{hello}COOKIE\t{'0' * 32}\nDONE\n".encode())
        while line := (await reader.readline()).decode().rstrip("\n"):
            words = line.split("\t")
            if words[0] != "AUTH":
                continue
            good = f"resp={right}" in words
            writer.write(f"{'OK' if good else 'FAIL'}\t{words[1]}\tuser={user}\n".encode())
        writer.close()

    server = await asyncio.start_unix_server(answer, path)
    path.chmod(0o666)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), *sys.argv[2:4]))
