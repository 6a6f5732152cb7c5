"""mpush: every message of one list to every subscriber's list."""

from common.context import Context
from services.mpush.fanout import Fanout
from services.mpush.settings import Settings


async def run(context: Context[Settings]) -> None:
    """Take a message, deliver it and all that wait behind it; first of all, deliver what an earlier run left."""
    fanout = Fanout(context)
    await fanout.deliver()
    while context.running:
        if await fanout.take():
            await fanout.deliver()
