"""mdedupe: move each message of one list to another one, once."""

from common.context import Context
from services.mdedupe.deduplication import by_digest, by_key
from services.mdedupe.keys import reader
from services.mdedupe.settings import Settings


async def run(context: Context[Settings]) -> None:
    """Move messages until the run ends, those that an earlier run left first."""
    key_of = reader(context.settings.by, context.settings.field)
    await (by_key(context, key_of) if key_of else by_digest(context).run())
