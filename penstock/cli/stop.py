"""``penstock stop``: delete registrations, on which the instances settle their pending messages and end."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.encoding import decoded, encoded
from penstock.cli._frame import DEFAULT_URL, Failed, Json, RedisUrl, ServiceRedisUrl, run
from penstock.cli._servers import servers_of
from penstock.cli._text import print_json, shown

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.inspect.namespace import Instance


def stop(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of the service.")],
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The ID of one instance, as `penstock status` shows it.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Stop every live instance.")] = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until it has exited; 0: do not wait.")] = 30,
    redis: RedisUrl = DEFAULT_URL,
    service_redis: ServiceRedisUrl = None,
    json: Json = False,
) -> None:
    """Stop an instance of a service, on whatever machine it runs.

    Deletes its registration and waits: the instance settles its pending messages, deregisters and exits.
    """
    if (id is None) != all:
        raise typer.BadParameter("expected one ID, or --all")
    if id is not None and not (id.isascii() and id.isdigit()):
        raise typer.BadParameter(f"an ID is a number, as `penstock status` shows it, not {id!r}")
    run(_stop(namespace, id, wait, (redis, service_redis), json))


async def _stop(namespace: str, id: str | None, wait: float, urls: tuple[str, str | None], as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.inspect.namespace import instances

    keys = Keys(namespace)
    async with servers_of(namespace, *urls) as (redis, service_redis):
        alive = await instances(redis, service_redis, keys)
        chosen = [instance for instance in alive if id in (None, instance.id)]
        if not chosen:
            raise _not_alive(namespace, id, alive)
        started = time.monotonic()
        for instance in chosen:
            await service_redis.delete(encoded(keys.instance(instance.id)))
        left = await _wait(redis, service_redis, keys, {instance.id for instance in chosen}, started + wait)
    seconds = time.monotonic() - started
    results = [_result(instance, left, wait) for instance in chosen]
    if as_json:
        print_json({"namespace": namespace, "instances": results, "seconds": seconds})
    else:
        for result in results:
            typer.echo(_result_line(namespace, result, seconds, wait))
    return int(bool(left) and wait > 0)


def _not_alive(namespace: str, id: str | None, alive: "list[Instance]") -> Failed:
    if not alive:
        return Failed(f"{shown(namespace)} has no live instances")
    ids = ", ".join(shown(instance.id) for instance in alive)
    return Failed(f"{shown(f'{namespace}:{id}')} is not alive: the live instances of {shown(namespace)} are {ids}")


async def _wait(redis: "Redis", service_redis: "Redis", keys: "Keys", ids: set[str], until: float) -> set[str]:
    """Wait for the ``ids`` to deregister, until ``until`` (s, monotonic clock). Return those that have not."""
    while True:
        listed = {decoded(id) for id in await service_redis.lrange(encoded(keys.ids), 0, -1)}
        left = ids & (listed | await _idle_owners(redis, keys))
        if not left or time.monotonic() >= until:
            return left
        await asyncio.sleep(0.05)


async def _idle_owners(redis: "Redis", keys: "Keys") -> set[str]:
    """Return owners without pending messages. Others stay owners when they end, so that does not say if they run.

    The list of ids is not enough: it is bounded, and other instances remove ids whose registration is gone.
    """
    from penstock.inspect.pending import read_pending

    found = (await read_pending(redis, [keys], lenient=True))[0][keys.namespace]
    return {*found.owners} - {each.owner for each in found.all if each.owner and each.messages}


def _result(instance: "Instance", left: set[str], wait: float) -> dict[str, Any]:
    outcome = "stopped" if instance.id not in left else "listed" if wait else "ordered"
    return {"id": instance.id, "host": instance.host, "pid": instance.pid, "outcome": outcome}


def _result_line(namespace: str, result: dict[str, Any], seconds: float, wait: float) -> str:
    who = shown(f"{namespace}:{result['id']} (pid {result['pid']} on {result['host']})")
    return {
        "stopped": f"{who} has deregistered after {seconds:.1f} s",
        "ordered": f"{who} was ordered to stop",
        "listed": f"{who} was ordered to stop, but is still listed after {wait:g} s: it hangs or was killed; "
        "the next instance of its namespace takes over its pending messages",
    }[result["outcome"]]
