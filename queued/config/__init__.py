"""queued.yaml: workers, routes, delivery and retries."""

from queued.config.answer_rule import AnswerRule
from queued.config.answers import Answers, shipped_answers
from queued.config.bounce_texts import BounceTexts, Language, shipped_texts
from queued.config.bounces import BounceLimits, Bounces, split_named
from queued.config.delivery import Delivery
from queued.config.dns import Dns
from queued.config.file import QueuedConfig
from queued.config.process import Process
from queued.config.reading import read_config
from queued.config.retention import Retention
from queued.config.retry import Retry
from queued.config.routes import Pattern, Target, domain_fits
from queued.config.shaping import Shaping
from queued.config.shaping_host import ShapingHost
from queued.config.shaping_login import ShapingLogin
from queued.config.shaping_rewrite import ShapingRewrite
from queued.config.shaping_route import ShapingRoute
from queued.config.shaping_verp import ShapingVerp
from queued.config.signing import (
    SIGNED,
    Signing,
    SigningKeyFile,
    SigningRule,
    parse_instant,
    parse_selector,
    parse_signing_domain,
)
from queued.config.timeouts import Timeouts
from queued.config.tls import Tls
from queued.config.urgent import Urgent
from queued.config.verp_template import VerpTemplate
from queued.config.worker import Worker

__all__ = [
    "SIGNED",
    "AnswerRule",
    "Answers",
    "BounceLimits",
    "BounceTexts",
    "Bounces",
    "Delivery",
    "Dns",
    "Language",
    "Pattern",
    "Process",
    "QueuedConfig",
    "Retention",
    "Retry",
    "Shaping",
    "ShapingHost",
    "ShapingLogin",
    "ShapingRewrite",
    "ShapingRoute",
    "ShapingVerp",
    "Signing",
    "SigningKeyFile",
    "SigningRule",
    "Target",
    "Timeouts",
    "Tls",
    "Urgent",
    "VerpTemplate",
    "Worker",
    "domain_fits",
    "parse_instant",
    "parse_selector",
    "parse_signing_domain",
    "read_config",
    "shipped_answers",
    "shipped_texts",
    "split_named",
]
