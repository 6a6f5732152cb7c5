"""The keys of one queue, by the names that its scripts give them."""

from functools import lru_cache
from urllib.parse import quote

from penstock.base.keys import Keys

PARTS = ("ready", "held", "later", "behind", "busy", "workers", "tasks", "values", "order", "named")
COUNTERS = ("done", "dead", "expired")


def queue_name(owner: str, service: str) -> str:
    """Return the name of the queue of ``service`` of ``owner``, without spaces."""
    return f"{quote(owner, safe='')}/{service}"


def owner_of(queue: str) -> str:
    """Return the quoted owner of a queue's name."""
    return queue.partition("/")[0]


@lru_cache(10_000)
def queue_keys(keys: Keys, queue: str) -> dict[str, str]:
    """Return the keys of ``lua/parts/tasks.lua``."""
    return (
        {part: keys.queue(queue, part) for part in PARTS}
        | {"deadlines": keys.deadlines, "delayed": keys.delayed, "kept": keys.kept_tasks, "outbox": keys.outbox}
        | {"served": keys.tasks_served}
        | {name: keys.metric(name) for name in COUNTERS}
    )
