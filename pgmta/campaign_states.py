"""The statuses of a campaign's job and the one table of moves between them.

`tests/pgmta/test_campaign_states.py` compares the table with the SQL CHECK and with
docs/campaigns.md.
"""

from __future__ import annotations

from enum import StrEnum

CAMPAIGN = '"_campaign"'
"""Is in the metadata of each row of a campaign: campaign, recipient's number, job."""


class JobStatus(StrEnum):
    """Value of `campaign_jobs.status`."""

    READY = "READY"  # waits for its time and its credential
    ENQUEUED = "ENQUEUED"  # has its credential
    SENDING = "SENDING"  # feeds the queue
    SENT = "SENT"  # all are fed; outcomes are missing
    STOPPED = "STOPPED"  # feeds nothing, and begins nothing
    LOGGED = "LOGGED"  # done


MOVES: dict[JobStatus, tuple[JobStatus, ...]] = {
    JobStatus.READY: (JobStatus.ENQUEUED, JobStatus.STOPPED),
    JobStatus.ENQUEUED: (JobStatus.SENDING, JobStatus.SENT, JobStatus.STOPPED),
    JobStatus.SENDING: (JobStatus.SENT, JobStatus.STOPPED),
    JobStatus.SENT: (JobStatus.SENDING, JobStatus.LOGGED, JobStatus.STOPPED),
    JobStatus.STOPPED: (JobStatus.READY, JobStatus.LOGGED),
    JobStatus.LOGGED: (JobStatus.READY,),
}
"""The statuses that may follow each one."""
