"""Metrics: figures of queued and of `queued web` for Prometheus, with health and readiness.

Its page is docs/operate/monitoring.md. What is counted is in the core, and so is the page of smtpd.
"""

from pgmta.features import Feature

FEATURE = Feature(
    servers={"queued": ".servers:serve_queued", "web": ".servers:serve_web"},
    sections={
        "metrics": "pgmta.config.metrics:MetricsPage",
        "web/metrics": "pgmta.config.metrics:MetricsPage",
    },
)
