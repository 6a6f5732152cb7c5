"""Three sites, one down for a while, checked: ``python -m compose.sites.demo [--json]``, or ``make demo-sites``.

Each site uses an embedded server, or the one of the variable REDIS (site one), SITE_TWO or SITE_THREE. The exit status
is 0 only if nothing was lost, doubled or out of order, all sums hold, and every process ended with 0 on SIGTERM.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from rich.progress import TextColumn

from compose import runner
from compose.runner import Snapshot
from compose.sites.keyspace import KEYSPACE, LINKS
from compose.sites.outcome import Outcome, read_outcome
from compose.sites.sent import Sent
from compose.sites.show import show
from compose.sites.site import Site, open_site
from penstock.composition.procfile import ProcessGroup
from penstock.connection import mask_password

HERE: Final = Path(__file__).parent
ROWS: Final = (HERE.parent / "tracked/seattle-temps.csv").read_bytes().splitlines()[1:]


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    runner.main("compose.sites.demo", __doc__, lambda url: run(url, rows, directory), show)


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Send ``rows``, oldest first, through the composition in ``directory``, with site one on the server at ``url``.

    Raise ``PenstockError`` if a server holds data of a composition that is no demo.
    """
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
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(runner.progress(TextColumn("{task.fields[state]}")))
        pushed = progress.add_task("pushed", total=total, state="at site one")
        bars = {site: progress.add_task(f"site {site.name}", total=total, state="") for site in sites}

        async def take_snapshot() -> Snapshot:
            progress.update(pushed, completed=len(sent.at))
            for site, bar in bars.items():
                state = f"{'up' if site.up else 'down'}, {await sent.waiting(redis, site.name):,} wait at site one"
                progress.update(bar, completed=site.count, state=state)
            counts = tuple(site.count for site in sites)
            return Snapshot(counts, min(counts) >= total, waiting=bool(await KEYSPACE.left(redis)))

        for site in sites:
            await stack.enter_async_context(site.watched())
        await _until_registered(redis, composition)
        await sent.push(redis, total // 3, take_snapshot)
        async with three.down():
            await sent.push(redis, 2 * total // 3, take_snapshot)
        await sent.push(redis, total, take_snapshot)
        await runner.until_through(composition, take_snapshot)


async def _until_registered(redis: "Redis", composition: ProcessGroup) -> None:
    """Wait until all services are up: their start must not count as a delay."""
    until = time.monotonic() + runner.MAX_SECONDS
    while time.monotonic() < until and len(composition.running) == len(composition.commands):
        if len(KEYSPACE.registered(await KEYSPACE.present(redis))) >= len(KEYSPACE.namespaces):
            return
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    main()
