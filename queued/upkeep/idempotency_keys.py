"""Keys of submissions by SQL and calls of submit_mails(): old ones go."""

from __future__ import annotations

from functools import partial

from pgmta.logs import get
from pgmta.store.admin.upkeep import Upkeep
from queued.upkeep.duty import Duty

KEY_AGE_S = 86400.0  # of a submission by SQL
_ROWS_PER_COMMIT = 5000
_CALLS_KEPT_S = 3600.0
"""submit_mails() keeps the answer of a call for so long. A client repeats it for much less."""

log = get("upkeep")


async def expire_keys(upkeep: Upkeep, hostname: str, age: float) -> None:
    """Remove keys older than `age` seconds and old calls; see that submissions have a host name.

    Raises StoreUnavailable, psycopg.Error.
    """
    await upkeep.introduce(hostname)
    removed = 0
    while rows := await upkeep.expire_keys(age, _ROWS_PER_COMMIT):
        removed += rows
    if removed:
        log.info("removed keys of submissions", rows=removed)
    while await upkeep.expire_calls(_CALLS_KEPT_S, _ROWS_PER_COMMIT):
        pass


DUTY = Duty(
    "keys",
    600.0,
    lambda process: partial(expire_keys, process.upkeep, process.host, KEY_AGE_S),
)
