"""The readings as Prometheus wants them: names, helps, labels, and nothing kept from one scrape to the next."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.encoding import encoded
from services.monitor.readings import Reading, Readings

GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "list_length": ("Messages in a list of the namespace.", ("list", "role")),
    "in_flight": ("Messages delivered and not finished.", ()),
    "delayed": ("Messages that wait for their first delivery or for the next one.", ()),
    "oldest_in_flight_seconds": ("Seconds since the oldest message in flight was first delivered.", ()),
    "memory_ratio": ("How much of the server's maxmemory is used: at 1 it refuses writes; 0 where it has none.", ()),
    "replica": ("1 where the server is a replica and takes no writes, else 0.", ()),
    "link_up": (
        "1 where a vpush is alive and its other server answered the last batch, else 0; an idle vpush does not ask it.",
        (),
    ),
    "link_waiting": ("Messages that have not arrived on the other server.", ()),
    "link_oldest_seconds": (
        "Seconds that the oldest of them has waited at least; at most, where no vpush is alive.",
        (),
    ),
    "link_round_trip_seconds": ("Seconds from sending the last batch until its answer.", ()),
    "instances": ("Instances that renew their registrations in time.", ("service",)),
    "instances_late": ("Instances that have missed a renewal: dead, hanging, or out of reach.", ("service",)),
    "instance_renewed_seconds": (
        "Seconds since an instance last renewed its registration.",
        ("id", "service", "host"),
    ),
}
COUNTERS: Final = {
    "errors": ("error", "Errors that had to be mended, or that ended a process."),
    "taken": ("taken", "Messages taken."),
    "missing": ("missing", "Messages that somebody removed from a pending list."),
    "delivered": ("delivered", "First deliveries; in mpush, copies that the lists got and kept."),
    "dropped": ("dropped", "Copies that mpush gave up because a list was full; in vpush, messages with too many hops."),
    "registered": ("registered", "Messages that are tracked from then on."),
    "untracked": ("untracked", "Messages delivered without being tracked, for want of capacity."),
    "done": ("done", "Messages that a worker said were done, in time."),
    "done_late": ("done:late", "Messages said to be done after they had timed out."),
    "done_unknown": ("done:unknown", "Messages said to be done that nothing is known of."),
    "timeouts": ("timeout", "Deliveries that were not done by their deadline."),
    "overdue": ("overdue", "Deliveries that nobody had taken by their first deadline."),
    "failed_attempts": ("failed", "Deliveries that a worker gave up."),
    "retries": ("retry", "Deliveries after the first one."),
    "expired": ("expired", "Messages whose record was gone when they were due."),
    "touched": ("touched", "Times that a worker extended a deadline."),
}
ALERTING: Final = ("errors", "missing", "dropped")
"""Counters of every service that somebody is called for."""
RELOADS: Final = {"obeyed": "count", "refused": "failed"}
"""What became of orders to read the settings anew, and the field of the metric that counts it."""
LINK: Final = {
    "link_up": "up",
    "link_waiting": "waiting",
    "link_oldest_seconds": "oldest",
    "link_round_trip_seconds": "round_trip",
}
CROSSED: Final = {
    "count": ("batches", "Batches that arrived on vpush's other server."),
    "bytes": ("bytes", "Bytes of the batches that arrived there."),
}
ANSWERS: Final = {
    "sent": "count",
    **{name: name for name in ("taken", "expired", "lasting", "unseen", "refused")},
}
"""What became of answers, and the field of the metric that counts it."""
REASONS: Final = ("timeout", "failed", "queueTimeout", "poison", "badRequest", "badAnswer", "badDone")
TENTHS: Final = range(0, 100, 10)


class Series(Collector):
    """Everything under ``penstock_``; ``read`` answers None where there was nothing to be had."""

    def __init__(self, namespaces: Sequence[str], read: Callable[[], Readings | None]) -> None:
        self._namespaces, self._read = namespaces, read

    def describe(self) -> Iterable[Metric]:
        """For the registry to know the names, since a scrape may want some of them only."""
        return self._families(None)

    def collect(self) -> Iterable[Metric]:
        return self._families(self._read())

    def _families(self, readings: Readings | None) -> list[Metric]:
        up = GaugeMetricFamily("penstock_up", "1 where Redis answered this scrape, else 0.", labels=["namespace"])
        for namespace in self._namespaces:
            up.add_metric([shown(namespace)], readings is not None)
        return [up, *families(readings or [])]


def families(readings: Readings) -> list[Metric]:
    """All of them, also those that have no samples."""
    gauges = {name: _gauge(name, help, labels) for name, (help, labels) in GAUGES.items()}
    counters = {
        name: CounterMetricFamily(f"penstock_{name}", help, labels=["namespace"])
        for name, (_, help) in COUNTERS.items()
    }
    answers = CounterMetricFamily(
        "penstock_answers",
        "Answers sent; taken or expired by the time their list was ended; in lists that live for good; refused.",
        labels=["namespace", "result"],
    )
    reloads = CounterMetricFamily(
        "penstock_reloads", "Orders to read the settings anew: obeyed; refused.", labels=["namespace", "result"]
    )
    dead = CounterMetricFamily("penstock_dead", "Dead letters, by reason.", labels=["namespace", "reason"])
    response = HistogramMetricFamily(
        "penstock_response_seconds",
        "Seconds from the delivery of a message until it was done, in tenths of messageTimeout.",
        labels=["namespace"],
        unit="seconds",
    )
    crossed = {
        field: CounterMetricFamily(f"penstock_link_{name}", help, labels=["namespace"])
        for field, (name, help) in CROSSED.items()
    }
    for reading in readings:
        _add_gauges(gauges, reading)
        _add_counters(counters, dead, reading)
        for result, field in ANSWERS.items() if reading.tracked else ():
            answers.add_metric([shown(reading.namespace), result], reading.metrics["answers"].get(field, 0))
        for result, field in RELOADS.items():
            reloads.add_metric([shown(reading.namespace), result], reading.metrics["reload"].get(field, 0))
        for field, family in crossed.items() if reading.link else ():
            family.add_metric([shown(reading.namespace)], reading.metrics["batches"].get(field, 0))
        if reading.timeout:
            response.add_metric([shown(reading.namespace)], *_histogram(reading.metrics["done"], reading.timeout))
    return [*gauges.values(), *counters.values(), answers, reloads, dead, *crossed.values(), response]


def _gauge(name: str, help: str, labels: Sequence[str]) -> GaugeMetricFamily:
    unit = "seconds" if name.endswith("_seconds") else ""
    return GaugeMetricFamily(f"penstock_{name}", help, labels=["namespace", *labels], unit=unit)


def _add_gauges(gauges: dict[str, GaugeMetricFamily], reading: Reading) -> None:
    def add(name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            gauges[name].add_metric([shown(each) for each in (reading.namespace, *labels)], value)

    add("memory_ratio", reading.memory)
    add("replica", reading.replica)
    for each in reading.lists:
        add("list_length", each.messages, each.list, each.role)
    if reading.tracked:
        add("in_flight", reading.in_flight)
        add("delayed", reading.delayed)
        add("oldest_in_flight_seconds", reading.oldest)
    for name, field in LINK.items() if reading.link else ():
        add(name, getattr(reading.link, field))
    alive = Counter({"mdispatch": 0} if reading.tracked else {})
    late = Counter(instance.service for instance in reading.instances if instance.late)
    for instance in reading.instances:
        alive[instance.service] += not instance.late
        add("instance_renewed_seconds", instance.renewed_ago, instance.id, instance.service, instance.host)
    for service, count in alive.items():
        add("instances", count, service)
        add("instances_late", late[service], service)


def _add_counters(counters: dict[str, CounterMetricFamily], dead: CounterMetricFamily, reading: Reading) -> None:
    """Those that Redis has, all in a tracked namespace, and those with an alert: a rate needs the 0 before a 1."""
    namespace = shown(reading.namespace)
    for name, (metric, _) in COUNTERS.items():
        fields = reading.metrics[metric]
        if reading.tracked or name in ALERTING or "count" in fields:
            counters[name].add_metric([namespace], fields.get("count", 0))
    for reason, count in _dead(reading).items():
        dead.add_metric([namespace, shown(reason)], count)


def _dead(reading: Reading) -> dict[str, float]:
    """By reason; in mpush and vpush the fields are lists, and there is one reason."""
    fields = dict(reading.metrics["dead"])
    count = fields.pop("count", 0.0)
    if reading.tracked:
        return dict.fromkeys(REASONS, 0.0) | fields
    return {"unfit" if reading.link else "maxLength": count}


def _histogram(done: dict[str, float], timeout: float) -> tuple[list[tuple[str, float]], float]:
    """Buckets, which in Prometheus hold all that took no longer, and the sum; as if no deadline had been touched."""
    buckets, so_far = [], 0.0
    for tenth in TENTHS:
        so_far += done.get(f"histo{tenth}", 0)
        buckets.append((str(round((tenth + 10) * timeout / 100, 9)), so_far))
    return [*buckets, ("+Inf", so_far + done.get("histo100", 0))], done.get("sum", 0)


def shown(name: str) -> str:
    """``name`` as UTF-8 has it: a byte that is not becomes ``\\xff``."""
    return encoded(name).decode(errors="backslashreplace")
