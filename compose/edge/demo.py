"""Three sites without a broker, checked: ``python -m compose.edge.demo [--json]``, or ``make demo-edge``.

Each site has an embedded server; that of site north may be the one of the variable REDIS. The exit status is 0 only if
nothing was lost, doubled or dead, all sums hold, and every process ended with 0 on SIGTERM.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from compose import runner
from compose.bars import Bars, Snapshot
from compose.edge.net import Net
from compose.edge.site import KEYSPACE, SITES, Result, Site
from compose.ending import Ending
from compose.outcome import Outcome
from compose.tables import side_by_side
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
    runner.main("compose.edge.demo", __doc__, lambda url: run(url, rows, directory))


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Have the sites of the composition in ``directory`` publish ``rows``, a third each; north is at ``url``."""
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
        self._off, self._killed = (next(site for site in sites if site.name == name) for name in (OFF, KILLED))
        self._pushed = dict.fromkeys(SITES, 0)

    async def carry(self) -> None:
        """Push all rows; meanwhile take a site off the net, and kill another one with messages in hand."""
        await runner.until(self._composition, self._are_up)
        total, rows = max(len(site.rows) for site in self._sites), sum(len(site.rows) for site in self._sites)
        with Bars({site.name: rows - len(site.rows) for site in self._sites}, self._look) as bars:
            await self._push(total // 4, bars)
            since = time.monotonic()
            self._net.cut(OFF)
            await self._push(total // 2, bars)
            await self._kill(self._killed)
            await self._push(3 * total // 4, bars)
            await runner.until(self._composition, self._others_wait)
            self._off.waited = sum(self._waiting_for_off())
            self._net.mend(OFF)
            self._off.off_net = time.monotonic() - since
            await self._push(total, bars)
            await bars.until_through(self._composition)

    async def _look(self) -> Snapshot:
        waiting = any(site.counts().incoming + site.counts().outgoing for site in self._sites)
        left = waiting or any([await KEYSPACE.left(site.redis) for site in self._sites])
        return Snapshot({site.name: await site.redis.llen(site.arrived) for site in self._sites}, left)

    async def _push(self, end: int, bars: Bars) -> None:
        """Push the rows of all sites before ``end``, in batches."""
        while min(self._pushed.values()) < end:
            await self._push_at(self._sites, min(min(self._pushed.values()) + BATCH, end))
            await bars.draw()
            await asyncio.sleep(PUSH_SECONDS)

    async def _push_at(self, sites: Sequence[Site], end: int) -> None:
        for site in sites:
            if rows := site.rows[self._pushed[site.name] : end]:
                await site.redis.lpush(site.published, *rows)
            self._pushed[site.name] = max(self._pushed[site.name], end)

    async def _kill(self, site: Site) -> None:
        """Kill the process of ``site`` while its server takes nothing, and start it again."""

        async def has_in_hand() -> bool:
            return site.counts().incoming > 0

        await site.redis.execute_command("CLIENT", "PAUSE", HELD_MS, "WRITE")
        try:
            await self._push_at([other for other in self._sites if other is not site], self._pushed[site.name] + BATCH)
            await runner.until(self._composition, has_in_hand)
            pid = await self._composition.kill(site.name)
            site.killed_with = site.counts().incoming
        finally:
            await site.redis.execute_command("CLIENT", "UNPAUSE")
        await KEYSPACE.expire_registration(site.redis, pid)
        await self._composition.start_again(site.name)

    def _waiting_for_off(self) -> list[int]:
        return [site.waiting_for(self._net.addresses[OFF]) for site in self._sites if site is not self._off]

    async def _others_wait(self) -> bool:
        return self._net.refused > 0 and min(self._waiting_for_off()) > 0

    async def _are_up(self) -> bool:
        """Return whether each site has both others as subscribers."""
        subscribers = [await site.redis.hget(site.keys.metric("outbox"), "subscribers") for site in self._sites]
        return all(many == b"2" for many in subscribers)


async def read_outcome(sites: Sequence[Site], refused: int, statuses: Mapping[str, int]) -> Outcome:
    """Compare what is at each of ``sites`` with what the others have published."""
    results = [
        await Result.read(site, [row for other in sites if other is not site for row in other.rows]) for site in sites
    ]
    return judge(results, refused, await Ending.read(KEYSPACE, statuses, *(site.redis for site in sites)))


def judge(results: Sequence[Result], refused: int, ending: Ending) -> Outcome:
    """Return what is not as promised; ``refused`` connections were not let through by the net."""
    problems = [line for result in results for line in result.problems()]
    if not any(result.site.off_net and result.site.waited for result in results) or not refused:
        problems.append("no site was missed while it was off the net")
    if not any(result.site.killed_with for result in results):
        problems.append("no site was killed while it had messages in hand")
    columns = [(result.site.name, result.column()) for result in results]
    return Outcome(
        ending,
        comparisons=[result.comparison for result in results],
        audits={result.site.keys.namespace: result.audit for result in results},
        problems=problems,
        shown=[side_by_side("What the two others sent to each site", columns), ending.line],
        success="Nothing lost, nothing doubled, nothing dead at any site",
        data={"sites": {result.site.name: result.figures() for result in results}, "refused": refused},
    )


if __name__ == "__main__":
    main()
