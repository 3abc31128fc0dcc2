"""The series of smtpd. The master knows them, and imports nothing large for it."""

from __future__ import annotations

from pgmta.metrics.series import COMMON_SERIES, NUMBERS, SECONDS, Series

PREFIX = "pgmta_smtpd_"
"""How the names of all series of smtpd begin."""

SERIES = (
    *COMMON_SERIES,
    Series(PREFIX + "messages_total", "counter", "Messages that are accepted and durable."),
    Series(PREFIX + "recipients_total", "counter", "Their recipients."),
    Series(PREFIX + "message_bytes_total", "counter", "Their octets."),
    Series(PREFIX + "uncommitted_total", "counter",
           "Complete messages that were refused because the database did not store them."),
    Series(PREFIX + "refusals_total", "counter",
           "Replies 4xx and 5xx by reason, the name of the reply; `hook`: of a hook.", ("reason",)),
    Series(PREFIX + "sessions_total", "counter", "Sessions that began."),
    Series(PREFIX + "sessions_open", "gauge", "Sessions that are open."),
    Series(PREFIX + "sessions_turned_away_total", "counter",
           "Connections that were refused because of a limit."),
    Series(PREFIX + "tls_sessions_total", "counter", "TLS handshakes by version.", ("version",)),
    Series(PREFIX + "tls_failures_total", "counter", "TLS handshakes that failed."),
    Series(PREFIX + "logins_total", "counter", "Logins by result: ok, failed or unavailable.",
           ("result",)),
    Series(PREFIX + "commit_seconds", "histogram",
           "How long the commit of a group of messages took.", (), SECONDS),
    Series(PREFIX + "commit_messages", "histogram", "Messages of a group.", (), NUMBERS),
    Series(PREFIX + "commit_waiting", "gauge", "Complete messages that wait for their commit."),
    Series(PREFIX + "gate_closed", "gauge",
           "Processes that take no mail, because the database is slow or away."),
    Series(PREFIX + "outage_awaited", "gauge",
           "Processes whose mail waits, because the database has gone away a moment ago."),
    Series(PREFIX + "content_bytes", "gauge", "Content and input that is in memory."),
    Series(PREFIX + "hook_calls_total", "counter", "Calls of hooks.", ("hook",)),
    Series(PREFIX + "hook_seconds_total", "counter", "How long they took.", ("hook",)),
    Series(PREFIX + "hook_failures_total", "counter", "Calls that failed.", ("hook",)),
    Series("pgmta_database_connections", "gauge",
           "Connections to PostgreSQL by state: open, and busy with a statement.", ("state",)),
)  # fmt: skip
"""The series of smtpd, those of all its processes summed."""
