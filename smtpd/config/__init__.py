"""smtpd.yaml: where to listen, whose mail to take."""

from smtpd.config.hooks import HookEntry
from smtpd.config.limits import Limits
from smtpd.config.listener_role import ROLES
from smtpd.config.listener_settings import Certificate, ClientCertificates, Listener
from smtpd.config.relay import Relay
from smtpd.config.smtpd_config import SmtpdConfig

__all__ = [
    "ROLES",
    "Certificate",
    "ClientCertificates",
    "HookEntry",
    "Limits",
    "Listener",
    "Relay",
    "SmtpdConfig",
]
