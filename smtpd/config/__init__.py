"""smtpd.yaml: where to listen, whose mail to take."""

from pgmta.config.authentication import Authentication, Failures
from smtpd.config.file import Content, SmtpdConfig, default_processes
from smtpd.config.hooks import Hook, HookLimits, Hooks
from smtpd.config.limits import Limits
from smtpd.config.listener import Certificate, ClientCertificates, Listener
from smtpd.config.relay import Relay
from smtpd.config.role import ROLES, Auth, BareNewlines, Early, Role, Tls

__all__ = [
    "ROLES",
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
    "Tls",
    "default_processes",
]
