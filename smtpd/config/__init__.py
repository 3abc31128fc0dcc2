"""smtpd.yaml: where to listen, whose mail to take."""

from smtpd.config.authentication import Authentication, Failures
from smtpd.config.certificate import Certificate
from smtpd.config.client_certificates import ClientCertificates
from smtpd.config.content import Content
from smtpd.config.file import SmtpdConfig, default_processes
from smtpd.config.hooks import Hook, HookLimits, Hooks
from smtpd.config.limits import Limits
from smtpd.config.listener import Listener
from smtpd.config.metadata import SOURCES, Source
from smtpd.config.relay import Relay
from smtpd.config.role import ROLES, Auth, BareNewlines, Early, Role, Tls

__all__ = [
    "ROLES",
    "SOURCES",
    "Auth",
    "Authentication",
    "BareNewlines",
    "Certificate",
    "ClientCertificates",
    "Content",
    "Early",
    "Failures",
    "Hook",
    "HookLimits",
    "Hooks",
    "Limits",
    "Listener",
    "Relay",
    "Role",
    "SmtpdConfig",
    "Source",
    "Tls",
    "default_processes",
]
