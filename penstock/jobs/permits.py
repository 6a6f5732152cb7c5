"""Permits of a limit that all consumers of a group share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis

from penstock.core.script import Script
from penstock.jobs.keys import JobKeys, new_id
from penstock.jobs.limit import Limit

if TYPE_CHECKING:
    from penstock.core.instance import Instance

LEAST_LEASE: Final = 10.0
"""Seconds; longer than one read waits."""
_lua: Final = Path(__file__).parent / "lua"
_acquire, _release = (Script.read(_lua / f"{verb}.lua") for verb in ("acquire", "release"))

Permit = tuple[str, str]
"""Key and holder."""


class Permits:
    """Permits of one stream, in its server."""

    def __init__(
        self, node: "Instance", keys: JobKeys, stream: str, group: str, consumer: str, limit: Limit, lease: float
    ) -> None:
        of_group = keys.of_group(stream, group)
        self._node, self.limit, self._lease = node, limit, max(lease, LEAST_LEASE)
        self._keys = keys.limits(stream, group) | {name: of_group[name] for name in ("stream", "wait")}
        self._group, self._consumer = keys.group(group), consumer
        self._tries, self._control = of_group["tries"], keys.control(stream)

    async def take(self, wanted: Sequence[Permit], *, parks: bool) -> tuple[list[int], float | None]:
        """Take permits; return 1 for each that there is, else 0, and the seconds until one may be there.

        With ``parks``, holders are entries, and those that get none are claimed again as soon as there may be one.
        """
        granted, after = await self._node.run(
            _acquire,
            **self._keys,
            tries=self._tries,
            group=self._group,
            interval=f"{self.limit.interval:.6f}",
            burst=self.limit.burst,
            most=self.limit.concurrency or 0,
            lease=f"{self._lease:.3f}",
            parks=int(parks),
            words=[word for permit in wanted for word in permit],
        )
        return granted, float(after) if after else None

    async def take_some(self, most: int) -> tuple[list[Permit], float | None]:
        """Take up to ``most`` permits for jobs of any key."""
        wanted = [("", new_id()) for _ in range(most)]
        granted, after = await self.take(wanted, parks=False)
        return [permit for permit, is_ours in zip(wanted, granted, strict=True) if is_ours], after

    async def give_back(self, permits: Sequence[Permit], *, unused: bool = False) -> None:
        """Give permits back, also what they cost if they were not used."""
        await self._change("free", permits, self.limit.interval if unused else 0.0)

    async def renew(self, permits: Sequence[Permit], redis: Redis | None = None) -> None:
        """Keep permits from becoming free though they are in use; ``redis`` is a client of another thread."""
        await self._change("keep", permits, 0.0, redis)

    async def _change(self, verb: str, permits: Sequence[Permit], interval: float, redis: Redis | None = None) -> None:
        words = [word for permit in permits for word in permit]
        run: Callable[..., Any] = self._node.run_once if interval else self._node.run  # twice would give back twice
        if words:
            more: dict[str, Any] = {
                "lease": f"{self._lease:.3f}",
                "interval": f"{interval:.6f}" if interval else 0,
                "verb": verb,
            }
            more |= {"group": self._group, "consumer": self._consumer, "control": self._control}
            named = {**self._keys, **more, "words": words}
            await (run(_release, **named) if redis is None else _release(redis, **named))
