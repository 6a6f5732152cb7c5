"""The service vpush: moves a list to another server, in order and once."""

import asyncio
from contextlib import suppress
from dataclasses import replace

from redis.exceptions import NoPermissionError, RedisError
from redis.exceptions import TimeoutError as Unanswered

from common.acl import require_at
from common.context import Context
from common.server import check_server
from penstock.base.errors import Refused, Unsuitable
from penstock.core.connection import connect
from penstock.core.link import OTHER_SERVER, describe, first_of
from penstock.core.once import Shipment, Transfer, agree, largest_message, refused
from penstock.core.raw_connection import RawConnection
from services.vpush.encoding import Encoder
from services.vpush.link import Link
from services.vpush.local_source import LocalSource
from services.vpush.settings import Settings
from services.vpush.window import SendWindow


async def run(context: Context[Settings], window: SendWindow) -> None:
    """Send messages; if that fails, record that the link is down."""
    link = Link(context)
    try:
        await _send(context, link, window)
    except Exception as error:
        if isinstance(first_of(error), Unanswered):
            window.timed_out()
        with suppress(RedisError):
            await link.write("down", describe(first_of(error)))
        raise


async def _send(context: Context[Settings], link: Link, window: SendWindow) -> None:
    """Agree with the other server on what has arrived, then send all that follows, until the run is to end."""
    settings = context.settings
    remote = RawConnection(connect(settings.out_redis, silence=settings.link_timeout, name="penstock-vpush"))
    try:
        encoder = Encoder(settings, await _max_message(context, remote))
        source = LocalSource(context, window)
        hop, settled = await agree(source, remote, settings.out, encoder)

        def arrived(batch: Shipment) -> None:
            source.note(batch)
            window.arrived(link.note(batch), settings.link_timeout, settings.window_bytes)

        transfer = Transfer(
            source,
            hop,
            max_batches=settings.window,
            max_bytes=lambda: min(settings.window_bytes, window.bytes),
            encode=encoder,
            on_arrival=arrived,
            keep_going=lambda: context.running,
        )
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(link.watch())
            await transfer.run(settled)
            watch.cancel()
        await link.write("up")
    finally:
        await remote.close()
        await remote.redis.aclose()


async def _max_message(context: Context[Settings], remote: RawConnection) -> int:
    """Check the other server; return the bytes of the largest message that it accepts."""
    try:
        if not context.outage.failures:
            await _require_rights(context.settings)
            with suppress(NoPermissionError):
                await check_server(remote.redis, [context.settings.out], context.log.bind(server="outRedis"))
        return await largest_message(remote.redis)
    except RedisError as error:
        raise refused(error) from error


async def _require_rights(settings: Settings) -> None:
    """Raise ``Refused`` with all rights missing on the other server: others may run it, so vpush waits for them."""
    url, out = settings.out_redis, settings.out
    try:
        rights = settings.rights()[url]
        needed = replace(rights, commands=rights.commands - {"INFO"})  # without it, the server is not checked
        await require_at(url, needed, f"{out}:from:rights", [out])
    except Unsuitable as error:
        raise Refused(f"{OTHER_SERVER}{error}") from None
