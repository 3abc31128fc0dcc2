"""The command bench/web: tokens verified and consumed per second, also beside bad clients."""

import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import psutil
import psycopg
import uvloop
import yaml
from psycopg.conninfo import make_conninfo

from bench.columns import aligned, number
from bench.database import fresh
from bench.options import EXIT, HELP, commands_of, dump, failing, finish, opened, relay_options
from bench.progress import log
from bench.web_clients import Load, Slow, request
from pgmta.compose.token import KeyRing, Purpose, TokenKey
from pgmta.store.lifecycle.installation import install

ABOUT = f"""Measure `queued web`: verified and consumed tokens, memory, and what bad clients change.

50 kept connections verify activations, then consume them. One address sends wrong codes.
500 clients of five other addresses send headers one octet a second. {EXIT}a figure missed its
aim."""

KEYS = {purpose: secrets.token_bytes(32) for purpose in Purpose}
KEPT, SLOW, WRONG = 50, 500, 100
SLOW_SOURCES = [f"127.0.0.{10 + number}" for number in range(5)]
AIMS = {"verified/s": 1500.0, "PSS, MB": 60.0, "beside slow clients": 0.8}

_ACCOUNTS = """
INSERT INTO lifecycle.accounts (email, login)
SELECT 'u' || n || '@b.example', 'u' || n FROM generate_series(1, %s) AS n
"""


def order(path: str, purpose: Purpose, secret: bytes, code: str = "", sent: str = "") -> bytes:
    """Return a request with a token that was signed with a code, and the code that is sent."""
    ring = KeyRing(purpose, [TokenKey("k", KEYS[purpose])])
    token = {"purpose": purpose, "token": ring.sign(secret, code)}
    return request(path, json.dumps(token | ({"code": sent} if sent else {})).encode())


@contextmanager
def server(commands: Path, folder: Path, uri: str) -> Iterator[tuple[int, int]]:
    """Run `queued web`; give its port and its pid."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    tokens = {}
    for purpose, key in KEYS.items():
        file = folder / f"{purpose}.key"
        file.touch(0o600)
        file.write_text(key.hex())
        tokens[str(purpose)] = [{"id": "k", "file": str(file)}]
    path = folder / "web.yaml"
    path.write_text(yaml.safe_dump({
        "environment": {"database": {"uri": make_conninfo(uri, options="-c role=pgmta_web")}},
        "listen": [{"port": port}], "tokens": tokens, "log": {"format": "json"},
        "public": {"recovered": "http://localhost/password"},
    }))  # fmt: skip
    command = [str(commands / "queued"), "web", "-c", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr
            ready = any(b'"ready"' in line for line in process.stderr)
            if not ready:
                raise OSError("queued web does not start")
            sink = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
            yield port, process.pid
            process.terminate()
            process.wait(20)
            sink.wait(20)
        finally:
            process.kill()


async def measure(port: int, pid: int, uri: str, seconds: float, most: int) -> dict[str, float]:
    """Return all figures."""
    one = order("/v1/tokens/verify", Purpose.ACTIVATE, secrets.token_bytes(32))
    found: dict[str, float] = {}

    async def verify() -> float:
        load = Load(itertools.repeat(one))
        rate = await load.run(port, KEPT, seconds)
        found["wrong answers"] = found.get("wrong answers", 0) + sum(
            n for status, n in load.statuses.items() if status != 200
        )
        return rate

    log("verify")
    await verify()  # warm
    found["verified/s"] = before = await verify()
    found["PSS, MB"] = psutil.Process(pid).memory_full_info().pss / 1e6
    log("consume")
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute(_ACCOUNTS, [most])
        secret = db.execute("SELECT secret FROM lifecycle.tokens").fetchall()
    path = "/v1/tokens/consume"
    load = Load(iter([order(path, Purpose.ACTIVATE, bytes(each)) for (each,) in secret]))
    found["consumed/s"] = await load.run(port, KEPT, 10 * seconds)
    found["wrong answers"] += most - load.statuses[200]
    log("wrong codes")
    bad = [
        order(path, Purpose.RECOVER, secrets.token_bytes(32), "12345", "54321")
        for _ in range(WRONG)
    ]
    load = Load(iter(bad))
    await load.run(port, 5, seconds, "127.0.0.2")
    found["refused, 422"], found["refused, 429"] = load.statuses[422], load.statuses[429]
    found["beside wrong codes"] = await verify() / before
    log("slow clients")
    slow = Slow(port, SLOW_SOURCES, SLOW // len(SLOW_SOURCES))
    await slow.start()
    beside = await verify()
    found["slow clients"] = slow.open
    await slow.stop()
    found["beside slow clients"] = beside / ((before + await verify()) / 2)
    found["PSS at the end, MB"] = psutil.Process(pid).memory_full_info().pss / 1e6
    return found


@relay_options("uri", "keep", "commands")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--seconds", default=5.0, help="Of each measure.")
@click.option("--tokens", default=5000, type=click.IntRange(1), help="Tokens consumed.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    uri: str | None, keep: bool, commands: Path | None, seconds: float, tokens: int, json_: bool
) -> None:
    """Measure, print, compare."""
    with failing():
        folder, place, about = opened(uri, keep, f"{len(os.sched_getaffinity(0))} cores; ")
        with fresh(place, keep) as database:
            programs = commands_of(commands)
            config = folder / "queued.yaml"
            config.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
            migrate = [str(programs / "queuectl"), "migrate", "-c", str(config)]
            subprocess.run(migrate, check=True, stdout=sys.stderr)
            install(database)
            with server(programs, folder, database) as (port, pid):
                found = uvloop.run(measure(port, pid, database, seconds, tokens))
    if json_:
        click.echo(dump({"about": about, **found}))
    else:
        rows = [["", "measured"], *([name, number(value)] for name, value in found.items())]
        click.echo(f"{about}\n\n{aligned(rows)}\n")
    misses = [
        f"{name}: {number(found[name])}, the aim is {number(aim)}"
        for name, aim in AIMS.items()
        if (found[name] > aim if "PSS" in name else found[name] < aim)
    ]
    if not found["refused, 429"]:
        misses.append("no wrong code got 429")
    wrong = found["wrong answers"]
    finish([f"{number(wrong)} wrong answers"] if wrong else [], misses)


if __name__ == "__main__":
    main()
