"""mbalance: move each message of one list to the one of several lists that will serve it soonest."""

import asyncio

from common.context import Context
from services.mbalance.balancer import Balancer
from services.mbalance.settings import Settings


async def run(context: Context[Settings]) -> None:
    """Move messages until the run ends, and meanwhile look for workers that come and go."""
    balancer = Balancer(context)
    await balancer.find_workers()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(balancer.watch())
        tasks.create_task(balancer.run())
