"""What the scripts of all instances publish: tasks that wait, and those that have ended."""

from collections.abc import Callable
from functools import partial
from typing import Final

from redis.exceptions import ConnectionError

from penstock.base.encoding import decoded
from penstock.base.log import Log
from penstock.core.connection import mask_password
from penstock.core.link import Link, Outage
from penstock.core.wire import Subscriber

PING_SECONDS: Final = 3.0
MAX_SILENCE: Final = 7.0
OPEN_SECONDS: Final = 3.0


_log: Final = Log("penstock.hqueue")
Hear = Callable[[str | None], None]


class News:
    """Listens to channels from ``start`` to ``close``; a listener gets None if it may have missed something."""

    def __init__(self, url: str, listeners: dict[str, Hear]) -> None:
        outage = Outage(_log, "server away", "server back", server=mask_password(url), what="news of tasks")
        self._subscriber = Subscriber(url, "penstock-hqueue-news", lambda error: self._link.lost(error))
        self._link = Link(
            self._subscriber.open, self._shut, outage, within=OPEN_SECONDS, look=self._look, every=PING_SECONDS
        )
        self._listeners = listeners

    def start(self) -> None:
        """Connect, and stay connected."""
        for channel, listener in self._listeners.items():
            self._subscriber.add(channel.encode(), partial(_hear, listener))
        self._link.start()

    async def close(self) -> None:
        """Disconnect."""
        await self._link.close()
        await self._subscriber.close()

    async def _shut(self) -> None:
        self._subscriber.end(ConnectionError("the server is away"), told=False)

    async def _look(self) -> None:
        self._subscriber.ping()
        self._subscriber.cut_if_silent(MAX_SILENCE)


def _hear(listener: Hear, text: bytes | None) -> None:
    listener(None if text is None else decoded(text))
