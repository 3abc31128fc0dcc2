"""Proof that a commit is durable, on the synchronous standbys too: behind every "it is there".

A commit waits for its standby after it has happened. If its session ends during that wait, others
see what it wrote, though only this server has it. If the wait is cancelled, the commit even looks
like a success, but for a warning. So a row that is seen, or met by a unique index, proves nothing.

WAL is one stream. `PROOF` writes 96 octets of it in a commit of its own, which waits for all that
was visible before. It is a proof only if it comes without the warning (docs/decisions/failover.md).
"""

from __future__ import annotations

from typing import Final, LiteralString

from psycopg.errors import Diagnostic

PROOF: Final[LiteralString] = """
SELECT pg_catalog.pg_logical_emit_message(true, 'pgmta', ''),
    pg_catalog.set_config('client_min_messages', 'warning', true),
    pg_catalog.set_config(
        'synchronous_commit', CASE WHEN own IN ('off', 'local') THEN 'on' ELSE own END, true)
FROM pg_catalog.current_setting('synchronous_commit') AS own
"""
"""The statement, for a transaction of its own. Its settings last until the end of that.

It writes no row. Any login may run it, on any schema. With `false` as the first argument, or as a
SELECT, an ON CONFLICT DO NOTHING or a mere transaction id, a commit waits for nothing.
"""

# the SQLSTATE of the server's warning, and of warnings that triggers raise
_WARNING: Final = "01000"

UNPROVEN: Final = (
    "no synchronous standby has confirmed the commit, which may be on this server alone"
)
"""The words for a commit without proof."""


def casts_doubt(notice: Diagnostic) -> bool:
    """Return whether a notice may say that a commit did not wait for its standby.

    A warning of an operator's trigger looks the same, and costs a needless proof.
    """
    return notice.sqlstate == _WARNING
