"""Jobs for groups of workers, on the keys of hfxbus 2.2.0: see docs/jobs.md."""

from penstock.core.backoff import Backoff
from penstock.jobs.attempt import Attempt
from penstock.jobs.completion import Completion
from penstock.jobs.consumer import Consumer
from penstock.jobs.dead import DeadJob
from penstock.jobs.errors import Cancelled, DeadlineTimeout, Final, FinishTimeout, JobError, PauseTimeout, Rejected
from penstock.jobs.job import Job
from penstock.jobs.limit import Limit
from penstock.jobs.processes import ProcessJob
from penstock.jobs.producer import DISTRIBUTED, Producer, Sent
from penstock.jobs.server import Jobs

__all__ = [
    "DISTRIBUTED",
    "Attempt",
    "Backoff",
    "Cancelled",
    "Completion",
    "Consumer",
    "DeadJob",
    "DeadlineTimeout",
    "Final",
    "FinishTimeout",
    "Job",
    "JobError",
    "Jobs",
    "Limit",
    "PauseTimeout",
    "ProcessJob",
    "Producer",
    "Rejected",
    "Sent",
]
