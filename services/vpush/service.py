"""vpush: a list moved to another server, in order and once."""

import asyncio
from contextlib import suppress

from redis.exceptions import NoPermissionError, RedisError
from redis.exceptions import TimeoutError as Unanswered

from common.acl import require_at
from common.context import Context
from common.outage import describe, first_of
from common.server import check_server
from penstock.connection import OTHER_SERVER, connect
from penstock.errors import Refused, TargetLost, Unsuitable
from penstock.raw_connection import RawConnection
from penstock.transfer.engine import Batch, Transfer
from penstock.transfer.protocol import Target, catch_up, largest_message, refused
from services.vpush.encoding import Preparation
from services.vpush.link import Link
from services.vpush.local_source import Here
from services.vpush.settings import Settings
from services.vpush.window import pace


async def run(context: Context[Settings]) -> None:
    """Send, and have it on record when the link is down."""
    link = Link(context)
    try:
        await _send(context, link)
    except Exception as error:
        if isinstance(first_of(error), Unanswered):
            pace.timed_out()
        with suppress(RedisError):
            await link.write("down", describe(first_of(error)))
        raise


async def _send(context: Context[Settings], link: Link) -> None:
    """Agree with the other server on what has arrived, then send all that follows, until the run shall end."""
    settings = context.settings
    there = RawConnection(connect(settings.out_redis, silence=settings.link_timeout, name="penstock-vpush"))
    try:
        prepare = Preparation(settings, await _largest(context, there))
        here = Here(context)
        target, settled = await _agree(context, here, there, prepare)

        def note(batch: Batch) -> None:
            here.note(batch)
            pace.arrived(link.note(batch), settings.link_timeout, settings.window_bytes)

        transfer = Transfer(
            here,
            target,
            settings.window,
            lambda: min(settings.window_bytes, pace.bytes),
            prepare,
            note,
            lambda: context.running,
        )
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(link.watch())
            await transfer.run(settled)
            watch.cancel()
        await link.write("up")
    finally:
        await there.close()
        await there.redis.aclose()


async def _largest(context: Context[Settings], there: RawConnection) -> int:
    """Bytes of the largest message that the other server takes, once it is fit for ours; as usual if we may not ask."""
    try:
        if not context.outage.failures:
            await _require_rights(context.settings)
            with suppress(NoPermissionError):
                await check_server(there.redis, [context.settings.out], context.log.bind(server="outRedis"))
        return await largest_message(there.redis)
    except RedisError as error:
        raise refused(error) from error


async def _require_rights(settings: Settings) -> None:
    """Raise ``Refused`` with all rights that we lack there: it may be in other hands, so they are waited for."""
    url, out = settings.out_redis, settings.out
    try:
        await require_at(url, settings.rights()[url], f"{out}:from:rights", [out])
    except Unsuitable as error:
        raise Refused(f"{OTHER_SERVER}{error}") from None


async def _agree(
    context: Context[Settings], here: Here, there: RawConnection, prepare: Preparation
) -> tuple[Target, int]:
    """Be the one whose messages count there; and the number of the last message that is settled."""
    while True:
        source, settled = await here.known()
        target = Target(there, context.settings.out, source, context.token or 0)
        arrived = await target.meet()
        if arrived.token >= (context.token or 0):
            await here.raise_token(arrived.token)
            continue
        try:
            caught_up = await catch_up(here, arrived, settled, prepare)
        except TargetLost as error:
            raise TargetLost(f"{error}: {here.way_out}") from None
        if caught_up is not None:
            return target, caught_up
        context.log.warning("data was lost here: some of what follows may arrive twice", arrived=arrived.last)
        await here.be_another()
