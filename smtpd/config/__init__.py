"""smtpd.yaml: where to listen, whose mail to take."""

from smtpd.config.file import SmtpdConfig
from smtpd.config.hooks import Hook
from smtpd.config.limits import Limits
from smtpd.config.listener import Certificate, ClientCertificates, Listener
from smtpd.config.relay import Relay
from smtpd.config.role import ROLES

__all__ = [
    "ROLES",
    "Certificate",
    "ClientCertificates",
    "Hook",
    "Limits",
    "Listener",
    "Relay",
    "SmtpdConfig",
]
