"""Execution of a plan, step by step: every step is idempotent, and after a kill the next plan continues."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Final

from penstock.base.encoding import counted, decoded, encoded
from penstock.composition.rollout import LUA
from penstock.composition.rollout.current import CurrentState
from penstock.composition.rollout.steps import Plan, Step, StepFailed
from penstock.core.atomic import AtomicRead
from penstock.core.connection import server_time
from penstock.core.consumer import Consumer
from penstock.core.metrics import parse_metric
from penstock.core.read_size import Sizes
from penstock.core.script import Script
from penstock.inspect.changes import begun, is_moved, key_of, moved
from penstock.inspect.namespace import instances
from penstock.lists import Lists

_backfill, _discard, _order, _rehome, _requeue = (
    Script.read(LUA / f"{verb}.lua") for verb in ("backfill", "discard", "order", "rehome", "requeue")
)
RECORDS_PER_CALL: Final = 1_000
"""Messages copied, and records changed, in one call: takes the server about a millisecond."""
MAX_MOVED_MESSAGES: Final = 5_000
MAX_MOVED_BYTES: Final = 4_194_304
"""Upper bounds of one move or copy, which takes the server some milliseconds; a larger message goes alone."""
HOLD_MILLISECONDS: Final = 5_000
"""For how long services wait if this program is killed."""
POLL_SECONDS: Final = 0.05
"""Pause between two checks for an answer, or for an empty list."""


async def write_notes(plan: Plan) -> None:
    """Write the notes of ``plan`` and delete stale ones; call it before the first step."""
    for state, key in plan.stale:
        await state.redis.execute_command("HDEL", encoded(key_of(state.namespace)), encoded(key))
    for state, notes in plan.notes:
        async with state.redis.pipeline(transaction=True) as transaction:
            for key, note in notes.items():
                transaction.execute_command("HSETNX", *map(encoded, (key_of(state.namespace), key, note)))
            await transaction.execute()


async def run_step(step: Step, wait: float) -> str:
    """Do ``step`` and return its result as text. Raise ``StepFailed`` if it is not done within ``wait`` seconds."""
    actions: dict[str, Callable[[Step, float], Coroutine[Any, Any, str]]] = {
        "reload": _reload,
        "move": _move,
        "drain": _drain,
        "drop": _drop,
        "empty": _empty,
        "backfill": _backfill_list,
    }
    return await actions[step.kind](step, wait)


async def _reload(step: Step, wait: float) -> str:
    """Reload one instance after the other, so that the first one refuses unusable settings."""
    by = step.by
    alive = [one.id for one in await instances(by.redis, by.registry, by.keys)]
    if not alive:
        raise StepFailed(f"{by.namespace} has no live instances any more: start one, and apply again")
    async with _held(by) if step.begins else nullcontext():
        for id in alive:
            await _reload_instance(by, id, wait)
        await _note_begun(by, step.begins)
    shape = json.loads(decoded(await by.redis.get(encoded(by.keys.shape)) or b"null"))
    if shape != by.desired:
        why = "it reads another file, or its environment overrides this one"
        raise StepFailed(f"{by.namespace} reloaded its settings, but these are not the ones of the file here: {why}")
    return f"{counted(len(alive), 'instance')} obeyed"


async def _note_begun(by: CurrentState, outputs: Iterable[str]) -> None:
    """Note which new outputs have had no message yet, now that all instances will fill them."""
    for name in outputs:
        had: Any = by.redis.hget(encoded(by.keys.metric("taken")), encoded(name))
        verb, value = ("HDEL", ()) if parse_metric(await had or b"0") != 0 else ("HSET", (b"1",))
        await by.redis.execute_command(verb, encoded(key_of(by.namespace)), encoded(begun(name)), *value)


@asynccontextmanager
async def _held(by: CurrentState) -> AsyncIterator[None]:
    """Let no instance begin to use new settings meanwhile: see ``Membership.enter``."""
    key = encoded(by.keys.hold)

    async def hold() -> None:
        while True:
            await asyncio.sleep(1)
            await by.redis.set(key, 1, px=HOLD_MILLISECONDS)

    await by.redis.set(key, 1, px=HOLD_MILLISECONDS)
    holding = asyncio.create_task(hold())
    try:
        yield
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await by.redis.delete(key)


async def _reload_instance(by: CurrentState, id: str, wait: float) -> None:
    """Order instance ``id`` to reload; do nothing if it has ended. Raise ``StepFailed`` if it refuses or hangs."""
    key = encoded(by.keys.instance(id))
    seconds, micros = await by.registry.time()
    order = encoded(f"{by.reload_order} {seconds}.{micros:06}")
    until = time.monotonic() + wait
    alive = await _order(by.registry, instance=key, order=order)
    while alive:
        read: Any = by.registry.hmget(key, "host", "reload", "answered", "refused")
        alive, last, answered, refused = await read
        if answered == order:
            if refused:
                raise StepFailed(f"{by.namespace}:{id} refuses: {decoded(refused)}")
            return
        if last not in (order, None):
            raise StepFailed(f"another operator has just ordered {by.namespace}:{id} to reload: apply again")
        if time.monotonic() >= until:
            why = "it hangs, or its version cannot reload: restart it, and apply again"
            raise StepFailed(f"{by.namespace}:{id} has not answered the order to reload within {wait:g} s: {why}")
        await asyncio.sleep(POLL_SECONDS)


async def _move(step: Step, wait: float) -> str:
    """Move all messages to the new list; redeliver tracked messages to it from now on, too.

    Wait for what consumers of ``penstock.lists`` have in hand, which is not in the list, and move what dead ones left.
    """
    assert step.list
    assert step.to
    redis, former = step.by.redis, step.list.key
    for writer in step.writers:
        await _redirect(writer, former, step.to.key)
    total, until = await _move_all(step), time.monotonic() + wait
    while sum(held := await in_hand(redis, former)):
        if held[1] and await _recover(step.by, former, until - time.monotonic()):
            total += await _move_all(step, older=True)
        elif time.monotonic() >= until:
            there = f"{counted(sum(held), 'message')} of {former} in hand of consumers of penstock.lists"
            later = "what they give back, or leave if they die, stays there: apply again then"
            return f"{total:,} moved; {there} after {wait:g} s: {later}"
        else:
            await asyncio.sleep(POLL_SECONDS)
    return f"{total:,} moved"


async def _move_all(step: Step, *, older: bool = False) -> int:
    """Move what is in the list now, ``older`` than what is in the new one unless that was noted; return how many."""
    assert step.list
    assert step.to
    redis, notes = step.by.redis, encoded(key_of(step.by.namespace))
    former, present = step.list.key, step.to.key
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
            older=int(older or not is_moved(decoded(noted))),
            most=MAX_MOVED_MESSAGES,
            bytes=MAX_MOVED_BYTES,
        )
        if result is None:
            raise StepFailed(f"another operator has just moved {former}: apply again")
        count, left = result
        total += count
    return total


async def in_hand(redis: Any, name: str) -> tuple[int, int]:
    """Return how many messages of the list ``name`` consumers of ``penstock.lists`` have not settled.

    The second number is of those whose lease has ended.
    """
    kind, found = decoded(await redis.type(encoded(f"{name}:consumers"))), [0, 0]
    leases = await redis.zrange(encoded(f"{name}:consumers"), 0, -1, withscores=True) if kind == "zset" else []
    now = await server_time(redis) * 1e6 if leases else 0.0
    for id, end in leases:
        hand = encoded(f"{name}:consumer:{decoded(id)}")
        if decoded(await redis.type(hand)) in ("list", "none"):
            found[end < now] += await redis.llen(hand)
    return found[0], found[1]


async def _recover(by: CurrentState, name: str, most: float) -> int:
    """Put back what dead consumers hold of the list ``name`` within ``most`` seconds; return how many messages."""
    recovered = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(max(most, 1)), Lists(by.part.urls[0]) as lists:
            source = lists[name].source(1, 1)
            consumer = Consumer(lists.consumers, source, 1)
            await consumer.enter()
            try:
                recovered = await source.holding.recover()
            finally:
                await consumer.leave()
    return recovered


async def _redirect(writer: CurrentState, former: str, present: str) -> None:
    """Change the queue of all messages that are in flight or delayed at one instant from ``former`` to ``present``."""
    async with AtomicRead(writer.redis) as snapshot:
        for key in (writer.keys.deadlines, writer.keys.delayed):
            snapshot.zrange(encoded(key), 0, -1)
        ids = [decoded(id) for found in await snapshot.execute() for id in found]
    for first in range(0, len(ids), RECORDS_PER_CALL):
        records = [encoded(writer.keys.message(id)) for id in ids[first : first + RECORDS_PER_CALL]]
        await _requeue(writer.redis, records=records, former=encoded(former), present=encoded(present))


async def _drain(step: Step, wait: float) -> str:
    assert step.list
    until = time.monotonic() + wait
    while left := await _length(step):
        if time.monotonic() >= until:
            raise StepFailed(
                f"{step.list.key} still holds {counted(left, 'message')} after {wait:g} s: is its reader running?"
            )
        await asyncio.sleep(POLL_SECONDS)
    await _delete_note(step)
    return "empty"


async def _empty(step: Step, _: float) -> str:
    assert step.list
    if held := await _length(step):
        raise StepFailed(
            f"{step.list.key} received {counted(held, 'message')} meanwhile: apply again with --drain or --drop"
        )
    await _delete_note(step)
    return "empty"


async def _drop(step: Step, _: float) -> str:
    assert step.list
    fanned = [writer for writer in step.writers if writer.fans_out]
    notes, counters = encoded(key_of(step.by.namespace)), _counters(fanned, "delivered", "dropped")
    count = await _discard(step.by.redis, list=encoded(step.list.key), notes=notes, counters=counters)
    return f"{count:,} dropped"


async def _backfill_list(step: Step, _: float) -> str:
    assert step.list
    assert step.to
    keys, sizes, copied, count = step.by.keys, Sizes(), 0, 1
    if not await step.by.redis.hexists(encoded(keys.changes), encoded(begun(step.to.key))):
        raise StepFailed(
            f"{step.to.key} got messages before all instances had reloaded, so it is not known which of those in "
            f"{step.list.key} it has had; see penstock replay"
        )
    while count:
        count, largest = await _backfill(
            step.by.redis,
            source=encoded(step.list.key),
            target=encoded(step.to.key),
            taken=encoded(keys.metric("taken")),
            delivered=encoded(keys.metric("delivered")),
            batch=RECORDS_PER_CALL,
            bytes=MAX_MOVED_BYTES,
            **sizes.named,
        )
        sizes.note(count, largest)
        copied += count
    return f"{copied:,} copied"


async def _length(step: Step) -> int:
    assert step.list
    return await step.by.redis.llen(encoded(step.list.key))


async def _delete_note(step: Step) -> None:
    """Delete the note of the step's list: nothing is left to do for it."""
    assert step.list
    await step.by.redis.execute_command("HDEL", encoded(key_of(step.by.namespace)), encoded(step.list.key))


def _counters(writers: Iterable[CurrentState], *names: str) -> list[bytes]:
    return [encoded(writer.keys.metric(name)) for writer in writers for name in names]
