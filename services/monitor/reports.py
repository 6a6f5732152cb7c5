"""What workers have reported of messages, and nobody has carried out yet: nothing of that may time out.

Answers wait in the list ``res`` while mdispatch is away, reports in ``done`` while monitors are, and both in pending
lists of instances that have died until others adopt these.
"""

from collections.abc import Callable, Set
from functools import partial
from typing import Any, Final, NamedTuple

from common.context import Context
from common.tracking.completion import Completion, parse_answer
from penstock.base.encoding import decoded, encoded
from penstock.base.keys import Keys, pending_of
from penstock.core.raw_connection import pack
from penstock.tracking.dead_letters import next_chunk_size
from penstock.tracking.policy import Policy
from services.monitor.done import parse_done
from services.monitor.settings import Settings

MAX_REPORTS: Final = 5_000
MAX_BYTES: Final = 16 * 2**20
"""How much is read to find out which messages are reported; beyond that, each of them may be."""
FIRST_CHUNK: Final = 4
Parse = Callable[[bytes], Completion]


class Reported(NamedTuple):
    """Names of the messages that reports are about; ``all`` if there are too many reports to read."""

    ids: Set[bytes] = frozenset()
    xids: Set[bytes] = frozenset()
    all: bool = False

    def names(self, id: bytes, xid: bytes | None) -> bool:
        return self.all or id in self.ids or xid in self.xids


class Reports:
    """Reads the reports of one namespace that wait."""

    def __init__(self, context: Context[Settings], keys: Keys) -> None:
        self._context, self._keys = context, keys
        self._pending = context.settings.pending_of(keys.namespace)

    async def waiting(self, policy: Policy) -> Reported:
        """Return which messages the reports are about that wait now."""
        places = await self._places(policy)
        await self._context.wire.send(pack([("LLEN", name) for name, _ in places]))
        lengths = await self._context.wire.receive(len(places))
        lists = [(name, parse, many) for (name, parse), many in zip(places, lengths, strict=True) if type(many) is int]
        if sum(many for _, _, many in lists) > MAX_REPORTS:
            return Reported(all=True)
        ids, xids, size = set[bytes](), set[bytes](), 0
        for name, parse, many in lists:
            most, place = FIRST_CHUNK, 0
            while place < many:
                chunk: Any = await self._context.redis.lrange(decoded(name), place, place + most - 1)
                if (size := size + sum(map(len, chunk))) > MAX_BYTES:
                    return Reported(all=True)
                for each in map(parse, chunk):
                    ids.add(each.id)
                    xids.update((each.xid, each.other))
                place, most = place + most, next_chunk_size(chunk)
        return Reported(ids - {b""}, xids - {b""})

    async def _places(self, policy: Policy) -> list[tuple[bytes, Parse]]:
        """Return the lists with reports, those of instances included, and what reads an entry."""
        own, keys = self._context.required_keys, self._keys
        await self._context.wire.send(pack([("ZRANGE", encoded(each), 0, -1) for each in (own.owners, keys.owners)]))
        owners = [each if isinstance(each, list) else [] for each in await self._context.wire.receive(2)]

        done = partial(parse_done, done_by=policy.done_by)
        found: list[tuple[str, Parse]] = [(name, done) for name in (policy.done, *_held(self._pending, owners[0]))]
        if policy.res:
            found += [(name, parse_answer) for name in (policy.res, *_held(policy.res_pending, owners[1]))]
        return [(encoded(name), parse) for name, parse in found]


def _held(pending: str, owners: list[bytes]) -> list[str]:
    """Return the pending lists that the instances of an owner's id may hold, and the one that all share."""
    return [pending_of(pending, id) for id in (None, *map(decoded, owners))] if pending else []
