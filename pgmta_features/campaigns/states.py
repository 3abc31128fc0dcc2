"""The statuses of a campaign's job, and the table of their transitions.

`tests/features/campaigns/test_jobs.py` compares them with the SQL CHECK and with
docs/programs/campaigns.md.
"""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    """Value of `campaign_jobs.status`."""

    READY = "READY"  # the job waits for its time, its window and its credential
    ENQUEUED = "ENQUEUED"  # the job has its credential
    SENDING = "SENDING"  # the job feeds the queue
    SENT = "SENT"  # all mail is in the queue; outcomes are missing
    STOPPED = "STOPPED"  # the job feeds and begins nothing
    LOGGED = "LOGGED"  # ended, with all outcomes


MOVES: dict[JobStatus, tuple[JobStatus, ...]] = {
    JobStatus.READY: (JobStatus.ENQUEUED, JobStatus.STOPPED),
    JobStatus.ENQUEUED: (JobStatus.READY, JobStatus.SENDING, JobStatus.SENT, JobStatus.STOPPED),
    JobStatus.SENDING: (JobStatus.READY, JobStatus.SENT, JobStatus.STOPPED),
    JobStatus.SENT: (JobStatus.READY, JobStatus.LOGGED, JobStatus.STOPPED),
    JobStatus.STOPPED: (JobStatus.READY, JobStatus.LOGGED),
    JobStatus.LOGGED: (JobStatus.READY,),
}
"""The statuses that may follow each one."""
