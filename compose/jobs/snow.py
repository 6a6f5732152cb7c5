"""Consumer of the group snow: ``python -m compose.jobs.snow``.

With the variable FIGURES_SNOW=node it is Node's hfxbus, if that is installed: `make demo-jobs` does that, if there are
Node and npm. Node's consumers never claim what one had that was killed, so this program is the usual one.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, Final

from compose.jobs.names import MONTHS, PREFIX, SNOW, claim_after, url, worker
from compose.npm import NodePackage
from penstock.jobs import Attempt, Consumer, Jobs

HERE: Final = Path(__file__).parent
HFXBUS: Final = NodePackage("hfxbus", HERE / "package.json")
consumer: Final = Consumer(SNOW, concurrency=4, claim_after=claim_after())


@consumer.job(MONTHS, values=["rows"], result=SNOW)
async def snow(job: Attempt) -> dict[str, Any]:
    """Return how many days had snow."""
    rows = (job.values["rows"] or b"").decode().split()
    return {"snow": sum(row.endswith(",snow") for row in rows), "worker": worker()}


def is_node() -> bool:
    """Return whether Node's hfxbus is wanted, and there."""
    return os.environ.get("FIGURES_SNOW") == "node" and HFXBUS.is_installed


async def work() -> None:
    """Do jobs until SIGTERM."""
    async with Jobs(url(), prefix=PREFIX, patience=None) as jobs:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, jobs.stop)
        await jobs.run(consumer)


def main() -> None:
    if is_node():
        HFXBUS.become(HERE / "snow.js")
    print("the group snow is Python's: FIGURES_SNOW is not node, or hfxbus is not installed", flush=True)
    asyncio.run(work())


if __name__ == "__main__":
    main()
