"""The action `expedite`: waiting rows get priority 0."""

from __future__ import annotations

from pgmta.action import RowAction

NAME = "expedite"

ROWS = RowAction(
    takes="",
    waiting="status IN ('QUEUED', 'DEFERRED')",
    repeated="priority > 0",
    statement="""
{found}, changed AS (
    UPDATE queue SET priority = 0 WHERE id = ANY (ARRAY(SELECT id FROM found)) RETURNING id
)
SELECT (SELECT count(*) FROM found), count(*) FROM changed
""",
)
