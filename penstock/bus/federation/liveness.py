"""Notice a websocket whose other end has gone without a word."""

import asyncio
from collections.abc import Callable

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed


async def keep_alive(connection: Connection, interval: float, timeout: float, reads: Callable[[], bool]) -> None:  # noqa: ASYNC109  # of each ping
    """Ping every ``interval`` seconds; end the connection if no pong comes for ``timeout`` seconds.

    While ``reads()`` is False the connection is not read, so that no pong can come: that is no silence.
    """
    try:
        while True:
            await asyncio.sleep(interval)
            async with asyncio.timeout(timeout):
                pong = asyncio.ensure_future(await connection.ping())
            while not pong.done():
                read = reads()
                await asyncio.wait({pong}, timeout=timeout)
                if not pong.done() and read and reads():
                    raise TimeoutError
    except ConnectionClosed:
        return
    except TimeoutError:
        connection.transport.abort()
