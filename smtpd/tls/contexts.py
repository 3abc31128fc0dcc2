"""The TLS of the listeners: certificates by name, read again when their files change."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

from pgmta.config.loader import mistakes
from pgmta.config.yaml_file import Key
from pgmta.logs import get
from smtpd.config import Certificate, ClientCertificates, Listener, SmtpdConfig
from smtpd.tls.certificate import CertificateProblem, Identity

_TICKETS_PER_SESSION = 1  # a second one would serve a client that opens two sessions at once
_FILES_LOOK_INTERVAL_S = 10.0
_DAY_S = 86400.0
log = get("smtpd")


class Contexts:
    """Chooses the certificate of a TLS session by the name that the client asks for (RFC 6066).

    The first certificate is the default. Certificates of one name with keys of different kinds are
    offered together. `load` comes first.
    """

    def __init__(self, entries: Sequence[Certificate], clients: ClientCertificates) -> None:
        self._entries = entries
        self.clients = clients
        """Clients that are known by their certificate."""
        self._marks: object = None  # sizes and times of the files when they were read
        self._names: dict[str, ssl.SSLContext] = {}
        self.identities: list[Identity] = []
        """As last read, in the order of the configuration."""
        self.context: ssl.SSLContext
        """For the next session; it changes itself to that of the name."""

    @property
    def files(self) -> list[Path]:
        """All files that are read."""
        found = [path for entry in self._entries for path in (entry.certificate, entry.key) if path]
        return [*found, self.clients.authorities] if self.clients.authorities else found

    def changed(self) -> bool:
        """Return whether a file has changed since `load` last read it, or tried to."""
        return self._marks != self._look()

    def load(self) -> None:
        """Read all files. Raises CertificateProblem; then the certificates stay as they were."""
        self._marks = self._look()
        identities = [Identity.read(entry) for entry in self._entries]
        names: dict[str, tuple[Identity, ...]] = {}
        for name in dict.fromkeys(name for one in identities for name in one.names):
            names[name] = _of_each_kind(identities, name)
        first = identities[0]
        default = names[first.names[0]] if first.names else (first,)
        if first not in default:  # another certificate of this kind has the same name
            default = (first, *(one for one in default if one.kind != first.kind))
        made: dict[tuple[Identity, ...], ssl.SSLContext] = {}
        for group in (default, *names.values()):
            if group not in made:
                made[group] = self._make(group)
        self.identities = identities
        self._names = {name: made[group] for name, group in names.items()}
        context = made[default]
        if len(made) > 1:
            context.sni_callback = self._choose
        self.context = context

    def _look(self) -> object:
        marks: list[object] = []
        for path in self.files:
            try:
                found = os.stat(path)
                marks.append((found.st_ino, found.st_size, found.st_mtime_ns))
            except OSError as error:
                marks.append(error.errno)
        return marks

    def _make(self, identities: Sequence[Identity]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # which costs the server more than the client
        context.num_tickets = _TICKETS_PER_SESSION
        for identity in identities:
            identity.load_into(context)
        if self.clients.authorities:
            self._ask_clients(context, self.clients.authorities)
        return context

    def _ask_clients(self, context: ssl.SSLContext, authorities: Path) -> None:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(authorities)
        except ssl.SSLError:
            raise CertificateProblem(f"{authorities}: has no certificate in PEM") from None
        except OSError as error:
            raise CertificateProblem(f"{authorities}: {error.strerror}") from None

    def _choose(self, session: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Give a session the certificate of the name, if there is one (RFC 6125, 6.4.3)."""
        if name:
            name = name.lower()
            found = self._names.get(name) or self._names.get(f"*.{name.partition('.')[2]}")
            if found:
                session.context = found


def _of_each_kind(identities: Sequence[Identity], name: str) -> tuple[Identity, ...]:
    """Return the first identity of each kind that has the name."""
    kinds: dict[str, Identity] = {}
    for identity in identities:
        if name in identity.names:
            kinds.setdefault(identity.kind, identity)
    return tuple(kinds.values())


class ContextSet:
    """Has the contexts of each listener, in the order of `listen`; None without TLS.

    Listeners with the same certificates share them.
    """

    def __init__(self, config: SmtpdConfig) -> None:
        self._config = config
        self._made: dict[str, Contexts] = {}
        self._reminded = -_DAY_S
        self.contexts: list[Contexts | None] = []

    def load(self, path: Path) -> ContextSet:
        """Read all certificates; return self.

        Raises ConfigError with file, line and key of each mistake.
        """
        problems: list[tuple[Key, str]] = []
        for number, listener in enumerate(self._config.listen):
            key: Key = ("listen", number)
            problems += [((*key, *last), text) for last, text in self._mistakes(listener)]
            own = (*key, "certificates") if listener.certificates is not None else ("certificates",)
            self._read(listener, own, key, problems)
        if problems:
            raise mistakes(path, dict.fromkeys(problems))
        return self

    def _mistakes(self, listener: Listener) -> list[tuple[Key, str]]:
        """Return what does not fit together in the options of a listener."""
        found: list[tuple[Key, str]] = []
        tls, certificates = self._config.tls_of(listener), self._config.certificates_of(listener)
        if tls != "none" and not certificates:
            if listener.tls:
                found.append((("tls",), f"{tls}: needs certificates"))
            else:
                found.append((("role",), f"{listener.role}: needs certificates, or tls: none"))
        auth = self._config.auth_of(listener)
        if auth != "none" and tls == "none" and not listener.auth_without_tls:
            key = "auth" if listener.auth else "tls"
            found.append(((key,), "AUTH needs TLS, or auth_without_tls: true"))
        if listener.client_certificates.authorities and tls == "none":
            found.append((("client_certificates",), "needs certificates, and not tls: none"))
        return found

    def _read(
        self, listener: Listener, own: Key, key: Key, problems: list[tuple[Key, str]]
    ) -> None:
        entries = self._config.certificates_of(listener)
        if not entries or self._config.tls_of(listener) == "none":
            self.contexts.append(None)
            return
        clients = listener.client_certificates
        same = repr((entries, clients))
        if same not in self._made:
            self._made[same] = Contexts(entries, clients)
            before = len(problems)
            for number, entry in enumerate(entries):
                try:
                    Identity.read(entry)
                except CertificateProblem as error:
                    problems.append(((*own, number), str(error)))
            try:
                if before == len(problems):
                    self._made[same].load()
            except CertificateProblem as error:
                problems.append(((*key, "client_certificates", "authorities"), str(error)))
        self.contexts.append(self._made[same])

    async def watch(self) -> None:
        """Read certificates again whenever a file has changed. Runs until it is cancelled.

        A file that can't be used leaves the certificates as they were.
        """
        self._reminded = time.monotonic()  # the start has logged the warnings
        while self._made:
            await asyncio.sleep(_FILES_LOOK_INTERVAL_S)
            self._remind()
            for contexts in self._made.values():
                await asyncio.to_thread(self._again, contexts)

    def _again(self, contexts: Contexts) -> None:
        if not contexts.changed():
            return
        try:
            contexts.load()
        except CertificateProblem as error:
            log.error("certificates kept as they were", reason=str(error))
        else:
            until = min(identity.until for identity in contexts.identities)
            names = sorted({name for one in contexts.identities for name in one.names})
            log.info("certificates read again", names=names, until=until.isoformat())

    def unreadable(self) -> list[str]:
        """Return the files that this process could read, and can't read again."""
        files = dict.fromkeys(path for contexts in self._made.values() for path in contexts.files)
        return [
            f"{path}: the user of the processes can't read it: a new one needs SIGHUP"
            for path in files
            if not os.access(path, os.R_OK)
        ]

    def warnings(self) -> list[str]:
        """Return certificates that have expired or soon do, and listeners without one for us."""
        every = [contexts.identities for contexts in self._made.values()]
        found = [identity.warning() for identities in every for identity in identities]
        name, named = self._config.environment.hostname, self._config.environment.model_fields_set
        for identities in every if "hostname" in named else ():
            if not any(identity.serves(name) for identity in identities):
                names = ", ".join(dict.fromkeys(each for one in identities for each in one.names))
                found.append(
                    f"{identities[0].certificate}: is not for environment.hostname, {name}, but "
                    f"for {names or 'no name'}"
                )
        return list(dict.fromkeys(filter(None, found)))

    def _remind(self) -> None:
        """Log once per day which certificates have expired or soon do."""
        if time.monotonic() < self._reminded + _DAY_S:
            return
        self._reminded = time.monotonic()
        for contexts in self._made.values():
            for text in filter(None, (one.warning() for one in contexts.identities)):
                log.warning("certificate", reason=text)
