"""What a move has to do: found by looking at the keys of all servers; and the keys that it uses."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from penstock.base.encoding import decoded
from penstock.bus.keys import MOVING, QUEUES, available_channel, lease_key, moving_key, queue_key
from penstock.core.instance import Instance

HELD: Final = ("messages", "toack")
"""Lists of a queue that are held for a move."""
SCANNED: Final = 1_000
"""Keys that one SCAN looks at."""
STRAYS: Final = b"strays"
KINDS: Final = {QUEUES: (b"metadata", b"messages"), MOVING: (b"messages", b"toack", STRAYS)}
"""How the keys end that say that there is something to do, by how they begin."""


class Names:
    """The keys of one queue, by the names that the scripts give them."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self.available = available_channel(queue)
        """The channel on which consumers hear of new messages."""
        self.arrival = moving_key(queue, "arrival")
        self.strays = {kind: moving_key(queue, kind) for kind in ("strays", "batch")}
        self.held: dict[str, Any] = {f"held_{kind}": moving_key(queue, kind) for kind in HELD}

    def of(self, *kinds: str) -> dict[str, Any]:
        """Return the keys of the queue itself."""
        return {kind: lease_key(self._queue) if kind == "lease" else queue_key(self._queue, kind) for kind in kinds}


@dataclass(frozen=True)
class Step:
    """A queue that is not where it belongs, or whose move has not ended, or messages without their queue."""

    name: str
    source: Instance
    target: Instance
    stray: bool = False
    """Whether there are only messages, of a client of busmq that has not noticed a move."""
    late: tuple[Instance, ...] = ()
    """Former servers that have such messages: those come to the queue before it moves."""
    gone: bool = False
    """Whether the queue was closed or has expired during a move that was killed: the rest is to be deleted."""


@dataclass
class _Found:
    """What the servers have of a name."""

    tickets: dict[Instance, bytes | None] = field(default_factory=dict)
    """The field ``moving`` of the queue on each server that has it."""
    servers: dict[Instance, None] = field(default_factory=dict)
    """Those that have any key of it."""
    strays: set[Instance] = field(default_factory=set)
    """Those that have messages which were gathered and may not have arrived."""


class Plan:
    """Find the queues of ``instances`` that match ``pattern``; ``home`` returns where the queue of a name belongs."""

    def __init__(self, instances: Sequence[Instance], pattern: str, home: Callable[[str], Instance]) -> None:
        self.problems = list[str]()
        """What cannot be mended: a queue on two servers is left alone."""
        self._instances, self._pattern, self._home = instances, pattern, home

    async def steps(self, advance: Callable[[int], None]) -> list[Step]:
        """Return what has to be done, sorted by name; call ``advance`` with the number of keys looked at."""
        found: dict[str, _Found] = {}
        for instance in self._instances:
            async for names in self._names(instance):
                advance(SCANNED)
                keys = [Names(name).of("metadata")["metadata"] for name in names]
                asked = await asyncio.gather(*(instance.command("HMGET", key, "ttl", "moving") for key in keys))
                for name, (ttl, moving) in zip(names, asked, strict=True):
                    here = found.setdefault(name, _Found())
                    here.servers[instance] = None
                    if ttl is not None:
                        here.tickets[instance] = moving
                    if names[name]:
                        here.strays.add(instance)
        return [step for name in sorted(found) for step in self._of(name, found[name])]

    async def _names(self, instance: Instance) -> AsyncIterator[dict[str, bool]]:
        """Yield names of queues, and of messages without one, and whether any are strays; some more than once."""
        cursor = b"0"
        while True:
            cursor, keys = await instance.command("SCAN", cursor, "MATCH", "bus:*", "COUNT", SCANNED)
            found: dict[str, bool] = {}
            for key in keys:
                for prefix, kinds in KINDS.items():
                    name, _, kind = key.removeprefix(prefix).rpartition(b":")
                    if key.startswith(prefix) and kind in kinds and fnmatchcase(decoded(name), self._pattern):
                        found[decoded(name)] = found.get(decoded(name), False) or kind == STRAYS
            yield found
            if cursor == b"0":
                return

    def _of(self, name: str, found: _Found) -> list[Step]:
        moving = [each for each, ticket in found.tickets.items() if ticket]
        homes = [each for each, ticket in found.tickets.items() if not ticket]
        if len(homes) > 1 or len(moving) > 1:
            where = " and ".join(each.address for each in (*homes, *moving))
            self.problems.append(f"queue {name} is on {where}: close one of them first")
            return []
        if not homes and not moving:
            return [Step(name, each, each, gone=True) for each in self._instances]
        wanted = self._home(name)
        if moving:
            return [Step(name, moving[0], wanted)]
        late = tuple(each for each in found.servers if each is not homes[0] or each in found.strays)
        if homes[0] is not wanted:
            return [Step(name, homes[0], wanted, late=late)]
        return [Step(name, each, wanted, stray=True) for each in late]
