"""The move of one queue: seal it, carry its messages, hand it over, or give the move up; and gather what came late."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError

from penstock.base.encoding import encoded
from penstock.base.errors import Gone, NotDurable, PenstockError, Unconfirmed
from penstock.base.urls import server_of
from penstock.bus.keys import MOVED
from penstock.bus.move.plan import HELD, Names, Step
from penstock.bus.scripts import (
    ADOPT,
    CARRY,
    FORGET,
    GATHER,
    HAND_OVER,
    PREPARE,
    RECEIVE,
    RETIRE,
    SEAL,
    SWEEP,
    TAKE_OVER,
    UNSEAL,
)

MESSAGES: Final = 500
SIZE: Final = 1 << 20
"""Upper bounds of what one script carries, in messages and bytes, unless a single message is larger."""
KEPT_SECONDS: Final = 86_400
"""How long the target remembers a move that has ended."""


class Stopped(PenstockError):
    """The move was given up, as the caller asked."""


@dataclass
class Moved:
    """What was done."""

    queues: int = 0
    messages: int = 0
    gathered: int = 0
    """Messages that were pushed to the former server of a queue, and are in it now."""


async def seal(step: Step, ticket: str) -> list[Any] | None:
    """Begin to move a queue, or go on; return the reply of ``seal.lua``, None if the queue does not exist."""
    names = Names(step.name)
    sealed: list[Any] | None = await step.source.run(
        SEAL, **names.of("metadata", *HELD), **names.held, ticket=ticket, most=MESSAGES
    )
    return sealed


class Transfer:
    """The move of a sealed queue, with the ``token`` that its metadata has; all of it may be done twice."""

    def __init__(self, step: Step, token: str, moved: Moved, is_stopping: Callable[[], bool]) -> None:
        self._source, self._target = step.source, step.target
        self._step, self._token, self._moved, self._is_stopping = step, token, moved, is_stopping
        self._names = Names(step.name)
        address = server_of(step.target.url)
        self._ticket, self._handed = f"carried {token} {address}", f"handed {token} {address}"

    async def run(self, state: str) -> bool:
        """Go on from ``state``, ``carried`` or ``handed``. Return False if the queue does not exist any more.

        Raise ``Stopped``, or what went wrong. Unless the target has taken over, the queue is then where it was. If the
        bus has a level of durability, the source deletes nothing before the target has confirmed it (``NotDurable``).
        """
        try:
            answer = await self._until_handed(state)
            if answer is None:
                await self._forget()
                return False
            await self._take_over(answer)
        except (NotDurable, Unconfirmed):  # the source keeps what it has, and the next move goes on
            raise
        except (PenstockError, RedisError, OSError):
            with suppress(PenstockError, RedisError, OSError):
                await self._give_up()
            raise
        await self._retire()
        return True

    async def _until_handed(self, state: str) -> list[Any] | None:
        """Carry all messages and hand the queue over; return its metadata and more, None if it does not exist."""
        names, arrived = self._names, [0, 0]
        kept = names.of("metadata", *HELD, "msgid", "lease", "ledger") | {"arrival": names.arrival} | names.held
        if state == "carried":
            arrived = await self._prepare()
        while True:
            if state == "carried":
                sealed = await seal(self._step, self._ticket)
                if sealed is None:
                    return None
                for place, kind in enumerate(HELD):
                    arrived[place] = await self._carry(kind, arrived[place], sealed[1 + place])
            counts = {"arrived": arrived[0], "arrived_toack": arrived[1]}
            answer: list[Any] | None = await self._source.run(
                HAND_OVER, **kept, **counts, ticket=self._ticket, handed=self._handed
            )
            if answer is None or answer:
                return answer

    async def _prepare(self) -> list[int]:
        """Return how many messages of each list have arrived before."""
        names = self._names.of("metadata", *HELD) | {"arrival": self._names.arrival} | self._names.held
        arrived: list[int] = await self._target.run(PREPARE, **names, token=self._token)
        return arrived

    async def _carry(self, kind: str, place: int, total: int) -> int:
        held = self._names.held[f"held_{kind}"]
        while place < total:
            if self._is_stopping():
                raise Stopped("given up")
            words = await self._source.run(CARRY, held=held, place=place, most=MESSAGES, bytes=SIZE)
            named = {"arrival": self._names.arrival, "held": held, "token": self._token, "place": place}
            arrived = int(await self._target.run(RECEIVE, **named, words=words))
            self._moved.messages += arrived - place
            place = arrived
        return place

    async def _take_over(self, answer: list[Any]) -> None:
        left, last, holder, holds, fields, adopted, noted, noted_left = answer
        kept = [word for at in range(0, len(fields), 2) if fields[at] != b"moving" for word in fields[at : at + 2]]
        names = self._names.of("metadata", *HELD, "msgid", "lease", "ledger") | {"arrival": self._names.arrival}
        named = {"token": self._token, "last": last, "left": left, "holder": holder, "holds": holds}
        named |= {"kept": KEPT_SECONDS, "adopted": len(adopted), "noted": len(noted), "noted_left": noted_left}
        named |= {"fields": [*adopted, *noted, *kept]}
        run = self._target.run_durably if self._target.confirms else self._target.run
        if not await run(TAKE_OVER, **names, **self._names.held, **named):
            raise Gone(f"{self._target.address} has lost what had arrived there")

    async def _retire(self) -> None:
        keys = self._names.of("metadata", "msgid", "toack", "lease", "ledger") | self._names.held
        await self._source.run(RETIRE, **keys, handed=self._handed, channel=MOVED, name=encoded(self._step.name))

    async def _give_up(self) -> None:
        """Leave the queue where it is, unless the target has it."""
        named = self._names.of("metadata", *HELD) | self._names.held
        named |= {"token": self._token, "most": MESSAGES, "channel": self._names.available}
        while (added := await self._source.run(UNSEAL, **named, forgotten=0)) > 0:
            pass
        if not await self._forget():
            await self._retire()
        elif added < 0:
            while await self._source.run(UNSEAL, **named, forgotten=1):
                pass

    async def _forget(self) -> bool:
        named = {"arrival": self._names.arrival, "token": self._token, "kept": KEPT_SECONDS}
        return bool(await self._target.run(FORGET, **named, **self._names.held))


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
