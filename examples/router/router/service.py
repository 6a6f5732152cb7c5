"""router: each message to the list of its first letter."""

from common import Context
from router.settings import Settings


async def run(context: Context[Settings]) -> None:
    """Settle batch after batch; a message that no list is for becomes a dead letter."""
    routes = {name.rpartition(":")[2].encode(): name for name in context.settings.out}
    async for batch in context.batches():
        to = {name: [message for message in batch if message[:1] == letter] for letter, name in routes.items()}
        dead = [(message, "noRoute") for message in batch if message[:1] not in routes]
        await context.settle(batch, to, dead)
