"""The steps of a plan, done one by one: each may be done again, and after a kill the next plan goes on."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from penstock.atomic import AtomicRead
from penstock.composition.rollout.current import Present
from penstock.composition.rollout.notes import is_moved, key_of, moved
from penstock.composition.rollout.steps import Plan, Step, Stopped
from penstock.encoding import decoded, encoded
from penstock.inspect.namespace import instances
from penstock.script import LUA, Script
from penstock.transfer.read_size import Sizes

_backfill, _discard, _order, _rehome, _requeue = (
    Script.read(LUA / f"{verb}.lua") for verb in ("backfill", "discard", "order", "rehome", "requeue")
)
BATCH: Final = 1_000
"""Messages that are copied, and records that are changed, at a time: a millisecond of the server's."""
MOST: Final = 5_000
BYTES: Final = 4_194_304
"""Messages, and bytes unless one message has more, that are moved or copied at a time: some milliseconds."""
LOOK: Final = 0.05
"""Seconds between two looks for an answer, or for an empty list."""


async def prepare(plan: Plan) -> None:
    """Write the notes of ``plan``, before its first step."""
    for present, key in plan.stale:
        await present.redis.execute_command("HDEL", encoded(key_of(present.namespace)), encoded(key))
    for present, notes in plan.notes:
        async with present.redis.pipeline(transaction=True) as transaction:
            for key, note in notes.items():
                words = (key_of(present.namespace), key, note)
                transaction.execute_command("HSETNX", *map(encoded, words))
            await transaction.execute()


async def perform(step: Step, wait: float) -> str:
    """Do it; what came of it in words. Raises ``Stopped`` where it cannot be done within ``wait`` seconds."""
    actions: dict[str, Callable[[Step, float], Coroutine[Any, Any, str]]] = {
        "reload": _reload,
        "move": _move,
        "drain": _drain,
        "drop": _drop,
        "empty": _empty,
        "backfill": _fill,
    }
    return await actions[step.kind](step, wait)


async def _reload(step: Step, wait: float) -> str:
    """One instance after the other, so that settings that cannot be used are refused by the first."""
    by = step.by
    alive = [one.id for one in await instances(by.redis, by.registry, by.keys)]
    if not alive:
        raise Stopped(f"no instance of {by.namespace} is alive any more: start it, and apply again")
    for id in alive:
        await _obeyed(by, id, wait)
    shape = json.loads(decoded(await by.redis.get(encoded(by.keys.shape)) or b"null"))
    if shape != by.wanted:
        why = "it reads another file than the one here, or its environment says otherwise"
        raise Stopped(f"{by.namespace} has read its settings anew, but does not work by these: {why}")
    return f"{len(alive)} instance{'' if len(alive) == 1 else 's'} obeyed"


async def _obeyed(by: Present, id: str, wait: float) -> None:
    """Raises ``Stopped`` where the order is refused, or not answered. One that has ended has nothing to obey."""
    key = encoded(by.keys.instance(id))
    seconds, micros = await by.registry.time()
    order = encoded(f"{by.order} {seconds}.{micros:06}")
    until = time.monotonic() + wait
    alive = await _order(by.registry, instance=key, order=order)
    while alive:
        read: Any = by.registry.hmget(key, "host", "reload", "answered", "refused")
        alive, last, answered, refused = await read
        if answered == order:
            if refused:
                raise Stopped(f"{by.namespace}:{id} refuses: {decoded(refused)}")
            return
        if last not in (order, None):
            raise Stopped(f"somebody else has just given {by.namespace}:{id} another order: apply again")
        if time.monotonic() >= until:
            why = "it hangs, or is of a version that cannot: restart it, and apply again"
            raise Stopped(
                f"{by.namespace}:{id} has not answered the order to read its settings within {wait:g} s: {why}"
            )
        await asyncio.sleep(LOOK)


async def _move(step: Step, _: float) -> str:
    """Where messages are tracked, those in flight are sent to the new list from now on, too."""
    assert step.list
    assert step.to
    redis, notes = step.by.redis, encoded(key_of(step.by.namespace))
    former, present = step.list.key, step.to.key
    for writer in step.writers:
        await _redirect(writer, former, present)
    noted, total, left = await redis.execute_command("HGET", notes, encoded(former)) or b"", 0, 1
    while left:
        result = await _rehome(
            redis,
            former=encoded(former),
            present=encoded(present),
            notes=notes,
            counters=_counters(step.writers, "taken", "delivered", "dead", "dropped"),
            noted=noted,
            settled=encoded(moved(present)),
            older=int(not is_moved(decoded(noted))),
            most=MOST,
            bytes=BYTES,
        )
        if result is None:
            raise Stopped(f"somebody else has just moved {former}: apply again")
        count, left = result
        total += count
    return f"{total:,} moved"


async def _redirect(writer: Present, former: str, present: str) -> None:
    """All that are in flight or delayed at one instant: they go from one to the other."""
    async with AtomicRead(writer.redis) as snapshot:
        for key in (writer.keys.deadlines, writer.keys.delayed):
            snapshot.zrange(encoded(key), 0, -1)
        ids = [decoded(id) for found in await snapshot.execute() for id in found]
    for first in range(0, len(ids), BATCH):
        records = [encoded(writer.keys.message(id)) for id in ids[first : first + BATCH]]
        await _requeue(writer.redis, records=records, former=encoded(former), present=encoded(present))


async def _drain(step: Step, wait: float) -> str:
    assert step.list
    until = time.monotonic() + wait
    while left := await _length(step):
        if time.monotonic() >= until:
            raise Stopped(f"{step.list.key} holds {left:,} messages after {wait:g} s: does anybody take from it?")
        await asyncio.sleep(LOOK)
    await _forget(step)
    return "empty"


async def _empty(step: Step, _: float) -> str:
    assert step.list
    if held := await _length(step):
        raise Stopped(f"{step.list.key} has got {held:,} messages meanwhile: apply again with --drain or --drop")
    await _forget(step)
    return "empty"


async def _drop(step: Step, _: float) -> str:
    assert step.list
    fanned = [writer for writer in step.writers if writer.fans_out]
    notes, counters = encoded(key_of(step.by.namespace)), _counters(fanned, "delivered", "dropped")
    count = await _discard(step.by.redis, list=encoded(step.list.key), notes=notes, counters=counters)
    return f"{count:,} dropped"


async def _fill(step: Step, _: float) -> str:
    assert step.list
    assert step.to
    keys, sizes, copied, count = step.by.keys, Sizes(), 0, 1
    while count:
        count, largest = await _backfill(
            step.by.redis,
            source=encoded(step.list.key),
            target=encoded(step.to.key),
            taken=encoded(keys.metric("taken")),
            delivered=encoded(keys.metric("delivered")),
            batch=BATCH,
            bytes=BYTES,
            **sizes.named,
        )
        sizes.note(count, largest)
        copied += count
    return f"{copied:,} copied"


async def _length(step: Step) -> int:
    assert step.list
    return await step.by.redis.llen(encoded(step.list.key))


async def _forget(step: Step) -> None:
    """The list is as it shall be: nothing is left to do."""
    assert step.list
    await step.by.redis.execute_command("HDEL", encoded(key_of(step.by.namespace)), encoded(step.list.key))


def _counters(writers: Iterable[Present], *names: str) -> list[bytes]:
    return [encoded(writer.keys.metric(name)) for writer in writers for name in names]
