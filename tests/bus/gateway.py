"""Gateways for tests: in this process, on a free port of the loopback."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from services.gateway.listener import Listener
from services.gateway.service import Gateway
from services.gateway.settings import Settings
from tests.support.harness import PATIENCE, eventually

if TYPE_CHECKING:
    from tests.bus.raw import Raw

P = ParamSpec("P")
SECRET: Final = "not so secret"


@asynccontextmanager
async def serving(redis_url: str, **settings: Any) -> AsyncIterator[Listener]:
    """Yield a gateway to the bus of ``redis_url``, once it is online."""
    given: dict[str, Any] = {"listen_host": "127.0.0.1", "listen_port": 0, "secret": SECRET, "patience": 30, **settings}
    async with Gateway().lifespan(Settings(redis=redis_url, **given)) as listener:
        await eventually(lambda: listener.bus.is_online)
        yield listener


def url_of(listener: Listener, scheme: str = "ws") -> str:
    """Return where peers connect."""
    return f"{scheme}://localhost:{listener.port}{listener.settings.path}"


def ends(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """Fail a test that waits for messages which were lost."""

    @wraps(test)
    async def bounded(*args: P.args, **named: P.kwargs) -> None:
        async with asyncio.timeout(2 * PATIENCE):
            await test(*args, **named)

    return bounded


async def status_of(url: str, **options: Any) -> int:
    """Return the HTTP status with which a websocket is refused; 101 if it is not."""
    try:
        async with connect(url, **options):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


def get(url: str) -> int:
    """Return the status of a request."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def bearer(secret: str) -> dict[str, Any]:
    """Return the options of a websocket with ``secret`` in its header."""
    return {"additional_headers": {"Authorization": f"Bearer {secret}"}}


async def works(peer: "Raw") -> None:
    """Fail unless an object of the peer can be used."""
    channel = await peer.create("queue", "works")
    assert (await channel.call("exists"))[0] is None
