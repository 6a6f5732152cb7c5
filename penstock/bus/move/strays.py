"""What a move leaves behind at a former server: messages that clients of busmq push there, and what was held."""

import secrets
from collections.abc import Callable

from penstock.base.encoding import encoded
from penstock.base.urls import server_of
from penstock.bus.move.names import Names
from penstock.bus.move.plan import Step
from penstock.bus.move.transfer import KEPT_SECONDS, MESSAGES, SIZE
from penstock.bus.scripts import ADOPT, GATHER, SWEEP


async def gather(step: Step, is_stopping: Callable[[], bool]) -> int:
    """Carry messages that were pushed to the source after the move to the queue, behind those that are there.

    Return how many. Two at once do no harm: each batch has a name, and says which one it follows.
    """
    names, gathered = Names(step.name), 0
    source = encoded(server_of(step.source.url))
    while not is_stopping():
        former = await step.target.command("HGET", names.arrival, source) or b""
        batch, *words = await step.source.run(
            GATHER,
            **names.of("metadata", "messages"),
            **names.strays,
            arrived=former,
            name=secrets.token_hex(8),
            most=MESSAGES,
            bytes=SIZE,
        )
        if not batch:
            break
        gathered += await step.target.run(
            ADOPT,
            **names.of("metadata", "messages", "msgid"),
            arrival=names.arrival,
            source=source,
            former=former,
            batch=batch,
            kept=KEPT_SECONDS,
            channel=names.available,
            bodies=words[1::2],
        )
    return gathered


async def sweep(step: Step) -> None:
    """Delete what a killed move has left of a queue that does not exist any more."""
    names = Names(step.name)
    keys = names.of("metadata") | names.held | names.strays
    await step.source.run(SWEEP, **keys, arrival=names.arrival, kept=KEPT_SECONDS)
