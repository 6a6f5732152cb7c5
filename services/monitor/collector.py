"""Prometheus collector for the state of namespaces; it keeps nothing from one scrape to the next."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.http.access import BOUNDS, WITHIN
from penstock.base.encoding import encoded
from services.monitor.state import NamespaceState

GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "list_length": ("Messages in a list of the namespace.", ("list", "role")),
    "in_flight": ("Messages delivered and not finished.", ()),
    "delayed": ("Messages that wait for their first delivery or for the next one.", ()),
    "outcomes_waiting": ("Outcomes of tasks of hqueue that wait for their lists and webhooks.", ()),
    "oldest_in_flight_seconds": ("Seconds since the oldest message in flight was first delivered.", ()),
    "memory_ratio": (
        "Used fraction of the server's maxmemory: at 1 it refuses writes. Without maxmemory, of its machine's memory.",
        (),
    ),
    "replica": ("1 if the server is a replica and takes no writes, else 0.", ()),
    "disk_failed": ("1 if the server's last write to its disk has failed, else 0: then it refuses writes.", ()),
    "link_up": (
        "1 if a vpush is alive and its other server answered the last batch, else 0; an idle vpush does not ask it.",
        (),
    ),
    "link_waiting": ("Messages that have not arrived on the other server.", ()),
    "link_oldest_seconds": (
        "Seconds that the oldest of them has waited at least; at most, if no vpush is alive.",
        (),
    ),
    "link_round_trip_seconds": ("Seconds from sending the last batch until its answer.", ()),
    "instances": ("Instances that renew their registrations in time.", ("service",)),
    "instances_late": ("Instances that have missed a renewal: dead, hanging, or out of reach.", ("service",)),
    "instances_waiting": (
        "Instances that wait, by what for: a full list, a key of the wrong type, another server.",
        ("service", "reason"),
    ),
    "instance_renewed_seconds": (
        "Seconds since an instance last renewed its registration.",
        ("id", "service", "host"),
    ),
}
COUNTERS: Final = {
    "errors": ("error", "Errors that need a repair, or that ended a process."),
    "taken": ("taken", "Messages taken."),
    "missing": ("missing", "Messages that something else removed from a pending list."),
    "delivered": ("delivered", "First deliveries; in mpush, copies that the lists received and kept."),
    "dropped": (
        "dropped",
        "Copies that mpush gave up for a full list; in vpush, messages with too many hops; else, requests too late.",
    ),
    "broken": ("broken", "Requests that hrouter answered because a list was too long to serve them in time."),
    "rebalanced": ("rebalanced", "Messages that mbalance took back from a list whose workers are dead."),
    "registered": ("registered", "Messages that are tracked from then on."),
    "untracked": ("untracked", "Messages delivered untracked, because messageCapacity was reached."),
    "done": ("done", "Messages reported done in time."),
    "done_late": ("done:late", "Messages reported done after they had timed out."),
    "done_unknown": ("done:unknown", "Messages reported done that have no record."),
    "timeouts": ("timeout", "Deliveries that were not done by their deadline."),
    "overdue": ("overdue", "Deliveries that no worker had taken by their first deadline."),
    "failed_attempts": ("failed", "Deliveries that a worker reported as failed."),
    "retries": ("retry", "Deliveries after the first one."),
    "expired": ("expired", "Messages whose record was gone when they were due."),
    "touched": ("touched", "Times that a worker extended a deadline."),
}
ALERTED_COUNTERS: Final = ("errors", "missing", "dropped", "broken")
"""Counters of every service that have an alert."""
RELOAD_RESULTS: Final = {"obeyed": "count", "refused": "failed"}
"""Results of reload requests, and the field of the metric that counts each."""
LINK_GAUGES: Final = {
    "link_up": "up",
    "link_waiting": "waiting",
    "link_oldest_seconds": "oldest",
    "link_round_trip_seconds": "round_trip",
}
LINK_COUNTERS: Final = {
    "count": ("batches", "Batches that arrived on vpush's other server."),
    "bytes": ("bytes", "Bytes of the batches that arrived there."),
}
ANSWER_RESULTS: Final = {
    "sent": "count",
    **{name: name for name in ("taken", "expired", "lasting", "unseen", "refused")},
}
"""Results of answers, and the field of the metric that counts each."""
GATEWAY_EVENTS: Final = (
    *("connections", "disconnections", "unauthorized", "refused", "errors", "former_secret"),
    *("objects", "calls", "frames", "pushed", "delivered", "given_back", "published", "dropped", "taken_over"),
)
"""Fields of the metric of a gateway."""
HTTP_EVENTS: Final = (
    *("requests", "2xx", "3xx", "4xx", "5xx", "refused", "received", "sent"),
    *("pushed", "answered", "timeouts", "late", "malformed", "cancelled", "cached", "stale", "busy", "away"),
    *("unconfirmed", "repeated"),
)
"""Fields of the metric of a service that speaks HTTP."""
OUTCOME_RESULTS: Final = ("replied", "sent", "failed", "undelivered")
"""Fields of the metric of hqueue for the delivery of outcomes."""
DEAD_REASONS: Final = (
    "timeout",
    "failed",
    "retryBudget",
    "queueTimeout",
    "poison",
    "badRequest",
    "badAnswer",
    "badDone",
)
HISTOGRAM_TENTHS: Final = range(0, 100, 10)


class StateCollector(Collector):
    """Collects every metric under ``penstock_``; ``read`` returns None if nothing could be read."""

    def __init__(self, namespaces: Sequence[str], read: Callable[[], list[NamespaceState] | None]) -> None:
        self._namespaces, self._read = namespaces, read

    def describe(self) -> Iterable[Metric]:
        """Return metrics without samples: the registry needs the names, since a scrape may ask for some only."""
        return self._families(None)

    def collect(self) -> Iterable[Metric]:
        return self._families(self._read())

    def _families(self, states: list[NamespaceState] | None) -> list[Metric]:
        up = GaugeMetricFamily("penstock_up", "1 if Redis answered this scrape, else 0.", labels=["namespace"])
        for namespace in self._namespaces:
            up.add_metric([escaped(namespace)], states is not None)
        return [up, *metric_families(states or [])]


def metric_families(states: list[NamespaceState]) -> list[Metric]:
    """Return every metric, also those without samples."""
    gauges = {name: _gauge(name, help, labels) for name, (help, labels) in GAUGES.items()}
    counters = {
        name: CounterMetricFamily(f"penstock_{name}", help, labels=["namespace"])
        for name, (_, help) in COUNTERS.items()
    }
    answers = CounterMetricFamily(
        "penstock_answers",
        "Answers sent; taken or expired when their list was closed; in lists that never expire; refused.",
        labels=["namespace", "result"],
    )
    reloads = CounterMetricFamily(
        "penstock_reloads", "Requests to reload the settings: obeyed; refused.", labels=["namespace", "result"]
    )
    gateway = CounterMetricFamily(
        "penstock_gateway",
        "Of a gateway: websockets opened, ended and refused; wrong and former secrets; objects, calls and messages.",
        labels=["namespace", "event"],
    )
    http = CounterMetricFamily(
        "penstock_http",
        "Of HTTP: requests, answers by status, and what was refused; bytes of bodies; of himporter, messages, too.",
        labels=["namespace", "event"],
    )
    seconds = HistogramMetricFamily(
        "penstock_http_seconds",
        "Seconds from the head of a request to its answer.",
        labels=["namespace"],
        unit="seconds",
    )
    outcomes = CounterMetricFamily(
        "penstock_outcomes",
        "Of hqueue: outcomes pushed to lists, accepted by webhooks, attempts that failed, and outcomes given up.",
        labels=["namespace", "result"],
    )
    dead = CounterMetricFamily("penstock_dead", "Dead letters, by reason.", labels=["namespace", "reason"])
    response = HistogramMetricFamily(
        "penstock_response_seconds",
        "Seconds from the delivery of a message until it was done, in tenths of messageTimeout.",
        labels=["namespace"],
        unit="seconds",
    )
    link_counters = {
        field: CounterMetricFamily(f"penstock_link_{name}", help, labels=["namespace"])
        for field, (name, help) in LINK_COUNTERS.items()
    }
    for state in states:
        _add_gauges(gauges, state)
        _add_counters(counters, dead, state)
        for result, field in ANSWER_RESULTS.items() if state.tracked else ():
            answers.add_metric([escaped(state.namespace), result], state.metrics["answers"].get(field, 0))
        for result, field in RELOAD_RESULTS.items():
            reloads.add_metric([escaped(state.namespace), result], state.metrics["reload"].get(field, 0))
        for event in GATEWAY_EVENTS if state.has_gateway else ():
            gateway.add_metric([escaped(state.namespace), event], state.metrics["gateway"].get(event, 0))
        if counted := state.metrics["http"]:
            for event in HTTP_EVENTS:
                http.add_metric([escaped(state.namespace), event], counted.get(event, 0))
            seconds.add_metric([escaped(state.namespace)], _http_buckets(counted), None)
        if state.tracked and counted:  # hqueue writes both, and a rate needs the 0 before a 1
            for result in OUTCOME_RESULTS:
                outcomes.add_metric([escaped(state.namespace), result], state.metrics["outcomes"].get(result, 0))
        for field, family in link_counters.items() if state.link else ():
            family.add_metric([escaped(state.namespace)], state.metrics["batches"].get(field, 0))
        if state.timeout:
            response.add_metric([escaped(state.namespace)], *_histogram(state.metrics["done"], state.timeout))
    return [
        *gauges.values(), *counters.values(), answers, reloads, gateway, http, seconds, outcomes, dead,
        *link_counters.values(), response,
    ]  # fmt: skip


def _gauge(name: str, help: str, labels: Sequence[str]) -> GaugeMetricFamily:
    unit = "seconds" if name.endswith("_seconds") else ""
    return GaugeMetricFamily(f"penstock_{name}", help, labels=["namespace", *labels], unit=unit)


def _add_gauges(gauges: dict[str, GaugeMetricFamily], state: NamespaceState) -> None:
    def add(name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            gauges[name].add_metric([escaped(each) for each in (state.namespace, *labels)], value)

    add("memory_ratio", state.memory)
    add("replica", state.replica)
    add("disk_failed", state.disk_failed)
    for each in state.lists:
        add("list_length", each.messages, each.list, each.role)
    if state.tracked:
        add("in_flight", state.in_flight)
        add("delayed", state.delayed)
        add("oldest_in_flight_seconds", state.oldest)
        if state.metrics["http"]:
            add("outcomes_waiting", state.outcomes)
    for name, field in LINK_GAUGES.items() if state.link else ():
        add(name, getattr(state.link, field))
    alive = Counter({"mdispatch": 0} if state.tracked else {"gateway": 0} if state.has_gateway else {})
    late = Counter(instance.service for instance in state.instances if instance.late)
    for instance in state.instances:
        alive[instance.service] += not instance.late
        add("instance_renewed_seconds", instance.renewed_ago, instance.id, instance.service, instance.host)
    waiting = Counter((one.service, one.waits) for one in state.instances if one.waits and not one.late)
    for labels, count in waiting.items():
        add("instances_waiting", count, *labels)
    for service, count in alive.items():
        add("instances", count, service)
        add("instances_late", late[service], service)


def _add_counters(counters: dict[str, CounterMetricFamily], dead: CounterMetricFamily, state: NamespaceState) -> None:
    """Add counters, as 0 if tracked or alerted and not in Redis: a rate needs the 0 before a 1."""
    namespace = escaped(state.namespace)
    for name, (metric, _) in COUNTERS.items():
        fields = state.metrics[metric]
        if state.tracked or name in ALERTED_COUNTERS or "count" in fields:
            counters[name].add_metric([namespace], fields.get("count", 0))
    for reason, count in _dead(state).items():
        dead.add_metric([namespace, escaped(reason)], count)


def _dead(state: NamespaceState) -> dict[str, float]:
    """Return dead letters by reason; without mdispatch the fields are lists, which tell the reasons of mpush apart."""
    fields = dict(state.metrics["dead"])
    count = fields.pop("count", 0.0)
    if state.tracked:
        return dict.fromkeys(DEAD_REASONS, 0.0) | fields
    if state.link:
        return {"unfit": count}
    inputs = {each.list for each in state.lists if each.role == "in"}
    unknown = sum(many for name, many in fields.items() if name in inputs)
    return {"maxLength": count - unknown, "unknown": unknown}


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
