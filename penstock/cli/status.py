"""``penstock status``: show instances, lists and metrics."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli._frame import DEFAULT_URL, Failed, Json, RedisUrl, ServiceRedisUrl, both, run
from penstock.cli._servers import servers_of
from penstock.cli._text import age, print_json, print_table, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.inspect.link import LinkState
    from penstock.inspect.namespace import Instance, LeaseState, ServiceKey
    from penstock.inspect.waiting import Waiting


def status(
    namespace: Annotated[
        str | None, typer.Argument(metavar="NS", help="Show one namespace; default: list all.")
    ] = None,
    redis: RedisUrl = DEFAULT_URL,
    service_redis: ServiceRedisUrl = None,
    json: Json = False,
) -> None:
    """Show the instances, lists and metrics of services."""
    run(_status(namespace, redis, service_redis, json))


async def _status(namespace: str | None, url: str, service_url: str | None, as_json: bool) -> int:
    if namespace is None:
        async with both(url, service_url) as (redis, service_redis):
            await _all(redis, service_redis, as_json)
    else:
        async with servers_of(namespace, url, service_url) as (redis, service_redis):
            await _one(redis, service_redis, namespace, as_json)
    return 0


async def _all(redis: "Redis", service_redis: "Redis", as_json: bool) -> None:
    from penstock.base.keys import Keys
    from penstock.inspect.hazards import describe_refusal
    from penstock.inspect.namespace import instances, namespaces, service_keys
    from penstock.inspect.waiting import waiting_at

    rows: list[dict[str, Any]] = []
    for name in await namespaces(redis, service_redis):
        alive = await instances(redis, service_redis, Keys(name))
        lists = await service_keys(redis, Keys(name))
        lengths = {role: sum(one.length for one in lists if one.role == role) for role in ("in", "pending", "dead")}
        services = sorted({instance.service for instance in alive}) or await _registered(redis, Keys(name))
        late = sum(one.late for one in alive)
        rows.append({"namespace": name, "services": services, "instances": len(alive), "late": late, **lengths})
    found = await waiting_at(redis, {row["namespace"]: row["instances"] - row["late"] for row in rows})
    queues = [each for some in found.values() for each in some]
    if as_json:
        print_json({"namespaces": rows, "queues": [asdict(each) for each in queues]})
    elif rows:
        cells = [
            [shown(r["namespace"]), shown(", ".join(r["services"])) or "-", _alive(r), *list(r.values())[4:]]
            for r in rows
        ]
        print_table("Namespaces", ("namespace", "service", "alive", "waiting", "pending", "dead letters"), cells)
    else:
        typer.echo("no namespaces: no service with a redisNamespace has registered here")
    if not as_json:
        _print_queues(queues)
    if not as_json and (refusal := await describe_refusal(redis, service_redis)):
        typer.echo(f"{refusal}: {REFUSED}")


def _print_queues(queues: "Iterable[Waiting]") -> None:
    if used := [each for each in queues if each.is_used]:
        print_table("Lists, streams and queues", QUEUE_COLUMNS, map(_queue, used))


QUEUE_COLUMNS = ("kind", "name", "group", "waiting", "in hand", "oldest", "dead", "workers")


def _queue(one: "Waiting") -> list[object]:
    counts = ["-" if count is None else count for count in (one.waiting, one.in_hand, one.dead, one.workers)]
    return [one.kind, shown(one.queue), shown(one.group) or "-", *counts[:2], age(one.oldest), *counts[2:]]


def _alive(row: dict[str, Any]) -> str:
    on_time = row["instances"] - row["late"]
    return f"{on_time} + {row['late']} late" if row["late"] else str(on_time)


async def _registered(redis: "Redis", keys: "Keys") -> list[str]:
    """Return the services that registered under ``keys`` last; empty if none did."""
    from penstock.composition.live.registered import read_registered

    return [part.service for part in (await read_registered(redis, "", [keys.namespace])).parts if part.service]


async def _one(redis: "Redis", service_redis: "Redis", namespace: str, as_json: bool) -> None:
    from penstock.base.keys import Keys
    from penstock.composition.live.registered import services_without_lists
    from penstock.core.metrics import read_metrics
    from penstock.inspect.hazards import describe_refusal
    from penstock.inspect.link import read_link
    from penstock.inspect.namespace import instances, read_lease, service_keys
    from penstock.inspect.waiting import waiting_at

    keys = Keys(namespace)
    alive, lists = await instances(redis, service_redis, keys), await service_keys(redis, keys)
    metrics, leased = await read_metrics(redis, keys), await read_lease(redis, keys)
    link = await read_link(redis, keys, lists, leased)
    refusal = await describe_refusal(redis, service_redis)
    if not (alive or lists or metrics):
        raise await unknown_namespace(redis, service_redis, namespace)
    found_queues = await waiting_at(redis, {namespace: sum(not one.late for one in alive)})
    queues = found_queues[namespace]
    if as_json:
        found = {"instances": [asdict(one) for one in alive], "lists": [asdict(one) for one in lists]}
        state = {"lease": leased and asdict(leased), "link": link and asdict(link), "refuses_writes": refusal}
        waiting = [asdict(each) for each in queues]
        print_json({"namespace": namespace, **found, **state, "queues": waiting, "metrics": metrics})
        return
    if alive:
        print_table(f"{shown(namespace)}: instances", INSTANCE_COLUMNS, map(_instance, alive))
        if any(one.late for one in alive) and not refusal:
            typer.echo("late: missed its heartbeat; the instance is dead, hangs, or cannot reach the server")
        for one in alive:
            if one.waits:
                typer.echo(f"{shown(namespace)}:{shown(one.id)} waits: {shown(one.waits)}")
    else:
        typer.echo(f"{shown(namespace)} has no live instances")
    if refusal:
        typer.echo(f"{refusal}: {REFUSED}")
    if lists:
        aged = any(one.oldest is not None for one in lists)
        columns = ("list", "role", "length", *(["oldest"] if aged else []))
        print_table("Lists", columns, [_list(one)[: len(columns)] for one in lists])
    elif without := await services_without_lists(redis, namespace):
        typer.echo(f"{shown(namespace)}: {shown(', '.join(without))} has no lists")
    else:
        typer.echo(f"{shown(namespace)}: no lists are registered on this server")
    _print_queues(queues)
    if leased:
        typer.echo(_leased(leased))
    if link:
        typer.echo(_linked(link))
    if metrics:
        print_table("Metrics", ("metric", "count", "sum", "max", "more"), [_metric(*item) for item in metrics.items()])


REFUSED = "instances wait, are late meanwhile, and then not shown any more, though they may be alive"
INSTANCE_COLUMNS = ("id", "service", "host", "pid", "started", "renewed", "ttl")


def _instance(one: "Instance") -> list[object]:
    started = "-" if one.started is None else f"{datetime.fromtimestamp(one.started, UTC):%Y-%m-%d %H:%M:%S} UTC"
    renewed = "-" if one.renewed_ago is None else f"{age(one.renewed_ago)} ago{', late' if one.late else ''}"
    ttl = f"{one.ttl} s" if one.ttl >= 0 else "none: it never expires"
    return [shown(one.id), shown(one.service), shown(one.host), shown(one.pid), started, renewed, ttl]


def _list(one: "ServiceKey") -> list[object]:
    fitting = ("zset",) if one.role in ("in flight", "delayed") else ("list", "stream")
    wrong = one.type not in ("none", *fitting)
    return [shown(one.name), shown(one.role), f"it is a {one.type}!" if wrong else one.length, age(one.oldest)]


def _metric(name: str, fields: dict[str, str]) -> list[object]:
    known = [fields.get(field, "-") for field in ("count", "sum", "max")]
    more = [f"{shown(field)} {shown(value)}" for field, value in fields.items() if field not in ("count", "sum", "max")]
    return [shown(name), *map(shown, known), "\n".join(more)]


def _leased(lease: "LeaseState") -> str:
    held = f"runs out in {lease.expires_in:.0f} s" if lease.expires_in > 0 else "has run out"
    return f"The active instance is {shown(lease.owner)}: its lease, token {lease.token}, {held}."


def _linked(link: "LinkState") -> str:
    lasts = "" if link.changed_ago is None else f" for {age(link.changed_ago)}"
    if not link.alive:
        state = "Link unused: no vpush is alive"
    elif link.up:
        state = f"Link up{lasts}, as of its last batch"
    else:
        state = f"Link down{lasts}: {shown(link.reason).rstrip('.')}"
    parts = [state]
    if link.waiting is not None:
        waits = f"{link.waiting:,} waiting, the oldest for {age(link.oldest)}"
        parts.append(waits if link.waiting else "nothing waiting")
    if link.round_trip is not None:
        parts.append(f"last round trip {link.round_trip * 1000:,.1f} ms")
    return "; ".join(parts)


async def unknown_namespace(redis: "Redis", service_redis: "Redis", namespace: str) -> Failed:
    """Return the error for a namespace without any service, which lists those that have one."""
    from penstock.inspect.namespace import namespaces

    known = await namespaces(redis, service_redis)
    if namespace in known:
        here = f"{shown(namespace)} is registered here, but its lists are on another server"
        return Failed(f"{here}: pass --redis URL for that server, and --service-redis URL for this one")
    names = ", ".join(map(shown, known[:10])) or "none"
    return Failed(f"no service has registered in the namespace {shown(namespace)}; namespaces on this server: {names}")
