"""The series of queued and of queued web."""

from __future__ import annotations

from pgmta.metrics.series import COMMON_SERIES, NUMBERS, SECONDS, WAITS, Series

_Q, _D, _W = "pgmta_queue_", "pgmta_queued_", "pgmta_web_"  # prefixes of names

_DATABASE = Series("pgmta_database_connections", "gauge",
                   "Connections to PostgreSQL by state: open, and busy with a statement.",
                   ("state",))  # fmt: skip

QUEUE_SERIES = (
    Series(_Q + "rows", "gauge", "Rows of the queue by status.", ("status",)),
    Series(_Q + "oldest_seconds", "gauge", "Age of the oldest row of each status.", ("status",)),
    Series(_Q + "due_rows", "gauge", "Rows that wait for an attempt and are due."),
    Series(_Q + "oldest_due_seconds", "gauge",
           "For how long the first due row is due; 0: none is due."),
    Series(_Q + "next_hop_rows", "gauge",
           "Rows of the next hops with most rows, by status; all others are `other`.",
           ("next_hop", "status")),
    Series(_Q + "next_hop_due_rows", "gauge", "Of these the rows that are due.", ("next_hop",)),
    Series(_Q + "next_hop_oldest_due_seconds", "gauge",
           "For how long the first due row of a next hop is due.", ("next_hop",)),
    Series(_Q + "tenant_rows", "gauge",
           "Rows that wait, of the tenants with most; all others are `other`.", ("tenant",)),
    Series(_Q + "count_age_seconds", "gauge", "How old these figures of the queue are."),
    Series(_Q + "count_seconds", "gauge", "How long the count took."),
    Series(_Q + "count_share", "gauge", "The part of the largest partition that it read."),
    Series(_Q + "dead_rows", "gauge", "Rows that are gone and that vacuum has not removed yet."),
    Series(_Q + "horizon_transactions", "gauge",
           "How many transactions old the holder of the xmin horizon is; 0: it is of another kind.",
           ("holder",)),
)  # fmt: skip
"""Figures of the queue: each queued with a page shows the same."""

QUEUED_SERIES = (
    *COMMON_SERIES,
    *QUEUE_SERIES,
    Series(_D + "claims_total", "counter", "Claims of rows, also those that found none."),
    Series(_D + "claimed_rows_total", "counter", "Rows that they leased."),
    Series(_D + "claim_failures_total", "counter", "Claims that the database did not do."),
    Series(_D + "claim_seconds", "histogram", "How long a claim took.", (), SECONDS),
    Series(_D + "attempts_total", "counter",
           "Attempts in the log by event and answer class; delivered ones have no class.",
           ("event", "class")),
    Series(_D + "next_hop_attempts_total", "counter",
           "The same by next hop, of the largest; all others are `other`.",
           ("next_hop", "event", "class")),
    Series(_D + "late_outcomes_total", "counter", "Outcomes whose row had moved on or was gone."),
    Series(_D + "returned_rows_total", "counter",
           "Rows that were handed back, postponed or suppressed: no attempt.", ("event",)),
    Series(_D + "first_attempt_seconds", "histogram",
           "From the acceptance of a row to the begin of its first attempt.", (), WAITS),
    Series(_D + "connect_seconds", "histogram",
           "Set-up of a connection to a next hop: TCP, greeting, EHLO and TLS.", (), SECONDS),
    Series(_D + "transaction_seconds", "histogram", "Transactions, by attempt.", (), SECONDS),
    Series(_D + "settle_seconds", "histogram", "How long the commit of outcomes took.",
           (), SECONDS),
    Series(_D + "settle_outcomes", "histogram", "Outcomes of a commit.", (), NUMBERS),
    Series(_D + "unsettled_outcomes", "gauge", "Outcomes that wait for their commit."),
    Series(_D + "leased_rows", "gauge", "Rows that a worker has leased.", ("worker",)),
    Series(_D + "slots", "gauge", "Rows that a worker may lease: its `concurrency`.", ("worker",)),
    Series(_D + "handled_rows_total", "counter", "Rows that a worker has done.", ("worker",)),
    Series(_D + "destinations", "gauge", "Destinations with mail or connections."),
    Series(_D + "dsns_total", "counter", "DSNs that this process has put into the queue."),
    _DATABASE,
)  # fmt: skip
"""The series of queued."""

WEB_SERIES = (
    *COMMON_SERIES,
    Series(_W + "responses_total", "counter", "Responses by path and status code.",
           ("path", "code")),
    Series(_W + "response_seconds", "histogram", "How long they took.", (), SECONDS),
    Series(_W + "connections_open", "gauge", "Connections of clients."),
    _DATABASE,
)  # fmt: skip
"""The series of queued web."""
