"""The whole of smtpd.yaml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from pgmta.config.authentication import Authentication
from pgmta.config.environment import Environment, Log, environment_field
from pgmta.config.ingest import Ingest
from pgmta.config.metadata_source import MetadataSource, parse_key
from pgmta.config.metrics import MetricsPage
from pgmta.config.types import FilePath, Section, Whole
from smtpd.config.hooks import HookLimits, Hooks
from smtpd.config.limits import Limits
from smtpd.config.listener_role import ROLES, Auth, BareNewlines, Tls, parse_address
from smtpd.config.listener_settings import BounceRule, Certificate, Certificates, Listener
from smtpd.config.relay import Relay


class SubmissionSettings(Section):
    """Rules for mail of users who have logged in (RFC 6409)."""

    check_from: bool = Field(
        default=True,
        description="refuse a message whose From has an address that the user may not send from",
    )


class ContentSettings(Section):
    """Rules for content on the wire."""

    bare_newlines: BareNewlines | None = Field(
        default=None,
        description="bare CR or LF: guard keeps them but refuses an end of data for lenient "
        "servers; reject refuses them all; null: by role of the listener, relay reject, others "
        "guard",
    )


class MaildropSettings(Section):
    """The directory in which the command `sendmail` keeps mail while smtpd is away."""

    directory: FilePath | None = Field(
        default=Path("/var/spool/pgmta/maildrop"),
        description="smtpd makes it if its parent lets it; null: smtpd takes no mail from there",
    )


class SmtpdLog(Log):
    """Choose what the process logs to stderr."""

    accepted: bool = Field(
        default=True,
        description="a line per message that smtpd has taken, at level info: message id, client, "
        "user, sender, number of recipients, size, listener and session",
    )


def default_processes() -> int:
    """Return one process per two cores, at most four: PostgreSQL needs cores too."""
    return max(1, min(4, (os.cpu_count() or 2) // 2))


class SmtpdConfig(Section):
    """The whole of smtpd.yaml."""

    environment: Environment = environment_field()
    listen: list[Listener] = Field(
        default=[Listener()], min_length=1, description="addresses and ports that take mail"
    )
    processes: Whole = Field(
        default_factory=default_processes,
        ge=1,
        le=64,
        description="processes that share the listeners; default: one per two cores, at most 4",
    )
    certificates: Certificates = Field(
        default=[],
        description="of this host, for TLS: a PEM file with both, or certificate and key; the "
        "client's SNI chooses, and the first is the default",
    )
    user: str | None = Field(
        default=None,
        description="as which the processes take mail if root starts smtpd; null: as root",
    )
    relay: Relay = Field(default=Relay())
    postmaster: Annotated[str, AfterValidator(parse_address)] | None = Field(
        default=None,
        description="address for mail to the postmaster of this host; null: smtpd holds it",
    )
    metadata: dict[Annotated[str, AfterValidator(parse_key)], MetadataSource] = Field(
        default={}, description="metadata of each row by key, such as _partid"
    )
    auth: Authentication = Field(default=Authentication())
    limits: Limits = Field(default=Limits())
    content: ContentSettings = Field(default=ContentSettings())
    dsn: bool = Field(
        default=True,
        description="announce DSN, and take its parameters with the mail (RFC 3461); they go on to "
        "the next hop, and DSNs obey them",
    )
    bounces: list[BounceRule] = Field(
        default=[],
        description="clients and users for which another word counts than `bounces` of the "
        "listener; the first entry that fits decides",
    )
    submission: SubmissionSettings = Field(default=SubmissionSettings())
    ingest: Ingest = Field(default=Ingest())
    hooks: Hooks = Field(
        default=[],
        description="handlers in the interface of aiosmtpd, asked in this order: "
        "package.module:Name, or handler and arguments",
    )
    hook_limits: HookLimits = Field(default=HookLimits())
    maildrop: MaildropSettings = Field(default=MaildropSettings())
    metrics: MetricsPage = Field(default=MetricsPage())
    log: SmtpdLog = Field(default=SmtpdLog())

    def certificates_of(self, listener: Listener) -> list[Certificate]:
        """Return the certificates of a listener."""
        return self.certificates if listener.certificates is None else listener.certificates

    def tls_of(self, listener: Listener) -> Tls:
        """Return how a listener uses TLS."""
        tls = listener.tls or ROLES[listener.role].tls
        optional = listener.tls is None and tls == "offered"
        return "none" if optional and not self.certificates_of(listener) else tls

    def auth_of(self, listener: Listener) -> Auth:
        """Return how a listener uses AUTH."""
        return listener.auth or ROLES[listener.role].auth

    @property
    def uses_tls(self) -> bool:
        """Whether a listener has TLS, or something that needs it."""
        return any(
            self.tls_of(listener) != "none" or listener.client_certificates.authorities
            for listener in self.listen
        )

    @property
    def uses_auth(self) -> bool:
        """Whether users may log in at some listener."""
        return any(self.auth_of(listener) != "none" for listener in self.listen)

    @property
    def needs_process_check(self) -> bool:
        """Whether a separate process looks beyond the file: at hooks, users and rights."""
        return self.uses_hooks or self.uses_auth or self.user is not None

    @property
    def uses_hooks(self) -> bool:
        """Whether a hook is configured, or a listener needs one."""
        listeners = any(listener.hooks or listener.relay == "hook" for listener in self.listen)
        return bool(self.hooks) or listeners
