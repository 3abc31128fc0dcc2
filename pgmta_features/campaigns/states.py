"""The statuses of a campaign's job, and the table of their transitions.

`tests/features/campaigns/test_jobs.py` compares them with the SQL CHECK and with
docs/programs/campaigns.md.
"""

from __future__ import annotations

from enum import StrEnum


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
    JobStatus.SENT: (JobStatus.READY, JobStatus.LOGGED, JobStatus.STOPPED),
    JobStatus.STOPPED: (JobStatus.READY, JobStatus.LOGGED),
    JobStatus.LOGGED: (JobStatus.READY,),
}
"""The statuses that may follow each one."""
