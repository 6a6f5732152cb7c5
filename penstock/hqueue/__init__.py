"""The client of hqueue, a work queue over HTTP: add tasks, take them, and acknowledge each when its handling ends."""

from penstock.hqueue.answers import Added, Fetched, Held, Info, Lease, Status
from penstock.hqueue.errors import AnswerError, LeaseLost, NotAllowed, NoTask, TaskExpired, TaskFailed
from penstock.hqueue.options import NewTask, TaskOptions
from penstock.hqueue.queue import Queue
from penstock.hqueue.server import Queues
from penstock.hqueue.task import Task

__all__ = [
    "Added",
    "AnswerError",
    "Fetched",
    "Held",
    "Info",
    "Lease",
    "LeaseLost",
    "NewTask",
    "NoTask",
    "NotAllowed",
    "Queue",
    "Queues",
    "Status",
    "Task",
    "TaskExpired",
    "TaskFailed",
    "TaskOptions",
]
