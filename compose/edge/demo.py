"""Three sites without a broker, checked: ``python -m compose.edge.demo [--json]``, or ``make demo-edge``.

Each site has an embedded server; that of site north may be the one of the variable REDIS. The exit status is 0 only if
nothing was lost, doubled or dead, all sums hold, and every process ended with 0 on SIGTERM.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from compose import runner
from compose.edge.keyspace import KEYSPACE, SITES, arrived, published
from compose.edge.net import Net
from compose.edge.outcome import Outcome, Site, read_outcome
from compose.edge.show import show
from penstock.composition.procfile import ProcessGroup
from penstock.connection import connect
from penstock.ports import free_port
from penstock.testing.server import EmbeddedServer

HERE: Final = Path(__file__).parent
ROWS: Final = (HERE.parent / "tracked/seattle-temps.csv").read_bytes().splitlines()[1:]
BATCH: Final = 100
PUSH_SECONDS: Final = 0.05
HELD_MS: Final = 20_000
"""Maximum number of time for which the server of the site that is killed takes nothing."""
OFF, KILLED = "north", "south"


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    runner.main("compose.edge.demo", __doc__, lambda url: run(url, rows, directory), show)


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Have the sites of the composition in ``directory`` publish ``rows``, a third each; north is at ``url``.

    Raise ``PenstockError`` if that server holds data of this composition that no demo put there.
    """
    async with AsyncExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-edge-")))
        net = await stack.enter_async_context(Net())
        urls = [url, *[(await stack.enter_async_context(EmbeddedServer())).url for _ in range(2)]]
        sites, variables = list[Site](), dict[str, dict[str, str]]()
        for number, name in enumerate(SITES):
            redis = await stack.enter_async_context(connect(urls[number]))
            sites.append(Site(name, redis, place / name, rows[number::3]))
            port = free_port()
            variables[name] = {
                "OUTBOX_REDIS": urls[number],
                "OUTBOX_DATADIR": str(place / name),
                "OUTBOX_BIND": f"127.0.0.1:{port}",
                "OUTBOX_ADVERTISE": await net.add(name, port),
            }
        for name, given in variables.items():
            others = [f"{other}@{net.addresses[other]}" for other in SITES if other != name]
            given["OUTBOX_SUBSCRIBE"] = ",".join(others)
        return await runner.run_composition(
            url,
            directory,
            KEYSPACE,
            lambda _, composition: _Demo(sites, net, composition).carry(),
            lambda _, statuses: read_outcome(sites, net.refused, statuses),
            other_servers=[site.redis for site in sites[1:]],
            process_variables=variables,
        )


class _Demo:
    """One run."""

    def __init__(self, sites: Sequence[Site], net: Net, composition: ProcessGroup) -> None:
        self._sites, self._net, self._composition = sites, net, composition
        self._by_name = {site.name: site for site in sites}
        self._pushed = dict.fromkeys(SITES, 0)

    async def carry(self) -> None:
        """Push all rows; meanwhile take a site off the net, and kill another one with messages in hand."""
        await self._until(self._are_up)
        total = max(len(site.rows) for site in self._sites)
        with runner.progress() as progress:
            bars = [(site, progress.add_task(site.name, total=self._wanted(site))) for site in self._sites]

            async def draw() -> bool:
                for site, bar in bars:
                    progress.update(bar, completed=await self._count(site))
                return await self._is_through()

            await self._push(total // 4, draw)
            off, since = self._by_name[OFF], time.monotonic()
            self._net.cut(OFF)
            await self._push(total // 2, draw)
            await self._kill(self._by_name[KILLED])
            await self._push(3 * total // 4, draw)
            await self._until(self._others_wait)
            off.waited = sum(self._waiting_for_off())
            self._net.mend(OFF)
            off.off_net = time.monotonic() - since
            await self._push(total, draw)
            await self._until(draw)

    def _wanted(self, site: Site) -> int:
        return sum(len(other.rows) for other in self._sites if other is not site)

    async def _push(self, end: int, draw: Callable[[], Awaitable[object]]) -> None:
        """Push the rows of all sites before ``end``, in batches."""
        while min(self._pushed.values()) < end:
            await self._push_at(self._sites, min(min(self._pushed.values()) + BATCH, end))
            await draw()
            await asyncio.sleep(PUSH_SECONDS)

    async def _push_at(self, sites: Sequence[Site], end: int) -> None:
        for site in sites:
            if rows := site.rows[self._pushed[site.name] : end]:
                await site.redis.lpush(published(site.name), *rows)
            self._pushed[site.name] = max(self._pushed[site.name], end)

    async def _kill(self, site: Site) -> None:
        """Kill the process of ``site`` while its server takes nothing, and start it again."""
        await site.redis.execute_command("CLIENT", "PAUSE", HELD_MS, "WRITE")
        try:
            await self._push_at([other for other in self._sites if other is not site], self._pushed[site.name] + BATCH)
            await self._until(lambda: self._has_in_hand(site))
            pid = await self._composition.kill(site.name)
            site.killed_with = site.counts().incoming
        finally:
            await site.redis.execute_command("CLIENT", "UNPAUSE")
        await KEYSPACE.expire_registration(site.redis, pid)
        await self._composition.start_again(site.name)

    async def _has_in_hand(self, site: Site) -> bool:
        return site.counts().incoming > 0

    def _waiting_for_off(self) -> list[int]:
        return [site.waiting_for(self._net.addresses[OFF]) for site in self._sites if site.name != OFF]

    async def _others_wait(self) -> bool:
        return self._net.refused > 0 and min(self._waiting_for_off()) > 0

    async def _count(self, site: Site) -> int:
        return int(await site.redis.llen(arrived(site.name)))

    async def _are_up(self) -> bool:
        """Return whether each site has both others as subscribers."""
        return all(
            [await site.redis.hget(SITES[site.name].metric("outbox"), "subscribers") == b"2" for site in self._sites]
        )

    async def _is_through(self) -> bool:
        counts = [await self._count(site) >= self._wanted(site) for site in self._sites]
        return all(counts) and not any(site.counts().incoming + site.counts().outgoing for site in self._sites)

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until ``condition``, at most as long as a demo may take, and only while all processes run."""
        until = time.monotonic() + runner.MAX_SECONDS
        while time.monotonic() < until and len(self._composition.running) == len(self._composition.commands):
            if await condition():
                return
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
