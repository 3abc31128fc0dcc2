"""`queuectl up`: a first try with database, smtpd, queued, a certificate and a user."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import click

from pgmta.command import EXIT_FAILURE, print_line, print_text, reporting
from pgmta.config.loader import load
from pgmta.errors import PgmtaError
from pgmta.features import loaded
from pgmta.port_user import bind_problem
from pgmta.postgres.embedded.embedded_server import EmbeddedServer
from pgmta.postgres.embedded.folders import hold, locked, make_parents, open_own
from pgmta.postgres.locate import DIRECTORY_VARIABLE, URI_VARIABLE, configured, resolve
from pgmta.postgres.operator import connected
from pgmta.service import Signals, first
from pgmta.shipped import shipped
from pgmta.store.admin.migrate import migrate
from pgmta.store.admin.user_accounts import Rights, Secret, UserAccounts
from queued.cli.commands.token import make_keys
from queued.cli.options.first_step import FirstStep
from queued.config import QueuedConfig, whole_model

DEMO_USER = "me@example.org"
"""The login name; it may send from this address only."""
_NAMES = ("localhost", "pgmta.localhost")
_ADDRESSES = ("127.0.0.1", "::1")
_CERTIFICATE_DAYS = 365
_MIN_VALIDITY = timedelta(days=30)  # a certificate that ends sooner is replaced


def make_certificate(directory: Path) -> Path:
    """Return the file of a certificate with its key, for this machine only.

    It is made if it is missing or about to expire. Clients that know the file accept it.
    """
    path = directory / "tls" / "localhost.pem"
    if not _lasts(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, _made())
    return path


def _password(directory: Path) -> Path:
    """Return the file of the password of DEMO_USER."""
    return directory / "password"


async def make_user(directory: Path, uri: str) -> Path:
    """Return the file of the password of DEMO_USER, which is made if it is missing."""
    path = _password(directory)
    if not path.exists():
        _write(path, secrets.token_urlsafe(12).encode())
    secret = Secret.of_password(path.read_text(encoding="ascii"))
    async with connected(uri) as db:
        accounts = UserAccounts(db, "queuectl up")
        await accounts.add_user(DEMO_USER, secret, Rights(senders=[DEMO_USER]))
    return path


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    new.rename(path)


def _lasts(path: Path) -> bool:
    from cryptography import x509

    try:
        until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return False
    return until - _MIN_VALIDITY > datetime.now(UTC)


def _made() -> bytes:
    """Return a certificate and its key in PEM (RFC 5280)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAMES[0])])
    now = datetime.now(UTC)
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in _ADDRESSES]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_CERTIFICATE_DAYS))
        .add_extension(
            x509.SubjectAlternativeName([*map(x509.DNSName, _NAMES), *addresses]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + private


_SMTPD_CONFIG = Path("etc/dev/smtpd.yaml")
_QUEUED_CONFIG = Path("etc/dev/queued.yaml")
_SUBMISSION_PORT = 2587  # as etc/dev/smtpd.yaml has it
_WEB_CONFIG = "etc/dev/{}.yaml"  # of each `queued web`
_DATABASE = "database"
_GRACE_S = 45.0  # for the daemons to drain
_SHOWN_LINES = 5  # of the log of a daemon that ended
_READY_TIMEOUT_S = 300.0  # for smtpd to greet, on a slow machine
_PROGRESS_INTERVAL_S = 10.0  # for lines that smtpd does not greet yet


@click.command()
@click.option(
    "--smtpd",
    "smtpd_config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=_SMTPD_CONFIG,
    show_default=True,
    help="Configuration of smtpd.",
)
@click.option(
    "--queued",
    "queued_config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=_QUEUED_CONFIG,
    show_default=True,
    help="Configuration of queued.",
)
@click.option("--port", default=2525, show_default=True, help="Port of smtpd, for the hint.")
@click.option("--sink-port", default=2526, show_default=True, help="Port of the development sink.")
@click.option(
    "--page-port", default=2580, show_default=True, help="Port of the sink's page, by HTTP."
)
@reporting
def up(smtpd_config: Path, queued_config: Path, port: int, sink_port: int, page_port: int) -> None:
    """Run the database, smtpd, one queued and a development sink until Ctrl-C.

    With the default configurations smtpd also has TLS, and a submission port for one user; one
    `queued web` takes the links in mail, and another one has the HTTP API. The daemons log to files
    of their own, so that the terminal shows the mail that the sink gets.
    """
    first, usual = smtpd_config == _SMTPD_CONFIG, queued_config == _QUEUED_CONFIG
    steps: list[FirstStep] = list(loaded("first_steps")) if usual else []
    shown = [step for step in steps if first and step.process]
    served = {step.process: step.port for step in shown}
    web = {name: Path(_WEB_CONFIG.format(name)) for name in served}
    _ship({_SMTPD_CONFIG, _QUEUED_CONFIG}.intersection((smtpd_config, queued_config)), web.values())
    if usual:  # the file names them
        keys = chain.from_iterable(step.keys for step in steps)
        make_keys(queued_config.parent.parent.parent / "var", *keys)
    config = load(queued_config, whole_model())
    environment = config.environment
    directory = environment.directory.resolve()
    with _only_one(directory, f", smtpd on port {port}, sink on port {sink_port}") as held:
        optional = [*([_SUBMISSION_PORT] if first else []), *served.values()]
        _check_ports(port, sink_port, page_port, *optional)
        named = configured(environment)
        if not named and not EmbeddedServer(directory).data.exists():
            print_line("making a database, which takes a few seconds", err=True)
        uri = resolve(environment)

        async def prepare() -> None:
            await asyncio.to_thread(migrate, uri)
            if first:
                await make_user(directory, uri)
            for step in steps:
                await step.prepare(uri, directory)

        sink = directory / "sink"
        submission = _first_try(directory) if first else []
        keeps = ["--maildir", str(sink), "--page-port", str(page_port)]
        children = Children(
            {
                **({} if named else {_DATABASE: ["pgmta.postgres.embedded", str(directory)]}),
                "sink": ["smtpd", "sink", "--port", str(sink_port), *keeps],
                "queued": ["queued", "run", "-c", str(queued_config)],
                "smtpd": ["smtpd", "run", "-c", str(smtpd_config)],
                **{name: ["queued", "web", "-c", str(path)] for name, path in web.items()},
            },
            {URI_VARIABLE: named} if named else {DIRECTORY_VARIABLE: str(directory)},
            held,
            directory / "log",
        )
        lines = [
            ("smtpd", f"127.0.0.1:{port}, takes mail from this machine"),
            *(("smtpd", line) for line in submission[:1]),
            ("queued", _way(config, queued_config, sink_port)),
            ("sink", f"http://127.0.0.1:{page_port} shows the mail, which is in {sink}/new"),
            *((step.process, f"http://127.0.0.1:{step.port} {step.served}")
              for step in shown),
            ("logs", str(children.logs / "*.log")),
        ]  # fmt: skip
        hints = {
            "send a first mail from another terminal, then look at the sink's page": _hint(port)
        }
        if first:
            hints["or, over TLS with a login"] = submission[1]
            hints |= filter(None, (step.hint(directory) for step in steps))
        status = asyncio.run(_run(children, prepare, port, lines, hints))
    sys.exit(status)


def _way(config: QueuedConfig, path: Path, sink_port: int) -> str:
    """Return where queued delivers to; shaping.yaml may send mail to the world."""
    if config.shaping:
        return f"delivers by the routes of {config.shaping} and {path}"
    return f"delivers everything to 127.0.0.1:{sink_port}"


def _ship(*configs: Iterable[Path]) -> None:
    """Copy default files that do not exist from those that are shipped with pgmta.

    So other commands can name them, and their paths begin here.
    """
    for config in chain(*configs):
        if not config.exists():
            make_parents(config.parent)
            shutil.copyfile(shipped("etc") / "dev" / config.name, config)


def _check_ports(*ports: int) -> None:
    """Raise PgmtaError if another program listens on one of the ports."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                reason = bind_problem(error, port)
                raise PgmtaError(f"can't use port {port}: {reason}") from None


@contextmanager
def _only_one(directory: Path, ports: str) -> Iterator[int]:
    """Keep other `queuectl up` away from the folder; gives a descriptor for the children to hold.

    The file of the lock has the pid and the `ports`, for the error of another one. Where an earlier
    one was killed, wait until its children have ended. Raises PgmtaError.
    """
    make_parents(directory)
    own = hold(directory / "up.lock", "queuectl up", ports)
    held = open_own(directory / "up.children")
    try:
        end, told = time.monotonic() + _GRACE_S, False
        while not locked(held):
            if time.monotonic() > end:
                raise PgmtaError(f"processes of an earlier `queuectl up` on {directory} do not end")
            if not told:
                print_line("waiting for the end of what an earlier `queuectl up` has left")
            told = True
            time.sleep(0.1)
        yield held
    finally:
        os.close(own)
        os.close(held)


@dataclass
class Children:
    """The children of `up`: commands by name, additions to their environment, their lock, logs."""

    commands: dict[str, list[str]]
    environment: dict[str, str]
    lock: int
    logs: Path
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, name: str) -> asyncio.subprocess.Process:
        """Start one; it ends with us, because it sees the end of its standard input."""
        self.logs.mkdir(mode=0o700, exist_ok=True)
        with self.log(name).open("wb") as log:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", *self.commands[name], "--attached",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if name == _DATABASE else None,
                stderr=log,
                env={**os.environ, **self.environment},
                pass_fds=[self.lock],
                # Ctrl-C stops this process, which stops its children in order
                start_new_session=True,
            )  # fmt: skip
        self.running[name] = child
        return child

    def log(self, name: str) -> Path:
        """Return the file of a child's log, which begins anew with each start."""
        return self.logs / f"{name}.log"

    def last_words(self, name: str) -> str:
        """Return the end of a child's log."""
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        return "".join(f"\n  {line}" for line in lines[-_SHOWN_LINES:])


async def _run(
    children: Children,
    prepare: Callable[[], Awaitable[None]],
    port: int,
    lines: list[tuple[str, str]],
    hints: dict[str, str],
) -> int:
    """Run the children until a signal, or the end of one; `prepare` the database before most."""
    signals = Signals()
    ended = asyncio.Event()
    waits: list[asyncio.Task[None]] = []

    async def wait(name: str, child: asyncio.subprocess.Process) -> None:
        status = await child.wait()
        if not signals.stop.is_set():
            print_text(f"{name} ended with status {status}:{children.last_words(name)}", err=True)
        ended.set()

    async def begin(name: str) -> asyncio.subprocess.Process:
        child = await children.start(name)
        waits.append(asyncio.create_task(wait(name, child)))
        return child

    try:
        names, place = list(children.commands), "PostgreSQL as configured"
        if _DATABASE in names:
            names.remove(_DATABASE)
            stdout = (await begin(_DATABASE)).stdout
            if stdout:
                place = await _line_of(stdout, signals.stop)
        if place and not signals.stop.is_set():  # without a line the database has ended
            await prepare()
            for name in names:
                await begin(name)
            lines = [(_DATABASE, place), *lines]
            if await _greets(port, ended, signals.stop):
                _welcome(lines, hints)
        # SIGHUP means that the terminal was closed
        await first(signals.stop, signals.reload, ended)
        if signals.reload.is_set():
            signals.stop.set()
        return 0 if signals.stop.is_set() else EXIT_FAILURE
    finally:
        signals.stop.set()
        # the sink takes what queued still sends, and the database is the last
        last = ["queued", "sink", _DATABASE]
        for name in [*(each for each in children.running if each not in last), *last]:
            await _stop(children.running.get(name))
        if waits:
            await asyncio.wait(waits)


def _welcome(lines: list[tuple[str, str]], hints: dict[str, str]) -> None:
    for name, text in lines:
        print_line(f"{name:9} {text}")
    for words, hint in hints.items():
        print_text(f"\n{words}:\n\n  {hint}")
    print_text("")
    print_line("Ctrl-C stops all of it; the data stay.")


def _first_try(directory: Path) -> list[str]:
    """Make the certificate of the default configuration; return what to say about it."""
    certificate, password = make_certificate(directory), _password(directory)
    authority, secret = shlex.quote(str(certificate)), shlex.quote(str(password))
    options = f'--ssl-reqd --cacert {authority} --user "{DEMO_USER}:$(cat {secret})" '
    return [
        f"127.0.0.1:{_SUBMISSION_PORT}, takes mail of {DEMO_USER} over TLS",
        _hint(_SUBMISSION_PORT, "localhost", options),
    ]


def _hint(port: int, host: str = "127.0.0.1", options: str = "") -> str:
    return (
        f"printf 'From: {DEMO_USER}\\nSubject: first mail\\n\\nIt works.\\n' | "
        f"curl -sS --crlf {options}"
        f"smtp://{host}:{port} --mail-from me@example.org --mail-rcpt you@example.com -T -"
    )


async def _line_of(output: asyncio.StreamReader, stop: asyncio.Event) -> str:
    """Return the next line of a process; '' if it ends or a signal comes first."""
    reading = asyncio.create_task(output.readline())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not reading.done():
        reading.cancel()
        return ""
    return reading.result().decode().strip()


async def _greets(port: int, ended: asyncio.Event, stop: asyncio.Event) -> bool:
    """Wait while the children live, and say so now and then: a slow machine takes long."""
    done, began = asyncio.Event(), time.monotonic()
    greets = asyncio.create_task(_greeting(port))
    greets.add_done_callback(lambda _: done.set())
    try:
        while not await first(done, ended, stop, timeout=_PROGRESS_INTERVAL_S):
            waited = time.monotonic() - began
            if waited > _READY_TIMEOUT_S:
                raise PgmtaError(f"smtpd does not greet on port {port} after {waited:.0f} s")
            print_line(f"smtpd starts, and has not greeted on port {port} yet ({waited:.0f} s)")
        return greets.done() and greets.result().startswith(b"220")
    finally:
        greets.cancel()


async def _greeting(port: int) -> bytes:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            greeting = await reader.readline()
            writer.close()
            return greeting
        except OSError:
            await asyncio.sleep(0.05)


async def _stop(child: asyncio.subprocess.Process | None) -> None:
    if child is None or child.returncode is not None:
        return
    child.terminate()
    try:
        async with asyncio.timeout(_GRACE_S):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
