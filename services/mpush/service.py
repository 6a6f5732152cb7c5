"""mpush: copy every message of one list to every subscriber's list."""

from common.context import Context
from services.mpush.fanout import Fanout
from services.mpush.settings import Settings


async def run(context: Context[Settings]) -> None:
    """Deliver messages until the run ends, those that an earlier run left first."""
    await Fanout(context).run()
