"""All metrics: what services count, what a monitor measures, and how both are written and read.

A counter is a hash ``<ns>:metrics:<name>`` with ``count sum max histo0 ... histo100``, or with fields of its own.
``METRICS`` declares each, with the series that a monitor makes of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from penstock.base.encoding import decoded, decoded_fields, parse_number
from penstock.base.keys import Keys, glob_escaped
from penstock.core.atomic import AtomicRead
from penstock.core.script import LUA, Script

_observe: Final = Script.read(LUA / "observe.lua")

Kind = Literal["counter", "gauge", "histogram"]
Sum = Literal["hop", "tracked", "history", "fan-out"]
"""What ``penstock audit`` and ``reconcile`` add up: ``taken = delivered + dead + dropped`` of a hop; the two sums of
tracked messages; their events; the copies of a fan-out."""
Of = Literal["all", "tracked", "gateway", "http", "hqueue", "link", "used"]
"""Which namespaces export a counter as 0 before it counts, since a rate needs the 0 before a 1; ``used``: none."""


@dataclass(frozen=True)
class Metric:
    """The series ``penstock_<name>``, of counters ``penstock_<name>_total``, and the hash that it is made of."""

    name: str
    help: str
    kind: Kind = "gauge"
    labels: tuple[str, ...] = ()
    """Besides ``namespace``."""
    hash: str = ""
    """``<ns>:metrics:<hash>`` in Redis; empty for what a scrape measures."""
    fields: Mapping[str, str] = field(default_factory=lambda: {"": "count"})
    """Fields of the hash by the value of the label."""
    of: Of = "used"
    sums: tuple[Sum, ...] = ()
    more: str = ""
    """A pattern of further fields, whose names are their labels."""

    @property
    def written_as(self) -> str:
        """Return the name of its series, without those that a histogram has besides."""
        return f"penstock_{self.name}{'_total' if self.kind == 'counter' else ''}"


def _counter(
    hash: str,
    help: str,
    *sums: Sum,
    name: str = "",
    of: Of = "tracked",
    field: str = "count",
    more: str = "",
    **labels: Mapping[str, str],
) -> Metric:
    """Return the counter of ``hash``: of one ``field``, or of the fields that ``labels`` give by value."""
    fields = next(iter(labels.values()), {"": field})
    return Metric(name or hash, help, "counter", tuple(labels), hash, fields, of, sums, more)


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


QUEUE: Final = ("kind", "queue", "group")
REFUSED_REASONS: Final = ("poison", "badRequest")
"""Reasons of dead letters that were never tracked: parts of ``taken``."""
ENDED_REASONS: Final = ("timeout", "failed", "queueTimeout", "retryBudget", "cancelled", "unopenable")
"""Reasons of tracked messages that are dead: parts of ``registered``."""

METRICS: Final = (
    Metric("up", "1 if Redis answered this scrape, else 0."),
    Metric("list_length", "Messages in a list of the namespace.", labels=("list", "role")),
    Metric("in_flight", "Messages delivered and not finished."),
    Metric("delayed", "Messages that wait for their first delivery or for the next one."),
    Metric("outcomes_waiting", "Outcomes of tasks of hqueue that wait for their lists and webhooks."),
    Metric("oldest_in_flight_seconds", "Seconds since the oldest message in flight was first delivered."),
    Metric(
        "memory_ratio",
        "Used fraction of the server's maxmemory: at 1 it refuses writes. Without maxmemory, of its machine's memory.",
    ),
    Metric("replica", "1 if the server is a replica and takes no writes, else 0."),
    Metric("disk_failed", "1 if the server's last write to its disk has failed, else 0: then it refuses writes."),
    Metric(
        "link_up",
        "1 if a vpush is alive and its other server answered the last batch, else 0; an idle vpush does not ask it.",
    ),
    Metric("link_waiting", "Messages that have not arrived on the other server."),
    Metric(
        "link_oldest_seconds", "Seconds that the oldest of them has waited at least; at most, if no vpush is alive."
    ),
    Metric("link_round_trip_seconds", "Seconds from sending the last batch until its answer."),
    Metric("instances", "Instances that renew their registrations in time.", labels=("service",)),
    Metric(
        "instances_late",
        "Instances that have missed a renewal: dead, hanging, or out of reach.",
        labels=("service",),
    ),
    Metric(
        "instances_waiting",
        "Instances that wait, by what for: a full list, a key of the wrong type, another server.",
        labels=("service", "reason"),
    ),
    Metric(
        "instance_renewed_seconds",
        "Seconds since an instance last renewed its registration.",
        labels=("id", "service", "host"),
    ),
    Metric("queue_waiting", "What waits in a list, stream or queue for programs that take it.", labels=QUEUE),
    Metric("queue_in_hand", "What was taken from it and not settled, also by workers that have died.", labels=QUEUE),
    Metric("queue_oldest_seconds", "Seconds that the oldest of what waits there has waited.", labels=QUEUE),
    Metric("queue_workers", "Workers of it that are alive; of hqueue, those that have a task.", labels=QUEUE),
    Metric(
        "queues_unread",
        "Lists, streams or queues beyond the first 1,000 of a kind: nothing is known of them.",
        labels=("kind",),
    ),
    Metric("queue_dead", "Dead letters, or dead jobs, of a list, stream or queue.", labels=("kind", "queue")),
    _counter("error", "Errors that need a repair, or that ended a process.", name="errors", of="all"),
    _counter("start", "Registrations of instances."),
    _counter(
        "reload",
        "Requests to reload the settings: obeyed; refused.",
        name="reloads",
        of="all",
        result={"obeyed": "count", "refused": "failed"},
    ),
    _counter(
        "ready",
        "Times that a program of sregister has become ready; that it has failed its checks; that it has ended.",
        name="readiness",
        of="used",
        result={"ready": "count", "failed": "failed", "ended": "ended"},
    ),
    _counter("taken", "Messages taken.", "hop", "tracked", "fan-out"),
    _counter("settled", "Messages that have left the pending lists.", "fan-out", of="used"),
    _counter("missing", "Messages that something else removed from a pending list.", of="all"),
    _counter("delivered", "First deliveries; in mpush, copies that the lists received and kept.", "hop", "fan-out"),
    _counter(
        "dead",
        "Dead letters, by reason.",
        *("hop", "tracked", "history", "fan-out"),
        reason=_same(*ENDED_REASONS, *REFUSED_REASONS, "badAnswer", "badDone"),
        more="(?!count$).*",
    ),
    _counter(
        "dropped",
        "Copies that mpush gave up for a full list; in vpush, messages with too many hops; else, requests too late.",
        *("hop", "tracked", "history", "fan-out"),
        of="all",
    ),
    _counter("broken", "Requests that hrouter answered because a list was too long to serve them in time.", of="all"),
    _counter("rebalanced", "Messages that mbalance took back from a list whose workers are dead.", "fan-out"),
    _counter("duplicate", "Duplicates that mdedupe found, wherever they went.", of="used"),
    _counter("forgotten", "Keys that mdedupe forgot before their time, at its capacity.", of="used"),
    _counter("limited", "Messages over the limit of mlimit, whether they waited or not.", of="used"),
    _counter("doubled", "Messages that outbox had pushed before, and did not push again.", of="used"),
    _counter("registered", "Messages that are tracked from then on.", "tracked", "history"),
    _counter("untracked", "Messages delivered untracked, because messageCapacity was reached.", "tracked", "history"),
    _counter("done", "Messages reported done in time.", "tracked", "history"),
    _counter(
        "done",
        "Reports in plain text that are the id of one message and the xid of another.",
        name="done_ambiguous",
        field="ambiguous",
    ),
    _counter("done:late", "Messages reported done after they had timed out.", "tracked", "history", name="done_late"),
    _counter(
        "done:late",
        "Messages that such a report has completed; the others were dead, or tried again.",
        name="done_late_completed",
        field="completed",
    ),
    _counter("done:unknown", "Messages reported done that have no record.", name="done_unknown"),
    _counter("timeout", "Deliveries that were not done by their deadline.", "history", name="timeouts"),
    _counter("overdue", "Deliveries that no worker had taken by their first deadline."),
    _counter("failed", "Deliveries that a worker reported as failed.", "history", name="failed_attempts"),
    _counter("retry", "Deliveries after the first one.", "history", name="retries"),
    _counter("expired", "Messages whose record was gone when they were due.", "tracked", "history"),
    _counter("touched", "Times that a worker extended a deadline.", "history"),
    _counter("events", "Events of tracked messages that were written.", "history"),
    _counter("revived", "Dead letters that were put back.", "history", "fan-out"),
    _counter("buried", "Dead letters that were removed."),
    _counter(
        "answers",
        "Answers sent; taken or expired when their list was closed; in lists that never expire; refused.",
        result={"sent": "count"} | _same("taken", "expired", "lasting", "unseen", "refused"),
    ),
    _counter(
        "gateway",
        "Of a gateway: websockets opened, ended and refused; wrong and former secrets; objects, calls and messages.",
        of="gateway",
        event=_same(
            *(
                "connections",
                "disconnections",
                "unauthorized",
                "refused",
                "errors",
                "former_secret",
                "objects",
                "calls",
            ),
            *("frames", "pushed", "delivered", "given_back", "published", "dropped", "taken_over"),
        ),
    ),
    _counter(
        "http",
        "Of HTTP: requests, answers by status, and what was refused; bytes of bodies; of himporter, messages, too.",
        of="http",
        event=_same(
            *("requests", "2xx", "3xx", "4xx", "5xx", "refused", "received", "sent", "pushed", "answered", "timeouts"),
            *("late", "malformed", "cancelled", "cached", "stale", "busy", "away", "unconfirmed", "repeated"),
        ),
        more=r"[A-Z]+|other|1xx|unread|refused:\d+",
    ),
    Metric("http_seconds", "Seconds from the head of a request to its answer.", "histogram", hash="http"),
    _counter(
        "outcomes",
        "Of hqueue: outcomes pushed to lists, accepted by webhooks, attempts that failed, and outcomes given up.",
        of="hqueue",
        result=_same("replied", "sent", "failed", "undelivered"),
    ),
    _counter("batches", "Batches that arrived on vpush's other server.", name="link_batches", of="link"),
    _counter("batches", "Bytes of the batches that arrived there.", name="link_bytes", of="link", field="bytes"),
    Metric(
        "outbox",
        "What the datadir of an outbox has, destinations that are away, and messages of others that were refused.",
        labels=("what",),
        hash="outbox",
        fields=_same("keys", "subscribers", "incoming", "outgoing", "dead", "away", "refused"),
    ),
    _counter(
        "pipeline",
        "Of a pipeline: events and malformed entries in its archive, late events, and micro-batches.",
        of="used",
        event={"archived": "count"} | _same("malformed", "late", "batches"),
    ),
    Metric(
        "response_seconds",
        "Seconds from the delivery of a message until it was done, in tenths of messageTimeout.",
        "histogram",
        hash="done",
    ),
)
"""Every metric. No other module names a series, and no code writes a hash that is not here: a test looks."""
HASHES: Final = tuple(dict.fromkeys(metric.hash for metric in METRICS if metric.hash))
"""The names of all counters in Redis."""
OF_EVERY_SERVICE: Final = ("start", "reload", "error", "missing", "revived", "buried")
"""Those that any service may have; what else it writes is in the ``metrics`` of its settings. ``events`` is not among
them: it numbers the events, and never expires.
"""


def parts_of(sum: Sum) -> tuple[str, ...]:
    """Return the names in Redis of what ``sum`` adds up, the whole first."""
    return tuple(dict.fromkeys(metric.hash for metric in METRICS if sum in metric.sums))


def observe(transaction: "Pipeline", metric: str, value: float, budget: float) -> None:
    """Count ``value`` (s), relative to ``budget`` (s, above 0), in the hash ``metric``, inside ``transaction``."""
    _observe.queue(transaction, metric=metric, value=value, budget=budget)


def count(transaction: "Pipeline", metric: str, amount: int = 1) -> None:
    """Add ``amount`` to the count of the hash ``metric``, inside ``transaction``."""
    transaction.hincrby(metric, "count", amount)


async def read_metrics(redis: "Redis", keys: Keys) -> dict[str, dict[str, str]]:
    """Return the fields of all metrics of a namespace, sorted by name; values as redis-cli shows them."""
    prefix = keys.metric("")
    found = sorted([key async for key in redis.scan_iter(f"{glob_escaped(prefix)}*", count=1000, _type="HASH")])
    async with AtomicRead(redis) as snapshot:
        for key in found:
            snapshot.hgetall(key)
        hashes = await snapshot.execute()
    return {
        decoded(key).removeprefix(prefix): decoded_fields(fields) for key, fields in zip(found, hashes, strict=True)
    }


def parse_metric(value: bytes | None) -> float | None:
    """Return a counter, sum or time; None if ``value`` is not a finite number of 0 or more."""
    return parse_number(value, least=0)
