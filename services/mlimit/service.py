"""mlimit: move messages from one list to another, at most ``rate`` a second."""

import asyncio

from common.context import Context
from services.mlimit.delay import Delay
from services.mlimit.limit import WholeLimit
from services.mlimit.refusal import Refusal
from services.mlimit.settings import Settings


async def run(context: Context[Settings]) -> None:
    """Move messages until the run ends, those that an earlier run left first."""
    settings = context.settings
    if settings.over != "wait":
        await Refusal(context).run()
    elif settings.by == "all":
        await WholeLimit(context).run()
    else:
        await _delay(Delay(context))


async def _delay(delay: Delay) -> None:
    """Take messages, and release those that waited, at the same time, each on a connection of its own."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(delay.take())
        tasks.create_task(delay.release())
