"""Three sites, one down for a while, checked: ``python -m compose.sites.demo [--json]``, or ``make demo-sites``.

Each site uses an embedded server, or the one of the variable REDIS (site one), SITE_TWO or SITE_THREE. The exit status
is 0 only if nothing was lost, doubled or out of order, all sums hold, and every process ended with 0 on SIGTERM.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from redis.asyncio import Redis

from compose import runner
from compose.bars import Bars, Snapshot
from compose.comparison import Comparison
from compose.ending import Ending
from compose.outcome import Outcome
from compose.sites.names import KEYSPACE, LINKS, arrived, queues_for
from compose.sites.sent import Sent
from compose.sites.site import Site, open_site
from compose.tables import Column, conservation, side_by_side
from penstock.accounting.audit import audit
from penstock.composition.procfile import ProcessGroup
from penstock.connection import mask_password
from penstock.encoding import decoded_fields
from penstock.metrics import read_metrics

HERE: Final = Path(__file__).parent
ROWS: Final = (HERE.parent / "tracked/seattle-temps.csv").read_bytes().splitlines()[1:]
COUNTS: Final = ("taken", "delivered", "dead", "batches")
LINK: Final = {"state": "state", "rtt": "round trip (s)", "waiting": "waiting", "oldest": "oldest (s)"}
"""Fields of the last state of a link, and their names in the table."""


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    runner.main("compose.sites.demo", __doc__, lambda url: run(url, rows, directory))


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Send ``rows``, oldest first, through the composition in ``directory``, with site one on the server at ``url``."""
    sent = Sent(rows)
    async with AsyncExitStack() as stack:
        given = {name: os.environ.get(f"SITE_{name.upper()}") for name in LINKS}
        sites = [await stack.enter_async_context(open_site(name, url)) for name, url in given.items()]
        for site in sites:
            print(f"site {site.name}: {mask_password(site.url)}", file=sys.stderr)
        return await runner.run_composition(
            url,
            directory,
            KEYSPACE,
            lambda redis, composition: _carry(redis, sent, sites, composition),
            lambda redis, statuses: read_outcome(redis, sent, sites, statuses),
            other_servers=[site.redis for site in sites],
            process_variables={f"to-{site.name}": {"VPUSH_OUT_REDIS": site.url} for site in sites},
        )


async def _carry(redis: "Redis", sent: Sent, sites: Sequence[Site], composition: ProcessGroup) -> None:
    """Push all rows, a third of them while site three is down; wait until they have arrived or no longer can."""
    total, three = len(sent.rows), sites[-1]
    bars = {f"site {site.name}": site for site in sites}

    async def look() -> Snapshot:
        counts, states = {"pushed": len(sent.at)}, {"pushed": "at site one"}
        for bar, site in bars.items():
            counts[bar] = site.count
            states[bar] = f"{'up' if site.up else 'down'}, {await sent.waiting(redis, site.name):,} wait at site one"
        return Snapshot(counts, bool(await KEYSPACE.left(redis)), states)

    async def is_up() -> bool:
        return len(KEYSPACE.registered(await KEYSPACE.present(redis))) >= len(KEYSPACE.services)

    async with AsyncExitStack() as stack:
        drawn = stack.enter_context(Bars(dict.fromkeys(("pushed", *bars), total), look))
        for site in sites:
            await stack.enter_async_context(site.watched())
        await runner.until(composition, is_up)  # their start must not count as a delay
        await sent.push(redis, total // 3, drawn.draw)
        async with three.down():
            await sent.push(redis, 2 * total // 3, drawn.draw)
        await sent.push(redis, total, drawn.draw)
        await drawn.until_through(composition)


async def read_outcome(redis: "Redis", sent: Sent, sites: Sequence[Site], statuses: Mapping[str, int]) -> Outcome:
    """Compare what is at ``sites`` with what was sent from site one, the server of ``redis``."""
    deliveries = {site.name: await Delivery.read(redis, sent, site) for site in sites}
    audits = {keys.namespace: await audit(redis, keys) for keys in KEYSPACE.services}
    counted = [each for each in audits.values() if each]
    ending = await Ending.read(KEYSPACE, statuses, redis)
    caption = "longest delay: from LPUSH at site one until it was seen at the site, looked for every 20 ms"
    columns = ((name, each.column) for name, each in deliveries.items())
    return Outcome(
        ending,
        comparisons=[each.comparison for each in deliveries.values()],
        audits=audits,
        owed={name: len(sent.rows) for site in deliveries for name in (queues_for(site)[0], arrived(site))},
        shown=[
            side_by_side("What arrived at each site", columns, caption),
            *([conservation(counted)] if counted else []),
            ending.line,
        ],
        success="Nothing lost, nothing doubled, all in order at every site",
        data={
            "pushed": len(sent.rows),
            "sites": {name: each.data for name, each in deliveries.items()},
            "audits": {name: found and asdict(found) for name, found in audits.items()},
        },
    )


class Delivery(NamedTuple):
    """What became of the messages for one site."""

    comparison: Comparison
    column: Column
    data: dict[str, object]

    @classmethod
    async def read(cls, redis: "Redis", sent: Sent, site: Site) -> Self:
        found = await Comparison.read(site.redis, arrived(site.name), sent.rows)
        delay, most_waiting = site.longest_delay(sent.at), sent.most_waiting[site.name]
        metrics = await read_metrics(redis, LINKS[site.name])  # as its vpush wrote them at site one
        fields: Any = await redis.hgetall(LINKS[site.name].link)
        link = decoded_fields(fields)
        counts = {name: int(metrics.get(name, {}).get("count", 0)) for name in COUNTS}
        return cls(
            found,
            [
                {"sent": found.sent, "arrived": found.got, **found.amounts, "in order": found.in_order},
                {
                    "its server was down (s)": f"{site.down_for:.1f}",
                    "most that waited for it at site one": most_waiting,
                    "longest delay (s)": None if delay is None else f"{delay:.2f}",
                },
                {f"vpush: {name}": count for name, count in counts.items()}
                | {"vpush: bytes": int(metrics.get("batches", {}).get("bytes", 0))},
                {f"link: {name}": link.get(field) for field, name in LINK.items()},
            ],
            {
                **found.figures(),
                "longestDelay": delay,
                "down": site.down_for,
                "mostWaiting": most_waiting,
                "metrics": metrics,
                "link": link,
            },
        )


if __name__ == "__main__":
    main()
