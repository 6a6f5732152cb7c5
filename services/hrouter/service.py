"""hrouter: move each request to the list of the first rule that matches it, or answer it at once."""

from common.context import Context
from common.registered_lists import RegisteredLists
from common.tracking.reply_lists import ReplyRules
from services.hrouter.breaker import Lengths
from services.hrouter.routing import Routing
from services.hrouter.settings import Settings
from services.hrouter.table import Table


async def run(context: Context[Settings]) -> None:
    """Route and settle batch after batch."""
    settings, replies = context.settings, reply_rules(context)
    table = Table(settings.rules_)
    lengths = Lengths(context.redis, context.required_keys, table.rules)
    routing = Routing(table, replies.refusal, lengths.gates)
    async for batch in context.batches(settings.batch, settings.batch_bytes, ahead=True):
        await replies.refresh()
        await lengths.look(batch.at)
        routed = routing.route(batch, batch.at)
        life, broken = settings.reply_expire, routed.broken
        await context.settle(batch, routed.to, routed.dead, answers=routed.answers, life=life, broken=broken)


def reply_rules(context: Context[Settings]) -> ReplyRules:
    """Return which lists may get answers."""
    settings, directory = context.settings, RegisteredLists(context.redis, context.required_keys, context.log)
    own = (settings.in_, *settings.named("rules_"))
    return ReplyRules(context.required_keys, settings.reply_lists, own, (settings.pending,), directory)
