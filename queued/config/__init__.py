"""queued.yaml: workers, routes, delivery and retries."""

from queued.config.answers import AnswerRule, Answers, shipped_answers
from queued.config.bounce_texts import BounceTexts, Language, shipped_texts
from queued.config.bounces import BounceLimits, Bounces, split_named
from queued.config.delivery import Delivery, Dns, Timeouts, Tls
from queued.config.mail_conditions import Pattern, Target, domain_term
from queued.config.queued_config import (
    Process,
    QueuedConfig,
    Retention,
    Urgent,
    read_config,
    whole_model,
)
from queued.config.retry import Retry
from queued.config.rewriting import ShapingRewrite, VerpTemplate
from queued.config.shaping import (
    SMTP_TRANSPORTS,
    Shaping,
    ShapingHost,
    ShapingLogin,
    ShapingRoute,
    ShownLimit,
    whole_route,
    whole_shaping,
)
from queued.config.shaping_secrets import ShapingVerp
from queued.config.signing import (
    SIGNED_FIELDS,
    Signing,
    SigningKeyFile,
    SigningRule,
    parse_instant,
    parse_selector,
    parse_signing_domain,
)
from queued.config.worker import Worker

__all__ = [
    "SIGNED_FIELDS",
    "SMTP_TRANSPORTS",
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
    "ShownLimit",
    "Signing",
    "SigningKeyFile",
    "SigningRule",
    "Target",
    "Timeouts",
    "Tls",
    "Urgent",
    "VerpTemplate",
    "Worker",
    "domain_term",
    "parse_instant",
    "parse_selector",
    "parse_signing_domain",
    "read_config",
    "shipped_answers",
    "shipped_texts",
    "split_named",
    "whole_model",
    "whole_route",
    "whole_shaping",
]
