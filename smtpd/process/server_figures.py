"""The figures of one process of smtpd."""

from __future__ import annotations

from collections.abc import Iterable

from pgmta.metrics.exposition import process_values
from pgmta.metrics.series import Values
from smtpd.hooks.phases import Hook
from smtpd.server.server import Server
from smtpd.server.smtpd_series import PREFIX


def server_values(server: Server, hooks: Iterable[Hook]) -> Values:
    """Return the figures of one process."""
    seen, stored = server.figures, server.committer.figures
    numbers: dict[str, float] = {
        "messages_total": stored.messages,
        "recipients_total": stored.recipients,
        "message_bytes_total": stored.octets,
        "uncommitted_total": stored.refused,
        "sessions_total": seen.sessions,
        "sessions_open": server.open_sessions,
        "sessions_turned_away_total": seen.turned_away,
        "tls_failures_total": seen.failed_handshakes,
        "commit_waiting": server.committer.waiting,
        "gate_closed": server.gate.closed or bool(server.committer.schema.problem),
        "outage_awaited": server.committer.outage.waits,
        "content_bytes": server.memory.used,
    }
    values: Values = {PREFIX + name: {(): float(number)} for name, number in numbers.items()}
    for name, counted in (
        ("refusals_total", seen.refused), ("tls_sessions_total", seen.tls),
        ("logins_total", {"ok": 0, "failed": 0, **seen.logins}),
    ):  # fmt: skip
        values[PREFIX + name] = {(label,): float(number) for label, number in counted.items()}
    values[PREFIX + "commit_seconds"] = {(): stored.seconds.value}
    values[PREFIX + "commit_messages"] = {(): stored.sizes.value}
    for hook in hooks:
        for name, number in (
            ("calls", hook.calls), ("seconds", hook.seconds), ("failures", hook.failed_calls),
        ):  # fmt: skip
            found = values.setdefault(f"{PREFIX}hook_{name}_total", {})
            # listeners whose hooks have the same name share the handler
            found[hook.name,] = float(number)
    states = server.resources.states()
    values["pgmta_database_connections"] = {(n,): float(v) for n, v in states.items()}
    return values | process_values()


def server_problem(server: Server) -> str:
    """Return why a process takes no mail now; '' if it does."""
    if server.stopping:
        return "smtpd stops"
    if server.committer.schema.problem:
        return server.committer.schema.problem
    if server.committer.refuses or server.gate.closed:
        return "the database is slow or away"
    return ""
