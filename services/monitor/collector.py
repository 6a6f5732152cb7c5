"""Prometheus collector for the state of namespaces; it keeps nothing from one scrape to the next."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from common.http.access import BOUNDS, WITHIN
from penstock.base.encoding import encoded
from penstock.core.metrics import METRICS, Metric
from services.monitor.state import NamespaceState

FAMILIES: Final[dict[str, Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
HISTOGRAM_TENTHS: Final = range(0, 100, 10)
Samples = Iterator[tuple[str, Sequence[str], float | None]]
"""Names of metrics with labels and values; None for a value that is not known."""


class StateCollector(Collector):
    """Collects every metric under ``penstock_``; ``read`` returns None if nothing could be read."""

    def __init__(self, namespaces: Sequence[str], read: Callable[[], list[NamespaceState] | None]) -> None:
        self._namespaces, self._read = namespaces, read

    def describe(self) -> Iterable[Family]:
        """Return metrics without samples: the registry needs the names, since a scrape may ask for some only."""
        return self._families(None)

    def collect(self) -> Iterable[Family]:
        return self._families(self._read())

    def _families(self, states: list[NamespaceState] | None) -> list[Family]:
        """Return every metric, also those without samples."""
        families = {metric.name: _family(metric) for metric in METRICS}
        for namespace in self._namespaces:
            families["up"].add_metric([escaped(namespace)], states is not None)
        for state in states or ():
            for name, labels, value in (*_measured(state), *_counted(state)):
                if value is not None:
                    families[name].add_metric([escaped(each) for each in (state.namespace, *labels)], value)
            _add_histograms(families, state)
        return [*families.values()]


def _family(metric: Metric) -> Any:
    unit = "seconds" if metric.name.endswith("_seconds") else ""
    labels = ["namespace", *metric.labels]
    return FAMILIES[metric.kind](f"penstock_{metric.name}", metric.help, labels=labels, unit=unit)


def _measured(state: NamespaceState) -> Samples:
    """Yield what this scrape has measured."""
    yield "memory_ratio", (), state.memory
    yield "replica", (), state.replica
    yield "disk_failed", (), state.disk_failed
    for each in state.lists:
        yield "list_length", (each.list, each.role), each.messages
    if state.tracked:
        yield "in_flight", (), state.in_flight
        yield "delayed", (), state.delayed
        yield "oldest_in_flight_seconds", (), state.oldest
    if state.has["hqueue"]:
        yield "outcomes_waiting", (), state.outcomes
    if state.link:
        yield "link_up", (), state.link.up
        yield "link_waiting", (), state.link.waiting
        yield "link_oldest_seconds", (), state.link.oldest
        yield "link_round_trip_seconds", (), state.link.round_trip
    yield from _instances(state)
    yield from _queues(state)


def _queues(state: NamespaceState) -> Samples:
    read = [each for each in state.queues if not each.unread]
    for each in state.queues:
        if each.unread:
            yield "queues_unread", (each.kind,), each.unread
    for each in read:
        labels = (each.kind, each.queue, each.group)
        yield "queue_waiting", labels, each.waiting
        yield "queue_in_hand", labels, each.in_hand
        yield "queue_oldest_seconds", labels, each.oldest
        yield "queue_workers", labels, each.workers
    for (kind, queue), dead in {(each.kind, each.queue): each.dead for each in read}.items():
        yield "queue_dead", (kind, queue), dead


def _instances(state: NamespaceState) -> Samples:
    expected = {state.registered, "gateway" if state.has["gateway"] else ""} - {""}
    alive = Counter(dict.fromkeys(expected, 0))
    late = Counter(instance.service for instance in state.instances if instance.late)
    for instance in state.instances:
        alive[instance.service] += not instance.late
        yield "instance_renewed_seconds", (instance.id, instance.service, instance.host), instance.renewed_ago
    waiting = Counter((one.service, one.waits) for one in state.instances if one.waits and not one.late)
    for labels, count in waiting.items():
        yield "instances_waiting", labels, count
    for service, count in alive.items():
        yield "instances", (service,), count
        yield "instances_late", (service,), late[service]


def _counted(state: NamespaceState) -> Samples:
    """Yield what services have counted: see ``Metric.of`` for what is 0."""
    for metric in METRICS:
        if not metric.hash or metric.kind == "histogram":
            continue
        fields = state.metrics[metric.hash]
        if metric.name == "dead" and not state.tracked:
            found: Mapping[str, float] = _dead_by_list(state, fields)
        elif state.has.get(metric.of) or not fields.keys().isdisjoint(metric.fields.values()):
            found = {label: fields.get(name, 0) for label, name in metric.fields.items()}
            if metric.more:
                found = found | {name: many for name, many in fields.items() if re.fullmatch(metric.more, name)}
        else:
            continue
        for label, value in found.items():
            yield metric.name, (label,) if metric.labels else (), value


def _dead_by_list(state: NamespaceState, fields: Mapping[str, float]) -> dict[str, float]:
    """Return dead letters by reason where the fields are lists, which tell the reasons of mpush apart."""
    if state.link:
        return {"unfit": fields.get("count", 0.0)}
    inputs = {each.list for each in state.lists if each.role == "in"}
    unknown = sum(many for name, many in fields.items() if name in inputs)
    return {"maxLength": fields.get("count", 0.0) - unknown, "unknown": unknown}


def _add_histograms(families: dict[str, Any], state: NamespaceState) -> None:
    if counted := state.metrics["http"]:
        families["http_seconds"].add_metric([escaped(state.namespace)], _http_buckets(counted), None)
    if state.timeout:
        histogram = _histogram(state.metrics["done"], state.timeout)
        families["response_seconds"].add_metric([escaped(state.namespace)], *histogram)


def _http_buckets(counted: dict[str, float]) -> list[tuple[str, float]]:
    """Return cumulative buckets, as in Prometheus."""
    so_far = accumulate(counted.get(name, 0) for name in WITHIN)
    return [*zip([*map(str, BOUNDS), "+Inf"], so_far, strict=True)]


def _histogram(done: dict[str, float], timeout: float) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets, as in Prometheus, and the sum; deadlines extended by a touch are not considered."""
    buckets, so_far = [], 0.0
    for tenth in HISTOGRAM_TENTHS:
        so_far += done.get(f"histo{tenth}", 0)
        buckets.append((str(round((tenth + 10) * timeout / 100, 9)), so_far))
    return [*buckets, ("+Inf", so_far + done.get("histo100", 0))], done.get("sum", 0)


def escaped(name: str) -> str:
    """Return ``name`` as UTF-8; an invalid byte becomes an escape such as ``\\xff``."""
    return encoded(name).decode(errors="backslashreplace")
